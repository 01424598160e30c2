"""An installed copy is whole: examples built outside the tree against it run under the installed hvdrun.

usage: install_test.py BUILD CMAKE WITH_TORCH(0 or 1) WITH_CUDA(0 or 1)
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, CMAKE, WITH_TORCH, WITH_CUDA = sys.argv[1], sys.argv[2], sys.argv[3] == "1", sys.argv[4] == "1"
SECONDS = 480
# What libhvd shows beside its API: its torch layer is a library of its own.
FOR_THE_TORCH_LIBRARY = {"Context", "Engine", "context", "check_failed", "throw_forked", "ProcessMark", "layout_difference"}
SAME_BUILD = re.compile(r"hvd_of_the_same_build_[0-9a-f]{16}")
# What the examples print alone and with two ranks.
ALLREDUCE = (r"^1 ranks: 1\n$", r"(?m)^\[0\]<stdout>:2 ranks: 3$")
README = (r"^0\n$", r"(?m)^\[0\]<stdout>:1$")
LINEAR = (r"^y = 2\.00 x \+ 1\.00\n$", r"(?m)^\[0\]<stdout>:y = 2\.00 x \+ 1\.00$")


def run(*command, **options):
    """The command's output; fails with all of it when the command fails."""
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        text=True, timeout=SECONDS, check=False, **options,
    )
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def readme_program():
    """The whole program among the examples of the README."""
    blocks = re.findall(r"^```cpp\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (program,) = [block for block in blocks if "int main" in block]
    return program


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="hvd-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.prefix = cls.folder / "a prefix"
        run(CMAKE, "--install", BUILD, "--prefix", cls.prefix)
        cls.lib = next(cls.prefix.glob("lib*/**/libhvd.so")).parent

    def test_what_is_installed_is_the_product_and_nothing_internal(self):
        files = {path.relative_to(self.prefix).as_posix() for path in self.prefix.rglob("*") if not path.is_dir()}
        files = {re.sub(r"^lib/[^/]+-linux-gnu/", "lib/", name) for name in files}
        wanted = {"bin/hvdrun", "include/hvd/hvd.h", "lib/libhvd.so", "lib/cmake/hvd/hvdConfig.cmake", "lib/pkgconfig/hvd.pc"}
        if WITH_TORCH:
            wanted |= {"include/hvd/torch.h", "lib/libhvd_torch.so"}
        if WITH_CUDA:
            wanted |= {"lib/libhvd_nccl.so"}
        self.assertLessEqual(wanted, files)
        allowed = r"bin/hvdrun|include/hvd/\w+\.h|lib/libhvd(_torch)?\.so[.\d]*|lib/libhvd_nccl\.so|lib/cmake/hvd/hvdConfig\w*\.cmake|lib/pkgconfig/hvd\.pc|share/man/man1/hvdrun\.1"
        self.assertEqual([name for name in sorted(files) if not re.fullmatch(allowed, name)], [])
        self.assertEqual("include/hvd/torch.h" in files, WITH_TORCH)
        self.assertEqual("lib/libhvd_nccl.so" in files, WITH_CUDA)

    def test_installed_headers_include_none_of_the_tree(self):
        for header in self.prefix.glob("include/hvd/*.h"):
            for path in re.findall(r'#\s*include\s*[<"]([^>"]+)', header.read_text()):
                self.assertNotRegex(path, r"^(runtime|collectives|rendezvous|cli)/", header.name)

    def test_the_library_needs_the_c_and_cxx_libraries_only(self):
        dynamic = run("readelf", "-d", self.lib / "libhvd.so")
        needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\]", dynamic))
        self.assertLessEqual(needed, {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"})

    def test_the_launcher_is_one_file_that_needs_no_library(self):
        headers = run("readelf", "--dynamic", "--program-headers", "--wide", self.prefix / "bin/hvdrun")
        self.assertIn("LOAD", headers)
        self.assertNotRegex(headers, "NEEDED|INTERP")

    def test_nothing_installed_looks_for_libraries_in_the_build(self):
        for binary in (*self.lib.glob("libhvd*.so"), self.prefix / "bin/hvdrun"):
            self.assertNotIn(str(pathlib.Path(BUILD).resolve()), run("readelf", "-d", binary), binary.name)

    def test_the_libraries_export_the_public_api_only(self):
        self.assert_exports("libhvd.so", ["hvd.h", "error.h", "types.h", "work.h"], FOR_THE_TORCH_LIBRARY, "hvd::init(")
        if WITH_TORCH:
            self.assert_exports("libhvd_torch.so", ["torch.h", "torch_types.h", "error.h"], set(), "hvd::local_device(")

    def assert_exports(self, library, headers, others, one):
        public = set().union(*(re.findall(r"\w+", (self.prefix / "include/hvd" / name).read_text()) for name in headers))
        lines = run("nm", "-D", "-C", "--defined-only", self.lib / library).splitlines()
        names = [re.sub(r"^(typeinfo name for|typeinfo for|vtable for|VTT for) ", "", line.split(" ", 2)[2]) for line in lines]
        names = [name for name in names if not SAME_BUILD.fullmatch(name)]
        self.assertTrue(any(name.startswith(one) for name in names), names[:20])
        for name in names:
            # Of hvd::A::b[abi:cxx11](hvd::C const&): A and b.
            words = re.sub(r"\[abi:\w+\]|~", "", name.split("(")[0]).split("::")
            self.assertEqual(words[0], "hvd", name)
            if words[1] not in others:
                self.assertLessEqual(set(words[1:]) - {"operator="}, public, name)
            self.assertNotIn(words[-2 if len(words) > 2 else -1], {"Impl", "Parts"}, name)

    def test_examples_build_outside_the_tree_and_run(self):
        build = self.folder / "build"
        program = self.folder / "readme.cc"
        program.write_text(readme_program())
        run(CMAKE, "-S", ROOT / "tests/scripts/installed", "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DHVD_EXAMPLES={ROOT / 'examples'}", f"-DREADME_PROGRAM={program}", f"-DWITH_TORCH={int(WITH_TORCH)}", "-DCMAKE_BUILD_TYPE=Release")
        run(CMAKE, "--build", build)
        self.assert_runs(build / "allreduce", *ALLREDUCE)
        self.assert_runs(build / "readme", *README)
        if WITH_TORCH:
            self.assert_runs(build / "linear", *LINEAR)
            self.assert_refuses_a_libhvd_of_another_build(build / "linear")

    def test_it_says_what_it_was_built_with(self):
        said = run(self.prefix / "bin/hvdrun", "--check-build", "--verbose")
        self.assertIn("[X] PyTorch (in C++, LibTorch 2." if WITH_TORCH else "[ ] PyTorch (built without LibTorch)", said)

    def test_a_torch_of_another_version_is_refused(self):
        if not WITH_TORCH:
            self.skipTest("built without LibTorch")
        torch = self.folder / "torch"
        (torch / "lib").mkdir(parents=True)
        (torch / "lib/libtorch_cpu.so").touch()
        (torch / "version.py").write_text("__version__ = '1.2.3+cpu'\n")
        done = subprocess.run([CMAKE, "-S", ROOT / "tests/scripts/installed", "-B", self.folder / "refused", "-G", "Ninja", "-DWITH_TORCH=1",
                               f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DHVD_TORCH_DIR={torch}", f"-DHVD_EXAMPLES={ROOT / 'examples'}",
                               f"-DREADME_PROGRAM={ROOT / 'examples/allreduce.cc'}"], capture_output=True, text=True, timeout=300, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(f"is wanted and {torch} has 1.2.3, so no hvd::torch", done.stdout)

    def test_pkg_config_finds_the_part_without_torch(self):
        environment = {**os.environ, "PKG_CONFIG_PATH": str(self.lib / "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "hvd", env=environment)
        program = self.folder / "by_pkg_config"
        words = re.sub(r"(?<!\\) ", "\n", flags.strip()).replace("\\ ", " ").split("\n")
        run("c++", ROOT / "examples/allreduce.cc", "-o", program, *words)
        self.assert_runs(program, *ALLREDUCE)

    def assert_refuses_a_libhvd_of_another_build(self, program):
        mixed = self.folder / "mixed"
        shutil.copytree(self.lib, mixed, symlinks=True)
        libhvd = (mixed / "libhvd.so").resolve()
        libhvd.write_bytes(re.sub(rb"(hvd_of_the_same_build_)[0-9a-f]{16}", rb"\g<1>................", libhvd.read_bytes()))
        done = subprocess.run([program], env={**os.environ, "LD_LIBRARY_PATH": str(mixed)}, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 127, done)
        self.assertRegex(done.stderr, r"mixed/libhvd_torch\.so.*: undefined symbol: hvd_of_the_same_build_")

    def assert_runs(self, program, alone, both):
        self.assertRegex(run(program), alone)
        self.assertRegex(run(self.prefix / "bin/hvdrun", "-np", "2", program), both)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
