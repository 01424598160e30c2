"""examples/allreduce: alone, and as ranks under hvdrun. Arguments: the example, hvdrun (if it is built)."""

import subprocess
import sys
import unittest

EXAMPLE = sys.argv[1]
HVDRUN = sys.argv[2] if len(sys.argv) > 2 else None


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


class Allreduce(unittest.TestCase):
    def test_alone_it_is_a_world_of_one(self):
        self.assertEqual(run(EXAMPLE), (0, "1 ranks: 1\n", ""))

    @unittest.skipIf(HVDRUN is None, "built without hvdrun")
    def test_under_hvdrun_ranks_meet(self):
        status, out, err = run(HVDRUN, "-np", "4", "--", EXAMPLE)
        self.assertEqual((status, out), (0, "[0]<stdout>:4 ranks: 10\n"), err)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
