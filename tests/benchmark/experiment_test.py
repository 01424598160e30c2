"""Whose turn it is, when it ends, and what is left out."""
import os
import subprocess
import sys
import time
import unittest

from experiment import Experiment, RunFailed, Variant, run
from machine import (Machine, Usage, cpu_s, descendants, foreign_cpus, other_pids, process_name,
                     sees_all_processes)
from programs import run_once
from samples import GIVE_UP, Cell, Claim, Term


class FakeMachine:
    """A clock that only measuring moves, and others that use what the test says."""

    def __init__(self):
        self.clock_s, self.others_s, self.waits = 0.0, 0.0, 0

    def now(self):
        return self.clock_s

    def usage(self):
        return Usage(self.clock_s, self.others_s)

    def wait_until_quiet(self, limit_cpus, deadline_s):
        self.waits += 1

    def work(self, seconds, others=0.0):
        self.clock_s += seconds
        self.others_s += seconds * others


def experiment(*variants, cases=("a", "b")):
    claims = [Claim("", Term(cases[0], (variants[0].name,), "ms"), at_most=1)]
    return Experiment("test", list(cases), list(variants), claims, {"ms": "ms"})


class RunTest(unittest.TestCase):
    def setUp(self):
        self.machine, self.order = FakeMachine(), []

    def variant(self, name, others=0.0, fails=lambda turn: False, **more):
        def measure(case):
            self.order.append((case, name))
            self.machine.work(1.0, others)
            if fails(self.order.count((case, name))):
                raise RunFailed(f"{name} hung")
            return {"ms": float(self.order.count((case, name)))}

        return Variant(name, measure, **more)

    def run_all(self, *variants, wanted=3, limit_s=1000):
        return run(experiment(*variants), self.machine, wanted, limit_s)

    def test_all_cells_take_turns_after_a_run_that_does_not_count(self):
        results = self.run_all(self.variant("x"), self.variant("y"))
        turn = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]
        self.assertEqual(self.order, turn * 4)
        self.assertEqual(results.records[Cell("a", "x")].column("ms"), [2, 3, 4])

    def test_noisy_samples_are_left_out_and_taken_again(self):
        noisy_turns = iter([0.0, 0.5, 0.0, 0.0])

        def measure(_):
            self.machine.work(1.0, next(noisy_turns))
            return {"ms": 1.0}

        results = run(experiment(Variant("x", measure), cases=["a"]), self.machine, 2, 1000)
        self.assertEqual((len(results.records[Cell("a", "x")].quiet), results.records[Cell("a", "x")].noisy), (2, 1))

    def test_ends_in_time_on_a_machine_that_is_never_quiet(self):
        results = self.run_all(self.variant("x", others=1.0), wanted=3, limit_s=50)
        self.assertEqual(results.records[Cell("a", "x")].quiet, [])
        self.assertGreaterEqual(self.machine.clock_s, 50)
        self.assertLess(self.machine.clock_s, 55)
        self.assertEqual(results.verdicts()[0].outcome, "not judged")

    def test_failed_runs_are_counted_and_a_variant_that_always_fails_is_given_up(self):
        results = self.run_all(self.variant("peer", fails=lambda turn: True), self.variant("x", ours=True))
        self.assertEqual(len(results.records[Cell("a", "peer")].failures), GIVE_UP)
        self.assertEqual(len(results.records[Cell("a", "x")].quiet), 3)
        self.assertEqual(results.own_failures(), [])

    def test_a_variant_that_fails_often_gets_its_samples_with_patience(self):
        often = self.variant("peer", fails=lambda turn: turn % 6 != 0, patience=6)
        record = self.run_all(often, self.variant("x")).records[Cell("a", "peer")]
        self.assertEqual((record.column("ms"), len(record.failures)), ([6, 12, 18], 15))

    def test_a_failure_of_our_own_is_reported(self):
        results = self.run_all(self.variant("x", fails=lambda turn: turn == 2, ours=True))
        self.assertEqual(results.own_failures(), ["a x: x hung", "b x: x hung"])

    def test_a_variant_runs_only_in_its_cases(self):
        self.run_all(self.variant("x"), self.variant("y", cases=("b",)))
        self.assertNotIn(("a", "y"), self.order)


class MachineTest(unittest.TestCase):
    def test_others_share_is_of_one_cpu_and_never_negative(self):
        self.assertEqual(foreign_cpus(Usage(1, 1), Usage(3, 2)), 0.5)
        self.assertEqual(foreign_cpus(Usage(1, 1), Usage(3, 0.99)), 0)

    def test_cpu_time_of_children_alive_and_ended_is_ours(self):
        spin = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n"
        before = Machine.own_cpu_s()
        subprocess.run([sys.executable, "-c", spin], check=True)
        self.assertGreaterEqual(Machine.own_cpu_s() - before, 0.2)

        waits = spin + "print(flush=True); input()"
        before = Machine.own_cpu_s()
        words = [sys.executable, "-c", waits]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            child.stdout.readline()
            self.assertIn(child.pid, descendants(os.getpid()))
            self.assertGreaterEqual(cpu_s(child.pid), 0.2)
            self.assertGreaterEqual(Machine.own_cpu_s() - before, 0.2)
            child.stdin.write(b"\n")

    def test_everybody_else_is_others_but_for_the_kernels_workers(self):
        with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as child:
            others = other_pids()
            child.stdin.close()
        self.assertIn(os.getppid(), others)
        self.assertTrue(others.isdisjoint({os.getpid(), child.pid}))
        kinds = {name.split("/")[0] for name in map(process_name, others)}
        self.assertEqual("kthreadd" in kinds, sees_all_processes())  # a container has none of the kernel's
        self.assertNotIn("kworker", kinds)

    def test_what_a_process_beside_us_worked_is_seen(self):
        looks = ("import machine\nm = machine.Machine(); before = m.usage()\nprint(flush=True); input()\n"
                 "after = m.usage(); print(after.others_s - before.others_s)\n")
        words, folder = [sys.executable, "-Bc", looks], os.path.dirname(os.path.abspath(__file__))
        seen_s = 0.0
        for _ in range(20):  # what somebody who ends meanwhile had worked before counts no more
            with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, text=True) as judge:
                judge.stdout.readline()
                end_s = time.process_time() + 0.4
                while time.process_time() < end_s:
                    pass
                seen_s = float(judge.communicate("\n", timeout=20)[0])
            if seen_s >= 0.2:  # /proc counts in ticks
                break
        self.assertGreaterEqual(seen_s, 0.2)

    def test_a_run_that_hangs_is_ended_with_all_it_started(self):
        Machine()  # orphans come to us
        with self.assertRaisesRegex(RunFailed, "no end after 0.3 s"):
            run_once(["/bin/sh", "-c", "sleep 600 & sleep 601; true"], 0.3)
        self.assertEqual(descendants(os.getpid()), [])

    def test_a_run_that_fails_is_named_with_its_last_words(self):
        with self.assertRaisesRegex(RunFailed, "exit status 3: .*: no such luck"):
            run_once(["/bin/sh", "-c", "echo first; echo no such luck >&2; exit 3"], 10)


if __name__ == "__main__":
    unittest.main()
