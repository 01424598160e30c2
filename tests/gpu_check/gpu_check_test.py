"""scripts/gpu_check itself, over stand-ins of the CUDA driver and of NCCL: what it says of good, bad, slow and missing things.

usage: gpu_check_test.py BUILD CUDA_STANDIN NCCL_STANDIN
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import checks
import comparisons
import main
import place
import verdicts

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, CUDA, NCCL = sys.argv[1:4]
VALUES = [f"values of {ranks} rank{'s' * (ranks > 1)}" for ranks in (1, 2, 3, 4)]


def with_limits(seconds):
    """What scripts/gpu_check does, with this limit of each check."""
    return f"import main; main.CHECKS = [one._replace(deadline_s={seconds}) for one in main.CHECKS]; sys.exit(main.main(sys.argv[1:]))"


class PlayedPlace:
    """Stands for what a check is given."""

    def __init__(self, left=0):
        self.limits, self.left = [], left

    def begin(self, limit_s):
        self.limits.append(limit_s)

    def end_all(self):
        return self.left


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hvd-gpu-check-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "report"

    def run_script(self, *words, build=BUILD, code=None, **variables):
        # A machine's own GPU is none of this test's.
        environment = {**os.environ, "PATH": "/usr/bin:/bin", "HVD_CUDA_LIBRARY": CUDA, "HVD_NCCL_LIBRARY": NCCL, **variables}
        script = ["-c", f"import sys; sys.path.insert(0, {str(ROOT / 'tests/gpu_check')!r}); {code}"] if code else [str(ROOT / "scripts/gpu_check")]
        return subprocess.run([sys.executable, "-B", *script, "--output", str(self.folder), "--build", build, *words],
                              env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400, check=False)

    def report(self):
        """(text, JSON, verdicts by name)"""
        content = json.loads((self.folder / "gpu_check.json").read_text())
        return (self.folder / "gpu_check.txt").read_text(), content, {one["name"]: one["verdict"] for one in content["checks"]}

    def test_all_checks_over_stand_ins(self):
        """Their limits are for a GPU's machine, which has nothing else to do."""
        seen = self.run_script("--seconds", "390", code=with_limits(100))
        said, content, verdict = self.report()
        self.assertEqual(seen.returncode, 0, seen.stdout + seen.stderr)
        self.assertEqual(seen.stdout, said)
        self.assertIn("STAND-INS", said.splitlines()[0])
        self.assertIn("no evidence", said.splitlines()[0])
        self.assertEqual((content["evidence"], content["complete"]), (False, True))
        self.assertEqual(list(verdict), [check.name for check in checks.CHECKS])
        ran = [*VALUES, "a rank killed in a sum", "an epoch that a rank ends", "host time of a launch", "a sum beside compute"]
        self.assertEqual([name for name, word in verdict.items() if word == "ok"], ran, said)
        self.assertEqual({word for name, word in verdict.items() if name not in ran}, {"could not run"}, said)
        self.assertRegex(content["device"], r"^NCCL 2\.28\.9 on GPU 0, NVIDIA Stand-in$")
        self.assertTrue({"driver", "commit", "build"} <= content.keys(), content)
        self.assertRegex(said, r"a rank killed in a sum: survivors had their CommFailure [\d.]+ s and [\d.]+ s after the death; all ended after")
        self.assertRegex(said, r"a sum beside compute: a sum from [\d.]+ to [\d.]+ ms of [\d.]+ ms of copies, launched in [\d.]+ ms; a sum ")
        self.assertRegex(said, r"bus bandwidth beside nccl-tests: there is one GPU ")
        self.assertRegex(said, r"host time of a launch: event record [\d.]+ us; bucket [\d.]+ us, [\d.]+ times that; bucket's median [\d.]+ us, [\d.]+ times that; submit [\d.]+ us, [\d.]+ times that; log's hop and launch")

    def test_an_error_of_nccls_is_a_failure_in_its_words(self):
        seen = self.run_script("--only", "values of 2", HVD_STANDIN_FAIL_CALL="ncclAllReduce:3:2")
        self.assertEqual(seen.returncode, 1, seen.stderr)
        self.assertRegex(self.report()[0], r"(?m)^failed +values of 2 ranks: exit status 3: .*ncclAllReduce fails as it was told to")

    def test_a_job_that_does_not_end_is_a_failure(self):
        seen = self.run_script("--only", "values of", "--seconds", "11", code=with_limits(6), HVD_STANDIN_INIT_HANGS="1")
        self.assertEqual(seen.returncode, 1, seen.stderr)
        said, _, verdict = self.report()
        self.assertEqual([verdict[name] for name in VALUES], ["failed", *["could not run"] * 3], said)
        self.assertRegex(said, "no end after [56] s")
        self.assertRegex(said, "it may take 6 s, and [0-5] s are left")

    def test_on_several_gpus_bandwidth_is_told_alone_and_beside_nccl_tests(self):
        peer = pathlib.Path(self.folder.parent, "all_reduce_perf")
        for rate, status, words in ((None, 0, r"1 MiB [\d.]+ GB/s; beside nothing, as there is no all_reduce_perf"),
                                    (1e-6, 0, r"1 MiB: hvd and nccl-tests [\d.]+ and 1e-06 GB/s, ratio [\d.]+ .* is wanted: met "),
                                    (1e6, 1, r"1 MiB: hvd and nccl-tests .* at least 0.98 is wanted: missed ")):
            if rate:
                peer.write_text(f"#!/bin/sh\n[ \"$*\" = '-g 4 -b 1048576 -e 1048576 -f 16 -w 5 -n 3 -c 0' ] || exit 1\n"
                                f"echo '# a header'\necho '1048576 262144 float sum -1 9.9 1.0 2.0 N/A 9.8 1.0 {rate} N/A'\n")
                peer.chmod(0o755)
            seen = self.run_script("--only", "bus bandwidth", HVD_STANDIN_DEVICES="4", PATH=f"{peer.parent}:/usr/bin:/bin")
            said = self.report()[0]
            self.assertEqual(seen.returncode, status, said)
            self.assertRegex(said, words)

    def test_without_a_gpu_it_says_so_in_a_line(self):
        for variables, words in (({"HVD_CUDA_LIBRARY": "/gone/libcuda.so"}, "there is no GPU here: the CUDA driver cannot be loaded: "),
                                 ({"HVD_STANDIN_INIT_RESULT": "100"}, "there is no GPU here: CUDA cannot be used here: "),
                                 ({"HVD_STANDIN_DEVICES": "0"}, "there is no GPU here: "),
                                 ({"HVD_NCCL_LIBRARY": "/gone/libnccl.so"}, "no GPU can be used here: NCCL cannot be loaded: ")):
            seen = self.run_script(**variables)
            self.assertEqual((seen.returncode, seen.stdout, seen.stderr.count("\n")), (3, "", 1), seen.stderr)
            self.assertTrue(seen.stderr.startswith(f"gpu_check: {words}"), seen.stderr)
            self.assertFalse(self.folder.exists())

    def test_what_it_is_called_with(self):
        seen = self.run_script(build="/gone")
        self.assertEqual((seen.returncode, seen.stderr.count("\n")), (2, 1), seen.stderr)
        self.assertIn("scripts/setup --cuda", seen.stderr)
        for words in (("--only", "nothing"), ("--seconds", "0"), ("--seconds", "nan")):
            self.assertEqual(self.run_script(*words).returncode, 2, words)
        self.folder.write_text("")
        seen = self.run_script()
        self.assertEqual((seen.returncode, seen.stderr.count("\n")), (2, 1), seen.stderr)


