"""Living trainers: answers, nonsense, an early end, silence."""
import sys
import unittest

from experiment import RunFailed
from step import NETS, Trainer, claims_of


def trainer(body, ranks=1):
    words = [sys.executable, "-u", "-c", f"import sys\nfor line in sys.stdin:\n    {body}"]
    return Trainer([(words, {})] * ranks)


class TrainerTest(unittest.TestCase):
    def asked(self, one, *request):
        try:
            return one.ask(*(request or ("mnist", "hvd", 20)))
        finally:
            one.close()

    def test_every_rank_gets_the_line_and_the_first_answers(self):
        echo = trainer("print(len(line.split()), flush=True)", ranks=2)
        self.assertEqual(self.asked(echo), {"step": 3.0})
        self.assertEqual([process.returncode for process in echo.processes], [0, 0])

    def test_nonsense_is_a_failed_run(self):
        with self.assertRaisesRegex(RunFailed, "a time was expected, not: 'fast"):
            self.asked(trainer("print('fast')"))

    def test_an_early_end_is_a_failed_run(self):
        with self.assertRaisesRegex(RunFailed, "ended by itself"):
            self.asked(trainer("sys.exit(3)"))

    def test_silence_is_a_failed_run_and_ends_the_processes(self):
        silent = trainer("pass", ranks=2)
        silent.limit_s = 0.2
        with self.assertRaisesRegex(RunFailed, "no answer in time"):
            silent.ask("mnist", "hvd", 20)
        self.assertTrue(all(process.returncode is not None for process in silent.processes))
        with self.assertRaisesRegex(RunFailed, "ended by itself"):
            silent.ask("mnist", "hvd", 20)


class ClaimsTest(unittest.TestCase):
    def test_every_net_is_judged_beside_the_better_ddp_and_beside_nothing(self):
        for case in NETS:
            ddp, nothing, *apart = claims_of(case)
            self.assertEqual([claim.over.variants for claim in apart], [ddp.over.variants] if case == "MNIST net" else [])
            self.assertEqual(ddp.over.variants, ("DDP", "DDP, bucket view"))
            self.assertGreater(ddp.at_least, 1)
            self.assertEqual(nothing.over.variants, ("hvd",))
            self.assertLess(nothing.at_most, 1.5)


if __name__ == "__main__":
    unittest.main()
