"""The check of a step's time beside torch's DDP, on the CPU, by a Python that has torch: step_times_test.py BUILD

hvd and DDP have the nets there that they have on a GPU, and are started as there.
"""
import sys
import unittest
import unittest.mock

import checks
import comparisons
import place
import traces
import verdicts

LIMIT_S = 270


class StepTimes(unittest.TestCase):
    def setUp(self):
        self.place = place.Place(sys.argv[1])
        self.place.begin(LIMIT_S)
        self.place.gpus = 2
        self.addCleanup(self.place.end_all)
        self.ours = ["--", self.place.program("device_steps"), "times", "cpu"]

    def theirs(self, backend):
        return ["--", sys.executable, comparisons.DDP, backend]

    def test_both_take_turns(self):
        with unittest.mock.patch.multiple(comparisons, ROUNDS=2, STEPS=1):
            with self.assertRaises(verdicts.CouldNotRun) as seen:
                comparisons.compare_steps(self.place, 2, self.ours, self.theirs("gloo"))
        self.assertRegex(str(seen.exception), r"^2 ranks: a step of DDP and hvd [\d.]+ and [\d.]+ ms, ratio [\d.]+ .* not judged \(2 quiet samples")

    def test_losses_are_those_of_one_process(self):
        """On the CPU, too."""
        words = checks.curve_words(self.place.program("device_steps"), device=["cpu"])
        self.assertIn("20 losses, from ", checks.judge_curve(self.place.job(2, *words)))

    def test_a_trace_of_the_cpu_is_none_of_a_gpu(self):
        ended = self.place.job(2, "--", self.place.program("device_steps"), "trace", "cpu")
        self.assertEqual(sorted(ended.out.splitlines()), [f"rank {rank}: 4 steps of 6 buckets" for rank in (0, 1)])
        with self.assertRaisesRegex(verdicts.CouldNotRun, "CUPTI has told LibTorch's profiler nothing"):
            traces.judge(ended)

    def test_shared_gpus_are_not_judged(self):
        with unittest.mock.patch.object(comparisons, "Trainer", PlayedTrainer):
            with self.assertRaisesRegex(verdicts.Failed, "ratio 0.500 .* at least 1 is wanted: missed"):
                comparisons.compare_steps(self.place, 2, self.ours, [])
            self.place.gpus = 1
            with self.assertRaisesRegex(verdicts.CouldNotRun, r"that share the GPU: .* ratio 0.500 .*; not judged$"):
                comparisons.compare_steps(self.place, 2, self.ours, [])

    def test_a_peer_that_fails_is_told(self):
        with self.assertRaisesRegex(comparisons.Peerless, "no line like .* came; exit status"):
            comparisons.compare_steps(self.place, 2, self.ours, ["--", "/bin/false", comparisons.DDP, "gloo"])


class PlayedTrainer:
    """Steps of ours that take twice as long as the peer's."""

    def __init__(self, _, np, *words):
        self.ms = 20.0 if words else 10.0

    def step_ms(self, _):
        return self.ms

    def end(self):
        pass


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
