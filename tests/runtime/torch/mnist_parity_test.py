"""Ranks train to the bits of one process, at np 1, 2 and 4. Arguments: mnist_parity, hvdrun."""

import subprocess
import sys
import unittest

PROGRAM, HVDRUN = sys.argv[1:3]


class Parity(unittest.TestCase):
    def check(self, ranks):
        done = subprocess.run([HVDRUN, "-np", str(ranks), "--no-tag-output", "--", PROGRAM],
                              capture_output=True, text=True, timeout=200)
        self.assertEqual((done.returncode, done.stdout), (0, "equal\n" * ranks), done.stderr)

    def test_one_rank(self):
        self.check(1)

    def test_two_ranks(self):
        self.check(2)

    def test_four_ranks(self):
        self.check(4)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