class Verdicts(unittest.TestCase):
    def check(self, raised=None, deadline_s=10):
        def run(_):
            if raised:
                raise raised
            return "note"
        return verdicts.Check("it", deadline_s, run)

    def test_each_check_has_one(self):
        for raised, wanted in ((None, "ok"), (verdicts.Failed("why"), "failed"), (verdicts.CouldNotRun("why"), "could not run"), (KeyError("x"), "failed")):
            self.assertEqual(verdicts.judge(self.check(raised), PlayedPlace(), 10).verdict, wanted)
        self.assertEqual(verdicts.judge(self.check(), PlayedPlace(left=2), 10).note, "2 processes were left running")

    def test_one_that_may_take_longer_than_what_is_left_is_not_run(self):
        played = PlayedPlace()
        results = [verdicts.judge(self.check(), played, left_s) for left_s in (10, 9, -1)]
        self.assertEqual([one.verdict for one in results], ["ok", "could not run", "could not run"])
        self.assertEqual(results[1].note, "it may take 10 s, and 9 s are left")
        self.assertEqual(played.limits, [10])

    def test_all_limits_together_are_those_of_the_run(self):
        self.assertLessEqual(place.DESCRIBE_LIMIT_S + sum(check.deadline_s for check in checks.CHECKS), main.LIMIT_S)

    def test_on_a_gpu_the_first_line_counts_verdicts(self):
        results = [verdicts.Result("a", "ok", "", 1), verdicts.Result("b", "could not run", "why", 0)]
        said = verdicts.text({"stand_ins": False, "device": "NCCL 2 on GPU 0, X"}, results, True).splitlines()
        self.assertEqual(said[0], "gpu_check on NCCL 2 on GPU 0, X: 1 ok, 0 failed, 1 could not run")
        self.assertEqual(said[-2:], ["ok             a (1 s)", "could not run  b: why (0 s)"])

    def test_the_library_beside_the_header_is_taken(self):
        with tempfile.TemporaryDirectory() as folder:
            nccl = pathlib.Path(folder, "nccl")
            self.assertEqual(place.nccl_beside_header(folder), {})
            pathlib.Path(folder, "CMakeCache.txt").write_text(f"HVD_NCCL_INCLUDE:PATH={nccl}/include\n")
            self.assertEqual(place.nccl_beside_header(folder), {})
            (nccl / "lib").mkdir(parents=True)
            (nccl / "lib/libnccl.so.2").write_text("")
            self.assertEqual(place.nccl_beside_header(folder), {"HVD_NCCL_LIBRARY": f"{nccl}/lib/libnccl.so.2"})

    def test_every_survivor_has_its_failure_within_a_second_of_the_death(self):
        self.assertIn("0.25 s and 0.90 s after the death", checks.judge_throws("failure at 100.25 s\nfailure at 100.9 s\n", 100.0, 2))
        for out, why in (("failure at 100.25 s\nfailure at 101.1 s\n", "1.10 s after the death, which may take 1 s"),
                         ("failure at 100.25 s\n", "1 of 2 survivors say when")):
            with self.assertRaises(verdicts.Failed) as seen:
                checks.judge_throws(out, 100.0, 2)
            self.assertIn(why, str(seen.exception))

    def test_losses_of_two_ranks_are_near_those_of_one(self):
        one = [1.27, 0.68, 0.5, 0.35, 0.27]
        self.assertIn("losses of one process", checks.judge_losses(one, [1.43, 0.71, 0.4, 0.28, 0.26]))
        for first, second, why in ((one, [1.3, 1.2, 1.1, 1.0, 0.9], "they part"), (one, one[:4], "each epoch"), ([1.3] * 5, [1.3] * 5, "learn")):
            with self.assertRaises(verdicts.Failed) as seen:
                checks.judge_losses(first, second)
            self.assertIn(why, str(seen.exception))


    def test_both_ranks_have_the_losses_of_one_process(self):
        said = "20 losses, from 2.5 to 0.5: those of one process, bit for bit"
        self.assertEqual(checks.judge_curve(place.Ended(0, f"{said}\n{said}\n", "")), said)
        for out in (f"{said}\n", f"{said}\n{said.replace('2.5', '2.6')}\n", "20 losses\n20 losses\n"):
            with self.assertRaises(verdicts.Failed):
                checks.judge_curve(place.Ended(0, out, ""))


