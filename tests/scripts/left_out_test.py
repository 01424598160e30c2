"""scripts/test lists by name what it left out, and in CI takes none that was left out for want of something.

usage: left_out_test.py CTEST. Setup, build and the tests are played by this one.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

CTEST = pathlib.Path(sys.argv[1])
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/test"
BUILD = """#!/bin/sh
# $1 is the preset. Each build has a test, dev also a long one and one that leaves a case of its own out.
mkdir -p build/$1 && cp wanting-$1 build/$1/tests_left_out.txt
echo "add_test($1.plain true)" >build/$1/CTestTestfile.cmake
[ $1 = dev ] || exit 0
cat >>build/$1/CTestTestfile.cmake <<'END'
add_test(dev.long true)
set_tests_properties(dev.long PROPERTIES LABELS long)
add_test(dev.case sh -c "cat case-left-out >>$HVD_TESTS_LEFT_OUT")
END
"""


class LeftOut(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hvd-left-out-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "scripts").mkdir()
        for name in ("test", "limits"):
            shutil.copy(SCRIPT.with_name(name), self.folder / "scripts" / name)
        self.program("setup", "#!/bin/sh\n")
        self.program("build", BUILD)
        for preset in ("dev", "asan", "tsan", "asan-torch"):
            self.wanting(preset, "")
        self.case("")

    def program(self, name, text):
        path = self.folder / "scripts" / name
        path.write_text(text)
        path.chmod(0o755)

    def wanting(self, preset, text):
        (self.folder / f"wanting-{preset}").write_text(text)

    def case(self, text):
        (self.folder / "build/test").mkdir(parents=True, exist_ok=True)
        for folder in ("build/dev", "build/test"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        (self.folder / "build/dev/case-left-out").write_text(text)

    def run_tests(self, *arguments, **more):
        variables = {"PATH": f"{CTEST.parent}:{os.environ['PATH']}", "HOME": str(self.folder), **more}
        done = subprocess.run([str(self.folder / "scripts/test"), *arguments], env=variables, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
        listed = re.search(r"^Left out of this run:\n((?:  .*\n)+)", done.stdout, re.MULTILINE)
        return done.returncode, listed[1].split("\n")[:-1] if listed else [], done.stdout

    def test_the_short_run_says_what_the_long_one_has(self):
        status, listed, said = self.run_tests(CI="true")
        self.assertEqual((status, listed), (0, ["  scripts/test --long runs: dev.long"]), said)
        self.assertRegex(said, r"100% tests passed, 0 tests failed out of 4")

    def test_the_long_run_leaves_out_nothing(self):
        for arguments in (["--long"], ["-j", "2", "--long", "-VV"]):
            status, listed, said = self.run_tests(*arguments, CI="true")
            self.assertEqual((status, listed), (0, []), said)
            self.assertRegex(said, r"100% tests passed, 0 tests failed out of 5")

    def test_what_is_for_ctest_gets_there(self):
        status, listed, said = self.run_tests("-R", r"plain|long$", "--long", "-E", "asan", "--repeat", "until-fail:2")
        self.assertEqual((status, listed), (0, []), said)
        self.assertRegex(said, r"100% tests passed, 0 tests failed out of 3")
        self.assertEqual(said.count("Start "), 6, said)

    def test_what_is_excluded_by_its_label_is_so_beside_the_long_ones(self):
        self.program("build", BUILD.replace("END\n", "set_tests_properties(dev.case PROPERTIES LABELS slow)\nEND\n"))
        status, _, said = self.run_tests("-LE", "slow", "-LE", "nothing")
        self.assertEqual(status, 0, said)
        self.assertRegex(said, r"100% tests passed, 0 tests failed out of 3")
        self.assertRegex(self.run_tests("--long", "-LE", "slow")[2], r"100% tests passed, 0 tests failed out of 4")

    def test_what_a_build_lacks_a_program_for_is_listed_and_refused_in_ci(self):
        self.wanting("dev", "e2e.ddp: no python3\n")
        status, listed, said = self.run_tests("--long")
        self.assertEqual((status, listed), (0, ["  e2e.ddp: no python3"]), said)
        status, _, said = self.run_tests(CI="true")
        self.assertEqual(status, 1, said)
        self.assertIn("  e2e.ddp: no python3", said)
        self.assertNotIn("tests passed", said)  # nothing was run in vain

    def test_what_a_case_has_no_right_for_is_listed_and_refused_in_ci(self):
        self.case("e2e.worker_start: one static file: not root\n")
        status, listed, said = self.run_tests("--long")
        self.assertEqual((status, listed), (0, ["  e2e.worker_start: one static file: not root"]), said)
        status, _, said = self.run_tests("--long", CI="true")
        self.assertEqual(status, 1, said)
        self.assertIn("in CI no test may be left out", said)

    def test_a_test_that_fails_fails_the_run(self):
        self.assertEqual(self.run_tests("-R", "plain")[0], 0)
        self.program("build", BUILD.replace("plain true", "plain false"))
        self.assertNotEqual(self.run_tests()[0], 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
