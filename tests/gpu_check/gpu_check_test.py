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
import unittest.mock

import checks
import comparisons
import deaths
import environment
import facts
import main
import place
import torch_part
import traces
import verdicts

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, CUDA, NCCL = sys.argv[1:4]
VALUES = [f"values of {ranks} rank{'s' * (ranks > 1)}" for ranks in (1, 2, 3, 4)]
DEATHS = ["a rank killed in a sum", "a rank killed in steps of buckets", "a rank killed while NCCL connects", "a rank killed in an abort of NCCL"]

# Answers whatever is asked about the GPU that the driver's stand-in has.
NVIDIA_SMI = """\
#!{python}
import sys
GPU = {{"index": "0", "uuid": "GPU-5f3a", "name": "NVIDIA Stand-in", "pci.bus_id": "00000000:10:00.0", "memory.free": "8000", "memory.total": "8192",
       "mig.mode.current": "Disabled", "driver_version": "580.95.05", "compute_mode": "{mode}", "persistence_mode": "Enabled"}}
USES = [{{"gpu_uuid": "GPU-5f3a", "pid": "4321", "process_name": "python3", "used_memory": "512"}},
        {{"gpu_uuid": "GPU-77b1", "pid": "4322", "process_name": "other", "used_memory": "1"}}]
asked, _, fields = sys.argv[1].partition("=")
if asked.startswith("--query-"):
    for row in USES if asked == "--query-compute-apps" else [GPU]:
        print(", ".join(row[name] for name in fields.split(",")))
elif asked == "topo":
    print("\\tGPU0\\t\\n GPU0\\tX\\t\\n\\nLegend:")
else:
    print("GPU 0: NVIDIA Stand-in (UUID: GPU-5f3a)")
"""


def with_limits(seconds):
    """What scripts/gpu_check does, with this limit of each check."""
    return f"import main; main.CHECKS = [one._replace(deadline_s={seconds}) for one in main.CHECKS]; sys.exit(main.main(sys.argv[1:]))"


