"""Tables, JSON, the command line."""
import contextlib
import io
import json
import unittest

import main
import report
from experiment import Experiment, Results, Variant
from samples import Cell, Claim, Record, Term


def results():
    ours, mpi, hydra = (Term("np 2", (name,), "wall") for name in ("hvdrun", "Open MPI", "Hydra"))
    claims = [
        Claim("np 2: mpirun's time / hvdrun's", mpi, ours, at_least=3),
        Claim("np 2: hvdrun's time / Hydra's", ours, hydra, at_most=1.1, goal=1),
    ]
    variants = [Variant("hvdrun", None, ours=True), Variant("Open MPI", None)]
    experiment = Experiment("launch", ["np 2"], variants, claims, {"wall": "ms"}, {"Hydra": "not installed"})
    records = {
        Cell("np 2", "hvdrun"): Record(quiet=[{"wall": 15.0}] * 5, noisy=2),
        Cell("np 2", "Open MPI"): Record(quiet=[{"wall": 120.0}] * 5, failures=["no end after 10 s: mpirun"]),
    }
    return Results(experiment, records, 5, 0.08, 12.0)


class ReportTest(unittest.TestCase):
    def test_four_digits_without_powers(self):
        numbers = [0, 0.1234, 9.8765, 12.346, 123.46, 1234.4, 1234567]
        self.assertEqual([report.number(n) for n in numbers],
                         ["0", "0.123", "9.877", "12.35", "123.5", "1234", "1234567"])

    def test_the_table_shows_ratios_targets_verdicts_and_what_was_left_out(self):
        text = report.table(results())
        for line in (r"hvdrun +15.00 +\(15.00 .. 15.00\) +5 +2 +0", r"hvdrun's +8.000x +\(8.000 .. 8.000\) +8.000 +>= 3 +met",
                     r"Hydra's +- +<= 1.1, goal 1 +not judged: Hydra: not installed", "2 left out while others used more than 8 %",
                     "Hydra: left out, not installed", "np 2 Open MPI: 1 failed runs left out, the last: no end after 10 s"):
            self.assertRegex(text, line)

    def test_json_has_samples_verdicts_and_the_machine(self):
        found = json.loads(json.dumps(report.as_json(results())))
        self.assertEqual(found["benchmark"], "launch")
        self.assertEqual(found["cells"][1]["failures"], ["no end after 10 s: mpirun"])
        self.assertEqual([claim["outcome"] for claim in found["claims"]], ["met", "not judged"])
        self.assertEqual(found["claims"][0]["median"], 8)
        self.assertEqual(found["claims"][0]["of_medians"], 8)
        self.assertGreater(found["machine"]["cpus"], 0)


class CommandLineTest(unittest.TestCase):
    def fails(self, *arguments):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit) as raised:
            main.parse(arguments)
        self.assertEqual(raised.exception.code, 2)
        return errors.getvalue()

    def test_every_benchmark_has_help_and_defaults_that_are_judged(self):
        for name in main.BENCHMARKS:
            options = main.parse([name])
            self.assertGreaterEqual(options.samples, 5)
            with contextlib.redirect_stdout(io.StringIO()) as text, self.assertRaises(SystemExit) as raised:
                main.parse([name, "--help"])
            self.assertEqual(raised.exception.code, 0)
            self.assertIn("--check", text.getvalue())

    def test_bad_values_are_refused(self):
        self.assertIn("1 or more", self.fails("launch", "--samples", "0"))
        self.assertIn("invalid choice", self.fails("lunch"))
        self.assertIn("leave --quiet out", self.fails("launch", "--check", "--quiet", "50"))

    def test_a_program_that_is_not_built_is_named_with_what_to_do(self):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual(main.main(["launch", "--build", "/nowhere"]), 2)
        self.assertIn("/nowhere/bin/hvdrun is not there; build it: scripts/build release", errors.getvalue())


if __name__ == "__main__":
    unittest.main()
