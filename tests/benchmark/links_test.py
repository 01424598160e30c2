"""Which sizes are judged how, for how many ranks."""
import unittest

from collectives import KIB, MIB
from links import SIZES, claims_of


class LinksTest(unittest.TestCase):
    def bounds(self, np):
        return {c.text: (c.at_least, c.at_most, c.goal) for size in SIZES for c in claims_of(size, np)}

    def test_targets_of_two(self):
        bounds = self.bounds(2)
        self.assertEqual(bounds["8 B: the raw stream's time / hvd's"], (0.85, None, None))
        self.assertEqual(bounds["256 MiB: the raw stream's time / hvd's"], (0.75, None, None))
        self.assertEqual(bounds["64 KiB: Open MPI's time / hvd's"], (1.3, None, None))
        self.assertEqual(bounds["256 KiB: Open MPI's time / hvd's"], (1.0, None, None))
        self.assertEqual([bounds[f"{size}: gloo's time / hvd's"][0] for size in ("64 KiB", "1 MiB", "64 MiB", "256 MiB")], [10, 3, 1.8, 1.4])

    def test_targets_of_four(self):
        bounds = self.bounds(4)
        self.assertEqual(bounds["1 MiB: Open MPI's time / hvd's"], (0.7, None, None))
        self.assertEqual(bounds["16 MiB: Open MPI's time / hvd's"], (0.9, None, None))
        self.assertEqual(bounds["1 MiB: the raw stream's time / hvd's"], (None, None, None))
        self.assertEqual([bounds[f"{size}: gloo's time / hvd's"][0] for size in ("256 KiB", "1 MiB")], [None, 1.1])

    def test_hosts_that_are_shared(self):
        bounds = self.bounds(4)
        self.assertEqual(bounds["1 MiB: tcp's time / that of 2 hosts, private"], (1.3, None, None))
        self.assertEqual(bounds["256 MiB: tcp's time / that of 2 hosts, arena"], (1.3, None, None))
        self.assertEqual(bounds["256 KiB: tcp's time / that of 2 hosts, arena"], (None, None, None))
        self.assertFalse([text for text in self.bounds(2) if "2 hosts" in text])

    def test_other_numbers_of_ranks_are_shown_only(self):
        self.assertEqual({bound for bounds in self.bounds(3).values() for bound in bounds}, {None})

    def test_sizes_reach_from_latency_to_bandwidth(self):
        self.assertEqual((SIZES[0], SIZES[-1]), (8, 256 * MIB))
        self.assertIn(64 * KIB, SIZES)


if __name__ == "__main__":
    unittest.main()
