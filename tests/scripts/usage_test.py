"""Each script says what it does with --help, and takes nothing that it does not know."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ("benchmark", "build", "cache_home", "check_format", "check_tidy.py", "check_tree.py", "demo", "find_torch.py", "fuzz", "gpu_check",
           "setup", "test")
PARTS = ("limits", "cxx_text.py", "cmake")  # of other scripts


def run(name, *arguments, root=ROOT, **variables):
    program = [sys.executable, "-B"] if name.endswith(".py") else []
    done = subprocess.run([*program, str(root / "scripts" / name), *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60, check=False, env={**os.environ, **variables})
    return done.returncode, done.stdout, done.stderr


class Usage(unittest.TestCase):
    def test_help_says_how_to_call_it(self):
        for name in SCRIPTS:
            for flag in ("-h", "--help"):
                status, said, error = run(name, flag)
                self.assertEqual((status, error), (0, ""), name)
                self.assertIn(f"scripts/{name}", said)
                self.assertGreater(len(said.splitlines()), 2, said)

    def test_the_table_names_them_all(self):
        rows = re.findall(r"^\| `([\w.]+)", (ROOT / "scripts/README.md").read_text().partition("\n## ")[0], re.MULTILINE)
        there = [path.name for path in (ROOT / "scripts").iterdir() if path.name not in ("README.md", "__pycache__")]
        self.assertEqual(sorted(rows), sorted(there))
        self.assertEqual(sorted(there), sorted(SCRIPTS + PARTS))

    def test_every_preset_is_named(self):
        presets = json.loads((ROOT / "CMakePresets.json").read_text())["buildPresets"]
        said = run("build", "--help")[1]
        for preset in presets:
            self.assertRegex(said, rf"\b{preset['name']}\b(?!-)")

    def test_a_tree_that_is_none_is_refused(self):
        with tempfile.TemporaryDirectory() as empty:
            for arguments in ((empty,), (empty + "/gone",), ("--typo",)):
                status, said, error = run("check_tree.py", *arguments)
                self.assertEqual((status, said), (2, ""), arguments)
                self.assertIn("is not the top of the tree", error)
            status, _, error = run("check_tidy.py", empty)
            self.assertEqual(status, 1)
            self.assertIn("has no compile_commands.json", error)
        self.assertEqual(run("check_tidy.py")[0], 2)

    def test_unknown_options_are_refused(self):
        for name in ("benchmark", "build", "cache_home", "check_format", "demo", "fuzz", "gpu_check", "setup", "test"):
            status, _, error = run(name, "--typo")
            self.assertEqual(status, 2, name)
            self.assertIn(name, error)
        for seconds in ("x", "0", "-1", "1s", ""):
            status, said, error = run("fuzz", "--seconds", seconds)
            self.assertEqual((status, said), (2, ""), seconds)
            self.assertIn("--seconds", error)

    def test_the_tests_are_not_even_set_up_for_what_is_unknown(self):
        for arguments in (("--typo",), ("-R", "x", "--typo"), ("--long", "--peers"), ("slots",), ("-R",), ("--timeout=3",)):
            status, said, error = run("test", *arguments)
            self.assertEqual((status, said), (2, ""), arguments)
            self.assertIn(arguments[-1], error)

    def test_a_container_s_limits_hold(self):
        with tempfile.TemporaryDirectory() as system:
            files = {"proc/meminfo": "MemTotal: 99999999 kB\nMemAvailable: 67108864 kB\n"}

            def limits(**more):
                for name, text in {**files, **more}.items():
                    path = pathlib.Path(system, name.replace("__", "/"))
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text)
                script = f"nproc() {{ echo 64; }}; . '{ROOT}/scripts/limits'; usable_cpus; usable_memory_gb"
                done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=60, check=True,
                                      env={**os.environ, "HVD_SYSTEM_ROOT": system})
                shutil.rmtree(system + "/sys", ignore_errors=True)
                return done.stdout.split(), done.stderr

            group = "sys__fs__cgroup__"
            self.assertEqual(limits(), (["64", "64"], ""))
            self.assertEqual(limits(**{group + "cpu.max": "150000 100000\n", group + "memory.max": f"{5 << 30}\n"}), (["2", "5"], ""))
            self.assertEqual(limits(**{group + "cpu.max": "max 100000\n", group + "memory.max": "max\n"}), (["64", "64"], ""))
            old = {group + "cpu__cpu.cfs_period_us": "100000\n", group + "memory__memory.limit_in_bytes": f"{9 << 30}\n"}
            self.assertEqual(limits(**old, **{group + "cpu__cpu.cfs_quota_us": "400000\n"}), (["4", "9"], ""))
            self.assertEqual(limits(**old, **{group + "cpu__cpu.cfs_quota_us": "-1\n"}), (["64", "9"], ""))

    def test_a_torch_whose_path_is_relative_is_refused(self):
        status, said, error = run("build", HVD_TORCH_DIR="venv/torch")
        self.assertEqual((status, said), (2, ""))
        self.assertEqual(error, "build: HVD_TORCH_DIR=venv/torch is relative; give the whole path\n")

    def test_a_build_says_what_of_others_it_has_and_that_may_be_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            cmake = pathlib.Path(folder, "cmake")
            for words, shown in (("-- Generating done", ""), ("-- LibTorch: /x\n-- CUDA: /y", "build: LibTorch: /x\nbuild: CUDA: /y\n")):
                cmake.write_text(f"#!/bin/sh\n[ $1 = --build ] || echo '{words}'\n")
                cmake.chmod(0o755)
                self.assertEqual(run("build", PATH=f"{folder}:{os.environ['PATH']}", JOBS="1"), (0, f"{shown}build: dev, 1 at once\n", ""))

    def test_the_demo_builds_what_it_runs_and_runs_what_it_says(self):
        targets = {words[0] for file in ("cli/CMakeLists.txt", "examples/CMakeLists.txt")
                   for words in (line.split() for line in re.findall(r"hvd_program\(([^)]*)", (ROOT / file).read_text())) if words}
        presets = [one["name"] for one in json.loads((ROOT / "CMakePresets.json").read_text())["buildPresets"]]
        with tempfile.TemporaryDirectory(prefix="hvd-demo-") as name:
            root = pathlib.Path(name)
            bin_folder = root / "build/release/bin"
            for folder in (root / "scripts", bin_folder):
                folder.mkdir(parents=True)
            shutil.copy(ROOT / "scripts/demo", root / "scripts/demo")
            for path in (root / "scripts/setup", root / "scripts/build", bin_folder / "hvdrun"):
                path.write_text('#!/bin/sh\necho "${0##*/} $*"\n')
                path.chmod(0o755)
            status, said, error = run("demo", root=root)
        self.assertEqual((status, error), (0, ""))
        setup, build, shown, ran = said.splitlines()
        self.assertEqual(setup, "setup ")
        _, preset, *built = build.split()
        self.assertIn(preset, presets)
        self.assertLessEqual(set(built), targets)
        self.assertEqual(shown.split("/")[-1].split(), ["mnist", "--epochs", "60"])
        self.assertEqual(ran, shown.replace(f"$ build/{preset}/bin/", ""))
        self.assertIn(shown.removeprefix("$ "), (ROOT / "README.md").read_text())


if __name__ == "__main__":
    unittest.main()
