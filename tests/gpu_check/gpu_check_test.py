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
import place
import verdicts

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, CUDA, NCCL = sys.argv[1:4]
VALUES = [f"values of {ranks} rank{'s' * (ranks > 1)}" for ranks in (1, 2, 3, 4)]


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

    def run_script(self, *words, build=BUILD, **variables):
        # A machine's own GPU is none of this test's.
        environment = {**os.environ, "PATH": "/usr/bin:/bin", "HVD_CUDA_LIBRARY": CUDA, "HVD_NCCL_LIBRARY": NCCL, **variables}
        return subprocess.run([sys.executable, "-B", str(ROOT / "scripts/gpu_check"), "--output", str(self.folder), "--build", build, *words],
                              env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400, check=False)

    def report(self):
        """(text, JSON, verdicts by name)"""
        content = json.loads((self.folder / "gpu_check.json").read_text())
        return (self.folder / "gpu_check.txt").read_text(), content, {one["name"]: one["verdict"] for one in content["checks"]}

    def test_all_checks_over_stand_ins(self):
        seen = self.run_script()
        said, content, verdict = self.report()
        self.assertEqual(seen.returncode, 0, seen.stdout + seen.stderr)
        self.assertEqual(seen.stdout, said)
        self.assertIn("STAND-INS", said.splitlines()[0])
        self.assertIn("no evidence", said.splitlines()[0])
        self.assertEqual((content["evidence"], content["complete"]), (False, True))
        self.assertEqual(list(verdict), [check.name for check in checks.CHECKS])
        ran = [*VALUES, "a rank killed in a sum", "an epoch that a rank ends", "host time of a launch"]
        self.assertEqual([name for name, word in verdict.items() if word == "ok"], ran, said)
        self.assertEqual({word for name, word in verdict.items() if name not in ran}, {"could not run"}, said)
        self.assertRegex(content["device"], r"^NCCL 2\.28\.9 on GPU 0, NVIDIA Stand-in$")
        self.assertTrue({"driver", "commit", "build"} <= content.keys(), content)
        self.assertRegex(said, r"host time of a launch: event record [\d.]+ us; submit [\d.]+ us, [\d.]+ times that; log's hop and launch")

    def test_an_error_of_nccls_is_a_failure_in_its_words(self):
        seen = self.run_script("--only", "values of 2", HVD_STANDIN_FAIL_CALL="ncclAllReduce:3:2")
        self.assertEqual(seen.returncode, 1, seen.stderr)
        self.assertRegex(self.report()[0], r"(?m)^failed +values of 2 ranks: exit status 3: .*ncclAllReduce fails as it was told to")

    def test_a_job_that_does_not_end_is_a_failure(self):
        seen = self.run_script("--only", "values of", "--seconds", "6", HVD_STANDIN_INIT_HANGS="1")
        self.assertEqual(seen.returncode, 1, seen.stderr)
        said, _, verdict = self.report()
        self.assertEqual([verdict[name] for name in VALUES], ["failed", *["could not run"] * 3], said)
        self.assertRegex(said, "no end after [456] s")
        self.assertIn("no time was left for it", said)

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
            self.assertEqual(verdicts.judge(self.check(raised), PlayedPlace(), 5).verdict, wanted)
        self.assertEqual(verdicts.judge(self.check(), PlayedPlace(left=2), 5).note, "2 processes were left running")

    def test_the_shorter_limit_counts(self):
        played = PlayedPlace()
        for left_s in (5, 50):
            verdicts.judge(self.check(), played, left_s)
        self.assertEqual(played.limits, [5, 10])
        self.assertEqual(verdicts.judge(self.check(), played, -1).verdict, "could not run")

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

    def test_losses_of_two_ranks_are_near_those_of_one(self):
        one = [1.27, 0.68, 0.5, 0.35, 0.27]
        self.assertIn("losses of one process", checks.judge_losses(one, [1.43, 0.71, 0.4, 0.28, 0.26]))
        for first, second, why in ((one, [1.3, 1.2, 1.1, 1.0, 0.9], "they part"), (one, one[:4], "each epoch"), ([1.3] * 5, [1.3] * 5, "learn")):
            with self.assertRaises(verdicts.Failed) as seen:
                checks.judge_losses(first, second)
            self.assertIn(why, str(seen.exception))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