class Comparisons(unittest.TestCase):
    # As nccl-tests prints them, of before and after it had a column for the root.
    PERF = """\
# nThread 1 nGpus 2 minBytes 2097152 maxBytes 33554432 step: 16(factor) warmup iters: 5 iters: 100 agg iters: 1 validation: 0 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   1887 on     host-1 device  0 [0x8d] NVIDIA H100 80GB HBM3
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     2097152        524288     float     sum      -1    40.66   51.58   90.27    N/A    40.36   51.97   90.94    N/A
    33554432       8388608     float     sum           195.40  171.72  300.51  0e+00   195.40  171.73  300.52  0e+00
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 195.5
"""

    def failure(self, function, *arguments):
        with self.assertRaises(verdicts.Failed) as seen:
            function(*arguments)
        return str(seen.exception)

    def test_rates_are_read(self):
        self.assertEqual(comparisons.peers_rates(self.PERF), {2 << 20: 90.94, 32 << 20: 300.52})
        self.assertEqual(comparisons.own_rates("1000000: 10\n1000000: 20\n2000000: 40.0\n2000000: 5\n", 2), {1000000: 50, 2000000: 50})
        self.assertAlmostEqual(comparisons.bus_gb_s(2 << 20, 40.36, 8), 90.94, places=1)
        self.assertIn("not each of 2 ranks", self.failure(comparisons.own_rates, "1000: 10\n", 2))

    def test_bandwidth_is_judged_at_each_size(self):
        judge = comparisons.judge_bandwidth
        near = [{10 << 20: 99.0, 20 << 20: 200.0}] * 5
        theirs = [{10 << 20: 100.0, 20 << 20: 201.0}] * 5
        self.assertEqual(judge(near, theirs, [10 << 20, 20 << 20]).count("met"), 2)
        self.assertIn("20 MiB 200 GB/s; beside nothing", judge(near, [], [10 << 20, 20 << 20]))
        self.assertIn("not judged (4 quiet samples", judge(near[1:], theirs[1:], [10 << 20]))
        self.assertIn("ratio 0.990 (0.990 to 0.990), at least 0.98 is wanted: met; 20 MiB", self.failure(judge, near, [{10 << 20: 100.0, 20 << 20: 300.0}] * 5, [10 << 20, 20 << 20]))
        self.assertIn("not a figure for each size", self.failure(judge, near, [{10 << 20: 100.0}], [10 << 20, 20 << 20]))

    def test_a_bucket_costs_the_host_little(self):
        rows = "event record: 1.0\nbucket: {}\nbucket's median: 2.0\nsubmit: 7.0\nlog's hop and launch: 20.0\n"
        self.assertIn("bucket 4.9 us, 4.9 times that", checks.judge_times(rows.format(4.9), False))
        self.assertIn("bucket 9.9 us", checks.judge_times(rows.format(9.9), True))
        self.assertIn("a bucket, with its launch, as a step's mean, may cost 5 us on a GPU", self.failure(checks.judge_times, rows.format(5.1), False))

    def test_a_sum_lies_within_the_compute(self):
        row = "compute 400.5 ms; sum from {} to {} ms; launched in 0.42 ms; then {}\n"
        said = checks.judge_overlap(row.format(1.25, 9.5, "computing") * 2, 2)
        self.assertEqual(said.count("a sum from 1.2 to 9.5 ms of 400.5 ms of copies, launched in 0.4 ms"), 2)
        for rows, why in ((row.format(1, 401, "computing") * 2, "did not go on beside"), (row.format(-1, 9, "computing") * 2, "did not go on beside"),
                          (row.format(1, 9, "idle") * 2, "once the copies were over"), (row.format(1, 9, "computing"), "1 of 2 ranks")):
            self.assertIn(why, self.failure(checks.judge_overlap, rows, 2))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
