"""Quiet samples, ratios, verdicts, exit status."""
import unittest

from samples import (ENOUGH, GIVE_UP, MET, MISSED, NOT_JUDGED, SHOWN, Cell, Claim, Record, Term, Verdict, exit_status,
                     judge, ratios, spread)


def records(**columns):
    """Records of case "c" with these quiet values of metric "ms"."""
    return {Cell("c", name): Record(quiet=[{"ms": value} for value in values]) for name, values in columns.items()}


def claim(over, *under, **bounds):
    return Claim("", Term("c", (over,), "ms"), Term("c", under, "ms") if under else None, **bounds)


class RecordTest(unittest.TestCase):
    def test_a_sample_counts_only_while_others_are_quiet(self):
        record = Record()
        record.add({"ms": 1.0}, foreign_cpus=0.079)
        record.add({"ms": 9.0}, foreign_cpus=0.08)
        self.assertEqual(record.column("ms"), [1.0])
        self.assertEqual(record.noisy, 1)

    def test_gives_up_after_failures_in_a_row_only(self):
        record = Record()
        for _ in range(GIVE_UP - 1):
            record.fail("hung")
        record.add({}, 0.0)
        record.fail("hung")
        self.assertFalse(record.given_up)
        self.assertEqual(len(record.failures), GIVE_UP)
        for _ in range(GIVE_UP - 1):
            record.fail("hung")
        self.assertTrue(record.given_up)

    def test_patience_is_what_it_was_made_with(self):
        record = Record(patience=GIVE_UP + 1)
        for _ in range(GIVE_UP):
            record.fail("hung")
        self.assertFalse(record.given_up)
        record.fail("hung")
        self.assertTrue(record.given_up)


class RatioTest(unittest.TestCase):
    def test_the_nth_samples_are_divided_by_each_other(self):
        found = ratios(claim("mpi", "hvd"), records(mpi=[30, 10, 99], hvd=[10, 5]))
        self.assertEqual(found, [3, 2])

    def test_the_median_of_ratios_is_not_the_ratio_of_medians(self):
        seen = spread(ratios(claim("mpi", "hvd"), records(mpi=[10, 40, 20], hvd=[10, 10, 20])))
        self.assertEqual(seen.median, 1)

    def test_of_several_variants_the_one_with_the_least_median_is_taken(self):
        found = ratios(claim("ddp", "plain", "view"), records(ddp=[8, 8], plain=[1, 9], view=[2, 4]))
        self.assertEqual(found, [4, 2])

    def test_none_when_one_that_has_to_be_compared_has_no_sample(self):
        self.assertEqual(ratios(claim("ddp", "plain", "view"), records(ddp=[8], plain=[1], view=[])), [])

    def test_a_claim_without_a_divisor_judges_the_value(self):
        self.assertEqual(ratios(claim("hvd"), records(hvd=[12.5])), [12.5])

    def test_quartiles(self):
        self.assertEqual(spread([1, 2, 3, 4, 5]), (2, 3, 4))
        self.assertEqual(spread([7]), (7, 7, 7))


class JudgeTest(unittest.TestCase):
    def outcome(self, one, known, **more):
        return judge(one, known, **more).outcome

    def test_at_least_and_at_most(self):
        known = records(mpi=[30.0] * ENOUGH, hvd=[10.0] * ENOUGH)
        self.assertEqual(self.outcome(claim("mpi", "hvd", at_least=3), known), MET)
        self.assertEqual(self.outcome(claim("mpi", "hvd", at_least=3.01), known), MISSED)
        self.assertEqual(self.outcome(claim("hvd", at_most=10), known), MET)
        self.assertEqual(self.outcome(claim("hvd", at_most=9.99), known), MISSED)

    def test_a_goal_alone_is_shown_and_never_judged(self):
        self.assertEqual(self.outcome(claim("hvd", "mpi", goal=1), records(hvd=[9.0], mpi=[1.0])), SHOWN)

    def test_too_few_quiet_samples_are_not_judged_and_say_so(self):
        known = records(mpi=[30.0] * ENOUGH, hvd=[10.0] * (ENOUGH - 1))
        verdict = judge(claim("mpi", "hvd", at_least=3), known)
        self.assertEqual(verdict.outcome, NOT_JUDGED)
        self.assertIn(f"{ENOUGH - 1} quiet samples", verdict.why)
        self.assertEqual(verdict.spread.median, 3)

    def test_what_the_ratio_of_medians_does_not_confirm_is_not_met(self):
        # Five pairs whose ratios' median is 1.2, while the medians are 14 and 10.
        known = records(hvd=[12, 12, 14, 20, 20], floor=[10, 10, 12, 10, 10])
        verdict = judge(claim("hvd", "floor", at_most=1.3), known)
        self.assertEqual(verdict.outcome, NOT_JUDGED)
        self.assertEqual((verdict.spread.median, verdict.of_medians), (1.2, 1.4))
        self.assertIn("medians", verdict.why)
        self.assertEqual(self.outcome(claim("hvd", "floor", at_least=1.3), known), MISSED)
        self.assertEqual(self.outcome(claim("hvd", "floor", at_most=1.4), known), MET)
        self.assertEqual(self.outcome(claim("hvd", "floor", at_most=1.1), known), MISSED)

    def test_a_value_alone_has_no_ratio_of_medians(self):
        self.assertIsNone(judge(claim("hvd", at_most=10), records(hvd=[9.0] * ENOUGH)).of_medians)

    def test_a_peer_that_is_not_here_is_named(self):
        verdict = judge(claim("mpi", "hvd", at_least=3), records(hvd=[1.0]), missing={"mpi": "not installed"})
        self.assertEqual((verdict.outcome, verdict.why), (NOT_JUDGED, "mpi: not installed"))

    def test_a_peer_that_was_given_up_is_named(self):
        known = records(mpi=[30.0] * ENOUGH, hvd=[10.0] * ENOUGH)
        for _ in range(GIVE_UP):
            known[Cell("c", "mpi")].fail("hung")
        verdict = judge(claim("mpi", "hvd", at_least=3), known)
        self.assertEqual(verdict.outcome, NOT_JUDGED)
        self.assertIn("mpi failed", verdict.why)


class ExitStatusTest(unittest.TestCase):
    def status(self, *outcomes, failures=(), check=True):
        return exit_status([Verdict(claim("hvd"), outcome) for outcome in outcomes], failures, check)

    def test_all_met(self):
        self.assertEqual(self.status(MET, SHOWN), 0)

    def test_missed_is_worse_than_not_judged(self):
        self.assertEqual(self.status(MET, NOT_JUDGED), 3)
        self.assertEqual(self.status(NOT_JUDGED, MISSED), 1)

    def test_without_check_only_a_failure_of_our_own_counts(self):
        self.assertEqual(self.status(MISSED, NOT_JUDGED, check=False), 0)
        self.assertEqual(self.status(MET, failures=["crashed"], check=False), 1)
        self.assertEqual(self.status(MET, failures=["crashed"]), 1)


if __name__ == "__main__":
    unittest.main()