class PlayedPlace:
    """Stands for what a check is given."""

    def __init__(self, left=(), ran=()):
        self.limits, self.left, self.ran = [], list(left), list(ran)

    def run(self, _, **_variables):
        return self.ran.pop(0)

    def has(self, _):
        return True

    def program(self, name):
        return name

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
        """A variable that is None is taken out."""
        # A machine's own GPU is none of this test's.
        given = {**os.environ, "PATH": "/usr/bin:/bin", "HVD_CUDA_LIBRARY": CUDA, "HVD_NCCL_LIBRARY": NCCL, **variables}
        script = ["-c", f"import sys; sys.path.insert(0, {str(ROOT / 'tests/gpu_check')!r}); {code}"] if code else [str(ROOT / "scripts/gpu_check")]
        return subprocess.run([sys.executable, "-B", *script, "--output", str(self.folder), "--build", str(build), *words],
                              env={name: value for name, value in given.items() if value is not None},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400, check=False)

    def write_program(self, name, text):
        path = pathlib.Path(self.folder.parent, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def nvidia_smi(self, mode):
        return f"{self.write_program('nvidia-smi', NVIDIA_SMI.format(python=sys.executable, mode=mode)).parent}:/usr/bin:/bin"

    def report(self):
        """(text, JSON, verdicts by name)"""
        content = json.loads((self.folder / "gpu_check.json").read_text())
        return (self.folder / "gpu_check.txt").read_text(), content, {one["name"]: one["verdict"] for one in content["checks"]}

    def test_all_checks_over_stand_ins(self):
        """Their limits are for a GPU's machine, which has nothing else to do."""
        seen = self.run_script("--seconds", "390", code=with_limits(100), PATH=self.nvidia_smi("Default"), NCCL_DEBUG="INFO", CUDA_VISIBLE_DEVICES="0")
        said, content, verdict = self.report()
        self.assertEqual(seen.returncode, 0, seen.stdout + seen.stderr)
        self.assertEqual(seen.stdout, said)
        self.assertIn("STAND-INS", said.splitlines()[0])
        self.assertIn("no evidence", said.splitlines()[0])
        self.assertEqual((content["evidence"], content["complete"]), (False, True))
        self.assertEqual(list(verdict), [check.name for check in checks.CHECKS])
        ran = ["hvdrun devices", *VALUES, *DEATHS, "an epoch that a rank ends", "host time of a launch", "a sum beside compute"]
        self.assertEqual([name for name, word in verdict.items() if word == "ok"], ran, said)
        self.assertEqual({word for name, word in verdict.items() if name not in ran}, {"could not run"}, said)
        self.assertRegex(content["device"], r"^NCCL 2\.28\.9 on GPU 0, NVIDIA Stand-in$")
        self.assertTrue({"date", "hostname", "commit", "build", "torch", "mps", "kernel_driver"} <= content.keys(), content)
        self.assertEqual({name: content[name] for name in ("uuid", "compute_mode", "mig", "free_memory", "other_processes", "driver_library", "nccl_library")},
                         {"uuid": "GPU-5f3a", "compute_mode": "Default", "mig": "Disabled", "free_memory": "8000 of 8192 MiB",
                          "other_processes": ["python3 (4321), 512 MiB"], "driver_library": CUDA, "nccl_library": NCCL})
        self.assertIn("NCCL_DEBUG", content["variables_left_out"])
        self.assertTrue({"CUDA_VISIBLE_DEVICES=0", f"HVD_CUDA_LIBRARY={CUDA}"} <= set(content["variables"]), content)
        for name in DEATHS:
            self.assertRegex(said, rf"{name}: survivors had their CommFailure -?[\d.]+ s and -?[\d.]+ s after the death; all ended after")
        self.assertRegex(said, r"a sum beside compute: a sum from [\d.]+ to [\d.]+ ms of [\d.]+ ms of copies, launched in [\d.]+ ms; a sum ")
        self.assertRegex(said, r"bus bandwidth beside nccl-tests: there is one GPU ")
        self.assertRegex(said, r"host time of a launch: event record [\d.]+ us; bucket [\d.]+ us, [\d.]+ times that; bucket's median [\d.]+ us, [\d.]+ times that; submit [\d.]+ us, [\d.]+ times that; log's hop and launch")

    def test_where_a_sum_takes_long_fewer_are_timed(self):
        """As on a GPU that ranks share."""
        self.run_script("--only", "host time", code=with_limits(100), HVD_STANDIN_SLOW_US="16000")
        self.assertRegex(self.report()[0], r"ok +host time of a launch: .* of 20 steps; ")

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
        for rate, verdict, words in ((None, "could not run", r"1 MiB [\d.]+ GB/s; beside nothing, as there is no all_reduce_perf"),
                                     (1e-6, "ok", r"1 MiB: hvd and nccl-tests [\d.]+ and 1e-06 GB/s, ratio [\d.]+ .* is wanted: met "),
                                     (1e6, "failed", r"1 MiB: hvd and nccl-tests .* at least 0.98 is wanted: missed ")):
            if rate:
                self.write_program("all_reduce_perf", f"#!/bin/sh\n[ \"$*\" = '-g 4 -b 1048576 -e 1048576 -f 16 -w 5 -n 3 -c 0' ] || exit 1\n"
                                   f"echo '# a header'\necho '1048576 262144 float sum -1 9.9 1.0 2.0 N/A 9.8 1.0 {rate} N/A'\n")
            seen = self.run_script("--only", "bus bandwidth", HVD_STANDIN_DEVICES="4", PATH=f"{self.folder.parent}:/usr/bin:/bin")
            said, _, verdicts_seen = self.report()
            self.assertEqual((list(verdicts_seen.values()), seen.returncode), ([verdict], int(verdict == "failed")), said)
            self.assertRegex(said, words)

    def test_ranks_share_no_gpu_that_takes_one_process(self):
        self.run_script("--only", "an epoch", PATH=self.nvidia_smi("Exclusive_Process"))
        said, content, seen = self.report()
        self.assertEqual((list(seen.values()), content["compute_mode"]), (["could not run"], "Exclusive_Process"), said)
        self.assertIn("the GPU's compute mode is Exclusive_Process", said)

    def test_stand_ins_are_known_by_any_name(self):
        (self.folder.parent / "libcuda.so.1").symlink_to(CUDA)
        (self.folder.parent / "libnccl.so.2").symlink_to(NCCL)
        self.run_script("--only", "bus bandwidth", HVD_CUDA_LIBRARY=None, HVD_NCCL_LIBRARY=None, LD_LIBRARY_PATH=str(self.folder.parent))
        said, content, _ = self.report()
        self.assertIn("STAND-INS", said.splitlines()[0])
        self.assertEqual((content["evidence"], content["stand_ins"]), (False, True))

    def test_without_a_gpu_it_says_so_in_a_line_and_in_the_report(self):
        for variables, words in (({"HVD_CUDA_LIBRARY": "/gone/libcuda.so"}, "there is no GPU here: the CUDA driver cannot be loaded: "),
                                 ({"HVD_STANDIN_INIT_RESULT": "100"}, "there is no GPU here: CUDA cannot be used here: "),
                                 ({"HVD_STANDIN_DEVICES": "0"}, "there is no GPU here: "),
                                 ({"HVD_NCCL_LIBRARY": "/gone/libnccl.so"}, "no GPU can be used here: NCCL cannot be loaded: ")):
            self.nothing_is_checked(self.run_script(**variables), words)

    def nothing_is_checked(self, seen, words):
        self.assertEqual((seen.returncode, seen.stdout, seen.stderr.count("\n")), (3, "", 1), seen.stderr)
        self.assertTrue(seen.stderr.startswith(f"gpu_check: {words}"), seen.stderr)
        said, content, verdict = self.report()
        self.assertTrue(said.startswith("gpu_check: nothing was checked: "), said)
        self.assertFalse(content["evidence"])
        self.assertEqual(set(verdict.values()), {"could not run"})
        self.assertEqual(list(verdict), [check.name for check in checks.CHECKS])
        self.assertIn(words, content["checks"][0]["note"])

    def test_a_worker_that_does_not_say_what_there_is(self):
        """As where the driver hangs, or the tree was moved to a machine that lacks a library."""
        build = self.folder.parent / "build"
        self.write_program("build/bin/hvdrun", "")
        quick = "import facts; facts.DEVICE_LIMIT_S = 1; import main; sys.exit(main.main(sys.argv[1:]))"
        for script, words in (("exec sleep 1000", "no GPU can be used here, CUDA or NCCL does not answer: no end after 1 s"),
                              ("echo 'NCCL INFO nothing'; echo 'device: X'", "device_worker does not tell PCI, GPUs, CUDA, driver library")):
            self.write_program("build/bin/device_worker", f"#!/bin/sh\n{script}\n")
            self.nothing_is_checked(self.run_script(build=build, code=quick), words)
        self.write_program("build/bin/device_worker", "#!/bin/sh\necho 'libhvd.so.0.1: cannot open shared object file' >&2; exit 127\n")
        seen = self.run_script(build=build)
        self.assertEqual((seen.returncode, seen.stderr), (2, "gpu_check: device_worker does not start: libhvd.so.0.1: cannot open shared object file\n"))

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
        self.assertEqual(verdicts.judge(self.check(), PlayedPlace(left=["x (2)", "y (3)"]), 10).note, "left running: x (2), y (3)")

    def test_one_that_may_take_longer_than_what_is_left_is_not_run(self):
        played = PlayedPlace()
        results = [verdicts.judge(self.check(), played, left_s) for left_s in (10, 9, -1)]
        self.assertEqual([one.verdict for one in results], ["ok", "could not run", "could not run"])
        self.assertEqual(results[1].note, "it may take 10 s, and 9 s are left")
        self.assertEqual(played.limits, [10])

    def test_all_limits_together_are_those_of_the_run(self):
        self.assertLessEqual(facts.DESCRIBE_LIMIT_S + sum(check.deadline_s for check in checks.CHECKS), main.LIMIT_S)

    def test_on_a_gpu_the_first_line_counts_verdicts(self):
        results = [verdicts.Result("a", "ok", "", 1), verdicts.Result("b", "could not run", "why", 0)]
        said = verdicts.text({"stand_ins": False, "device": "NCCL 2 on GPU 0, X"}, results, True).splitlines()
        self.assertEqual(said[0], "gpu_check on NCCL 2 on GPU 0, X: 1 ok, 0 failed, 1 could not run")
        self.assertEqual(said[-2:], ["ok             a (1 s)", "could not run  b: why (0 s)"])

    def test_each_survivor_has_its_failure_within_a_second_of_the_death(self):
        blamed = 'allreduce "sum" failed: rank 1 died\n' * 2
        first = "hvdrun: first failure: rank 1 (pid 7) on localhost was killed by SIGKILL after 0.040 s\n"
        good = place.Ended(137, "failure at 100.25 s\nNCCL INFO x\nfailure at 100.9 s\n", blamed + first)
        self.assertIn("0.25 s and 0.90 s after the death; all ended after 2.00 s", deaths.judge(good, 100.0, 2.0, 1))
        for bad, took_s, to_blame, why in ((good._replace(out="failure at 100.25 s\nfailure at 101.1 s\n"), 2, 1, "1.10 s after the death, which may take 1 s"),
                                           (good._replace(out="failure at 100.25 s\n"), 2, 1, "1 of 2 survivors say when"),
                                           (good, 11, 1, "all ended after 11.00 s"), (good, 2, 2, "0 of 2 survivors blame rank 2"),
                                           (good._replace(err=blamed), 2, 1, "no first failure of rank 1"), (good._replace(status=3), 2, 1, "exit status 3")):
            with self.assertRaises(verdicts.Failed) as seen:
                deaths.judge(bad, 100.0, took_s, to_blame)
            self.assertIn(why, str(seen.exception))

    def test_losses_of_two_ranks_are_near_those_of_one(self):
        one = [1.27, 0.68, 0.5, 0.35, 0.27]
        self.assertIn("losses of one process", checks.judge_losses(one, [1.43, 0.71, 0.4, 0.28, 0.26]))
        for first, second, why in ((one, [1.3, 1.2, 1.1, 1.0, 0.9], "they part"), (one, one[:4], "each epoch"), ([1.3] * 5, [1.3] * 5, "learn")):
            with self.assertRaises(verdicts.Failed) as seen:
                checks.judge_losses(first, second)
            self.assertIn(why, str(seen.exception))

    def test_what_trains_on_the_cpu_is_no_training_on_a_gpu(self):
        rate = "Img/sec per {0}: 9.0 +-1.0\nTotal img/sec on {1} {0}(s): 17.9 +-0.1\n"
        self.assertEqual(checks.rate_on_gpus(place.Ended(0, rate.format("GPU", 2), ""), 2), "17.9")
        for out in (rate.format("CPU", 2), rate.format("GPU", 1), ""):
            with self.assertRaises(verdicts.Failed):
                checks.rate_on_gpus(place.Ended(0, out, ""), 2)
        with tempfile.NamedTemporaryFile() as checkpoint:
            with self.assertRaises(verdicts.Failed):
                checks.need_gpu(checkpoint.name)
            pathlib.Path(checkpoint.name).write_bytes(b"X\x06\0\0\0cuda:0q")
            checks.need_gpu(checkpoint.name)

    def test_both_ranks_have_the_losses_of_one_process(self):
        said = "20 losses, from 2.5 to 0.5: those of one process, bit for bit"
        self.assertEqual(checks.judge_curve(place.Ended(0, f"{said}\nvm:1 NCCL INFO x\n{said}\n", "")), said)
        for out in (f"{said}\n", f"{said}\n{said.replace('2.5', '2.6')}\n", "20 losses\n20 losses\n"):
            with self.assertRaises(verdicts.Failed):
                checks.judge_curve(place.Ended(0, out, ""))


class Places(unittest.TestCase):
    def setUp(self):
        self.place = place.Place(BUILD)
        self.place.begin(60)
        self.addCleanup(self.place.end_all)

    def test_only_what_goes_on_is_left_running(self):
        """Not the dead, nor what ends by itself in a moment."""
        if not os.fork():
            os._exit(0)
        self.place.run(["sh", "-c", "sleep 0.1 & exec >&- 2>&-"])
        self.assertEqual(self.place.end_all(), [])
        self.place.run(["sh", "-c", "exec >&-; sleep 1000 &"])
        self.assertRegex(" ".join(self.place.end_all()), r"^sleep \(\d+\)$")
        self.assertEqual(place.running_below(), [])

    def test_a_job_is_read_whatever_it_says_beside(self):
        script = "head -c 1000000 /dev/zero >&2; echo noise; echo 'line 1'; read word; echo \"said $word\"; echo last"
        with unittest.mock.patch.object(self.place, "command", lambda _, *words: [*words]):
            job = self.place.start(1, "sh", "-c", script)
        self.assertEqual(self.place.next_line(job, r"line (\d)")[1], "1")
        job.say("yes\n")
        self.assertEqual(self.place.next_line(job, r"said (.*)")[1], "yes")
        ended = self.place.finish(job)
        self.assertEqual((ended.status, ended.out, len(ended.err)), (0, "last\n", 1000000))

    def test_a_line_that_does_not_come_is_a_failure(self):
        with unittest.mock.patch.object(self.place, "command", lambda _, *words: [*words]):
            ended, hangs = self.place.start(1, "sh", "-c", "echo why >&2; exit 3"), self.place.start(1, "sleep", "1000")
        for job, why in ((ended, "exit status 3: why"), (hangs, "no end after 0 s: sleep 1000")):
            with self.assertRaisesRegex(verdicts.Failed, why):
                self.place.next_line(job, "line")
            self.place.begin(0.05)


class Surroundings(unittest.TestCase):
    def test_settings_of_the_caller_that_decide_verdicts_are_left_out(self):
        decides = ["CUDA_LAUNCH_BLOCKING", "HOROVOD_FUSION_THRESHOLD", "HVD_FAULT_POINT", "NCCL_DEBUG", "TORCH_NCCL_BLOCKING_WAIT"]
        kept = {"CUDA_VISIBLE_DEVICES": "1", "HVD_CUDA_LIBRARY": "a", "HVD_NCCL_LIBRARY": "b", "HVD_STANDIN_DEVICES": "2", "PATH": "c"}
        self.assertEqual(environment.split({**kept, **dict.fromkeys(decides, "1")}), (kept, decides))
        self.assertEqual(environment.shown(kept), [f"{name}={value}" for name, value in kept.items() if name != "PATH"])

    def test_nccls_library_lies_beside_the_header_or_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertIsNone(environment.nccl_library(folder, ""))
            torch = pathlib.Path(folder, "site-packages", "torch")
            pathlib.Path(folder, "CMakeCache.txt").write_text(f"HVD_NCCL_INCLUDE:PATH={folder}/nccl/include\n")
            for place_of in ("site-packages/nvidia/nccl/lib", "nccl/lib/x86_64-linux-gnu", "nccl/lib", "nccl/lib64"):
                library = pathlib.Path(folder, place_of, "libnccl.so.2")
                library.parent.mkdir(parents=True, exist_ok=True)
                library.write_text("")
                self.assertEqual(environment.nccl_library(folder, str(torch)), str(library))

    def test_why_torchs_cuda_part_cannot_be_loaded(self):
        part = torch_part.TorchPart("/t", "2.11.0", "/t/lib/libtorch_cuda.so")
        usage = place.Ended(1, "", "usage: device_steps copies\n")
        self.assertEqual(torch_part.tried(PlayedPlace(ran=[usage]), part), part)
        refused = usage._replace(err="ERROR: ld.so: object '/t' from LD_PRELOAD cannot be preloaded\n" + usage.err)
        ldd = place.Ended(0, "\tlibcudnn.so.9 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\tlibcublas.so.13 => not found\n", "")
        why = torch_part.tried(PlayedPlace(ran=[refused, ldd]), part).why_not
        self.assertEqual(why, "LibTorch's CUDA part cannot be loaded, not found: libcudnn.so.9, libcublas.so.13; scripts/setup --peers installs a whole one")
        symbol = place.Ended(127, "", "device_steps: symbol lookup error: undefined symbol: x\n")
        self.assertIn("undefined symbol", torch_part.tried(PlayedPlace(ran=[symbol, place.Ended(0, "", "")]), part).why_not)

    def test_under_mps_a_gpu_takes_several_processes_in_any_mode(self):
        answers = [place.Ended(0, "GPU-1, 00000000:10:00.0, Exclusive_Process, Disabled, 1, 2, Enabled\n", ""), place.Ended(0, "", "")]
        for variables, alone in (({"CUDA_MPS_PIPE_DIRECTORY": "/mps"}, False), ({}, True)):
            played = PlayedPlace(ran=answers)
            played.environment = variables
            with unittest.mock.patch.object(os, "listdir", lambda _: []):
                facts.use(played, "0000:10:00.0")
            self.assertEqual(played.exclusive, alone)

    def test_a_tree_that_is_no_checkout_has_the_callers_commit(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(place, "ROOT", folder):
            self.assertEqual((facts.commit_of("abc"), facts.commit_of("")), ("abc", "unknown"))


class Traces(unittest.TestCase):
    STEPS, BUCKETS = 2, 3

    def rows(self, rank, shift_us=0, more=()):
        """Steps in which each bucket's sum begins within the backward pass of the next; a step's last one has none beside it."""
        rows = [f"rank {rank}: {self.STEPS} steps of {self.BUCKETS} buckets", *(f"rank {rank}: {row}" for row in more)]
        for step in range(self.STEPS):
            for bucket in range(self.BUCKETS):
                at = 1000 * step + 100 * bucket
                rows += [f"rank {rank}: kernel {at}.0 {at + 80}.0 void gemm<float, 1>", f"rank {rank}: kernel {at + 80}.0 {at + 85}.0 hvd_cast",
                         f"rank {rank}: kernel {at + 90 + shift_us}.0 {at + 120 + shift_us}.0 ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"]
        return rows

    def judge(self, **changed):
        rows = self.rows(0) + self.rows(1, **changed)
        return traces.judge(place.Ended(0, "\n".join([*rows, "rank 0: copy 1.0 2.0 Memcpy DtoH (Device -> Pinned)"]) + "\n", ""))

    def test_kernels_and_copies_are_counted(self):
        said = self.judge()
        for rank in (0, 1):
            self.assertIn(f"rank {rank}: 2 steps of 3 buckets, 6 kernels of NCCL's, 6 hvd_cast, 0 copies within the device; all 4 sums before a step's last one ran beside the backward pass", said)

    def test_what_should_not_be_is_a_failure(self):
        for changed, why in (({"more": ["copy 1.0 2.0 Memcpy DtoD (Device -> Device)"]}, "something is copied within the device"),
                             ({"more": ["kernel 1.0 2.0 hvd_cast"]}, "more than one kernel that copies"),
                             ({"more": ["kernel 1.0 2.0 ncclDevKernel_Broadcast"]}, "more than one kernel of NCCL's"),
                             ({"shift_us": 400}, "0 of 4 sums before a step's last one ran beside")):
            with self.assertRaisesRegex(verdicts.Failed, why):
                self.judge(**changed)

    def test_a_record_that_lacks_something_is_no_verdict(self):
        head = "rank 0: 2 steps of 3 buckets\nrank 1: 2 steps of 3 buckets\n"
        with self.assertRaisesRegex(verdicts.CouldNotRun, "nothing: ERROR of CUPTI"):
            traces.judge(place.Ended(0, head, "hvdrun: note\nERROR of CUPTI\n"))
        with self.assertRaisesRegex(verdicts.CouldNotRun, "not told of all sums"):
            traces.judge(place.Ended(0, head + "rank 0: kernel 1.0 2.0 gemm\nrank 1: kernel 1.0 2.0 gemm\n", ""))


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
        self.assertEqual(comparisons.own_rates("1000000: 10\nvm:7 NCCL INFO 1: 2\n1000000: 20\n2000000: 40.0\n2000000: 5\n", 2), {1000000: 50, 2000000: 50})
        self.assertAlmostEqual(comparisons.bus_gb_s(2 << 20, 40.36, 8), 90.94, places=1)
        self.assertIn("not each of 2 ranks", self.failure(comparisons.own_rates, "", 2))
        self.assertIn("not each of 2 ranks", self.failure(comparisons.own_rates, "1000: 10\n", 2))

    def test_bandwidth_is_judged_at_each_size(self):
        judge = comparisons.judge_bandwidth
        near = [{10 << 20: 99.0, 20 << 20: 200.0}] * 5
        theirs = [{10 << 20: 100.0, 20 << 20: 201.0}] * 5
        self.assertEqual(judge(near, theirs, [10 << 20, 20 << 20]).count("met"), 2)
        for why, ours, peers, sizes in (("20 MiB 200 GB/s; beside nothing", near, [], [10 << 20, 20 << 20]), ("not judged \\(4 quiet samples", near[1:], theirs[1:], [10 << 20])):
            with self.assertRaisesRegex(verdicts.CouldNotRun, why):
                judge(ours, peers, sizes)
        self.assertIn("ratio 0.990 (0.990 to 0.990), at least 0.98 is wanted: met; 20 MiB", self.failure(judge, near, [{10 << 20: 100.0, 20 << 20: 300.0}] * 5, [10 << 20, 20 << 20]))
        self.assertIn("not a figure for each size", self.failure(judge, near, [{10 << 20: 100.0}], [10 << 20, 20 << 20]))

    def test_a_bucket_costs_the_host_little(self):
        rows = "event record: 1.0\nbucket: {}\nbucket's median: 2.0\nsubmit: 7.0\nlog's hop and launch: 20.0\nsteps: 100\n"
        self.assertIn("bucket 4.9 us, 4.9 times that", checks.judge_times(rows.format(4.9), False))
        self.assertIn("bucket 9.9 us", checks.judge_times("vm:1 NCCL INFO a: b\n" + rows.format(9.9), True))
        self.assertIn("not a time of each", self.failure(checks.judge_times, "bucket: 1.0\n", False))
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
