"""Which sizes are judged how; a program's rows as a sample."""
import os
import sys
import tempfile
import types
import unittest

from collectives import SIZES, Rows, claims_of, name_of
from experiment import RunFailed

ROWS = '{"rows": [{"bytes": 65536, "time_us": 8.5, "algbw_gbps": 7.7, "busbw_gbps": 7.7, "wrong": 0}]}'


class CollectivesTest(unittest.TestCase):
    def test_sizes_have_names(self):
        self.assertEqual([name_of(size) for size in SIZES],
                         ["8 B", "1 KiB", "64 KiB", "256 KiB", "1 MiB", "16 MiB", "256 MiB"])

    def test_targets(self):
        bounds = {c.text: (c.at_least, c.at_most, c.goal) for size in SIZES for c in claims_of(size)}
        self.assertEqual(bounds["8 B: arena's time / Open MPI's"], (None, 1.5, 1))
        self.assertEqual(bounds["64 KiB: the floor's time / arena's"], (0.40, None, None))
        self.assertEqual(bounds["64 KiB: Open MPI's time / arena's"], (1, None, None))
        self.assertEqual(bounds["256 MiB: the floor's time / arena's"], (0.75, None, None))
        self.assertEqual(bounds["256 MiB: Open MPI's time / private's"], (None, None, 1))

    def measured(self, body):
        with tempfile.TemporaryDirectory() as folder:
            rows = Rows(types.SimpleNamespace(row_seconds=0.3), folder)
            sizes = ["--min-bytes", "65536", "--max-bytes", "65536"]
            program = f"import sys\npath = sys.argv[-1]\nassert sys.argv[1:5] == {sizes}\n{body}"
            found = rows.variant("x", [sys.executable, "-c"], program, ours=True).measure("64 KiB")
            self.assertEqual(os.listdir(folder), [])
            return found

    def test_a_row_becomes_a_sample(self):
        self.assertEqual(self.measured(f"open(path, 'w').write('{ROWS}')"), {"time": 8.5, "rate": 7.7})

    def test_a_wrong_element_is_a_failed_run(self):
        with self.assertRaisesRegex(RunFailed, "exit status 1"):
            self.measured("sys.exit(1)")


if __name__ == "__main__":
    unittest.main()
