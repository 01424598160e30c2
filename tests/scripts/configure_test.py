"""HVD_WITH_TORCH and HVD_WITH_CUDA: what AUTO, ON and OFF do with and without what they ask for. Configures only.

usage: configure_test.py CMAKE
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

CMAKE = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parents[2]
# Where a machine may have them, each by all its names.
PLACES = ("/usr/include", "/usr/local/include", "/usr/local/cuda/include",
          *(f"{programs}/../include" for programs in os.environ["PATH"].split(":")))
HEADER_FOLDERS = sorted({name for place in PLACES for name in (os.path.normpath(place), os.path.realpath(place))})
NO_CUDA = ("-DHVD_CUDA_INCLUDE=", "-DHVD_NCCL_INCLUDE=", "-DHVD_CCCL_INCLUDE=", "-DHVD_NVCC=")


class Configure(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hvd-configure-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        python3 = self.folder / "bin/python3"  # of no packages
        python3.parent.mkdir()
        python3.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
        python3.chmod(0o755)

    def configure(self, *options, launcher="OFF", root=ROOT):
        """(whether it went well, what it said)"""
        environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HOME": str(self.folder),
                       "XDG_CACHE_HOME": str(self.folder / "cache")}
        done = subprocess.run(
            [CMAKE, "-S", str(root), "-B", str(self.folder / "build"), "-G", "Ninja", "-DHVD_BUILD_TESTS=OFF",
             f"-DHVD_BUILD_LAUNCHER={launcher}", *options],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200,
            check=False)
        return done.returncode == 0, " ".join(done.stdout.split())

    def test_a_path_with_blanks(self):
        (self.folder / "my clone").symlink_to(ROOT)
        good, said = self.configure("-DHVD_WITH_TORCH=OFF", "-DHVD_WITH_CUDA=OFF", root=self.folder / "my clone")
        self.assertTrue(good, said)
        subprocess.run([CMAKE, "--build", str(self.folder / "build"), "--target", "hvd_build_mark_header"], check=True, timeout=200,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        mark = (self.folder / "build/generated/build_mark/build_mark.h").read_text()
        self.assertRegex(mark, r"HVD_BUILD_MARK hvd_of_the_same_build_[0-9a-f]{16}\n")

    def torch(self):
        """A folder that looks as LibTorch does; nothing is built with it."""
        torch = self.folder / "packages/torch"
        for name, text in (("lib/libtorch_cpu.so", ""), ("lib/libc10.so", "__cxx11"), ("version.py", "__version__ = '2.11.0'\n"),
                           ("include/torch/csrc/api/include/torch/torch.h", "")):
            (torch / name).parent.mkdir(parents=True, exist_ok=True)
            (torch / name).write_text(text)
        return torch

    def test_without_libtorch(self):
        good, said = self.configure("-DHVD_WITH_TORCH=AUTO", "-DHVD_WITH_CUDA=OFF")
        self.assertTrue(good, said)
        self.assertIn("LibTorch: not found, the torch layer and its examples are left out", said)
        good, said = self.configure("-DHVD_WITH_TORCH=ON", "-DHVD_WITH_CUDA=OFF")
        self.assertFalse(good, said)
        self.assertIn("HVD_WITH_TORCH=ON but no LibTorch was found: run scripts/setup or set HVD_TORCH_DIR", said)
        self.assertIn("has no torch", said)

    def test_with_libtorch(self):
        where = f"-DHVD_TORCH_DIR={self.torch()}"
        for value in ("AUTO", "ON"):
            good, said = self.configure(f"-DHVD_WITH_TORCH={value}", where, "-DHVD_WITH_CUDA=OFF")
            self.assertTrue(good, said)
            self.assertIn(f"LibTorch: {self.torch()}", said)
        good, said = self.configure("-DHVD_WITH_TORCH=OFF", where, "-DHVD_WITH_CUDA=OFF")
        self.assertTrue(good, said)
        self.assertNotIn("LibTorch:", said)
        good, said = self.configure("-DHVD_WITH_TORCH=AUTO", f"-DHVD_TORCH_DIR={self.folder}/gone", "-DHVD_WITH_CUDA=OFF")
        self.assertFalse(good, said)
        self.assertIn("gone cannot be used", said)

    def nvcc(self, path, version):
        """A program that tells its version as nvcc does; nothing is built with it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.88'\n")
        path.chmod(0o755)
        return path

    def test_cuda(self):
        include = self.folder / "include"
        include.mkdir()
        (include / "nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n")
        nvcc, old = self.nvcc(self.folder / "new/nvcc", "13.0"), self.nvcc(self.folder / "old/nvcc", "12.6")
        before = self.folder / "before"
        before.mkdir()
        (before / "nccl.h").write_text("#define NCCL_MAJOR 2\n#define NCCL_MINOR 26\n#define NCCL_PATCH 2\n")
        headers = tuple(f"-DHVD_{part}_INCLUDE={include}" for part in ("CUDA", "NCCL", "CCCL"))
        found, no_nvcc, old_nvcc = ((*headers, f"-DHVD_NVCC={name}") for name in (nvcc, "", old))
        wanted = (("AUTO", found, True, f"CUDA: {include}, nvcc 13.0: {nvcc}, NCCL 2.28.9: {include}"), ("ON", found, True, "NCCL 2.28.9: "),
                  ("AUTO", NO_CUDA, True, "CUDA: not found: cuda.h, nccl.h, nv/target, nvcc; built without GPUs"),
                  ("ON", NO_CUDA, False, "HVD_WITH_CUDA=ON but not found: cuda.h, nccl.h, nv/target, nvcc; run scripts/setup --cuda"),
                  ("AUTO", no_nvcc, True, "CUDA: not found: nvcc; built without GPUs"),
                  ("ON", no_nvcc, False, "HVD_WITH_CUDA=ON but not found: nvcc; run scripts/setup --cuda"),
                  ("AUTO", old_nvcc, True, f"CUDA: not found: nvcc 12.8 or newer (not {old} 12.6); built without GPUs"),
                  ("AUTO", (*found, f"-DHVD_NCCL_INCLUDE={before}"), True,
                   f"CUDA: not found: nccl.h 2.27 or newer (not {before}/nccl.h 2.26.2); built without GPUs"),
                  ("OFF", old_nvcc, True, None))
        for value, where, well, words in wanted:
            good, said = self.configure("-DHVD_WITH_TORCH=OFF", f"-DHVD_WITH_CUDA={value}", *where)
            self.assertEqual(good, well, said)
            if words:
                self.assertIn(words, said)
            else:
                self.assertNotIn("CUDA", said)

    def test_cuda_is_the_machines_or_all_of_it_is_of_setups_environment(self):
        packages = self.folder / "cache/hvdrun/cuda-13.0.2/lib/python3.11/site-packages/nvidia"
        machine = self.folder / "prefix/include"
        for include, patch in ((packages / "cu13/include", 9), (packages / "nccl/include", 9), (machine, 7)):
            include.mkdir(parents=True)
            (include / "cuda.h").write_text("")
            (include / "nv").mkdir()
            (include / "nv/target").write_text("")
            (include / "nccl.h").write_text(f"#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH {patch}\n")
        own = self.nvcc(packages / "cu13/bin/nvcc", "13.0")
        others = self.nvcc(machine.parent / "bin/nvcc", "13.1")
        hidden = (*HEADER_FOLDERS, *(str(pathlib.Path(folder).parent / "bin") for folder in HEADER_FOLDERS if "cuda" in folder))
        options = ("-DHVD_WITH_TORCH=OFF", "-DHVD_WITH_CUDA=ON", "-UHVD_CUDA_INCLUDE", "-UHVD_NCCL_INCLUDE", "-UHVD_CCCL_INCLUDE", "-UHVD_NVCC",
                   f"-DCMAKE_IGNORE_PATH={';'.join(hidden)}", "-DZLIB_INCLUDE_DIR=/usr/include")  # hidden with them
        good, said = self.configure(*options)
        self.assertFalse(good, said)
        self.assertIn("run scripts/setup --cuda", said)
        (self.folder / "cache/hvdrun/cuda-13.0.2/complete").write_text("cuda\n")
        good, said = self.configure(*options)
        self.assertTrue(good, said)
        of_setup = f"CUDA: {packages}/cu13/include, nvcc 13.0: {own}, NCCL 2.28.9: {packages}/nccl/include"
        self.assertIn(of_setup, said)
        self.nvcc(others, "11.8")  # beside it the machine's headers are not taken, nor remembered
        good, said = self.configure(*options, f"-DCMAKE_PREFIX_PATH={machine.parent}")
        self.assertTrue(good, said)
        self.assertIn(of_setup, said)
        self.nvcc(others, "13.1")
        good, said = self.configure(*options, f"-DCMAKE_PREFIX_PATH={machine.parent}")
        self.assertTrue(good, said)
        self.assertIn(f"CUDA: {machine}, nvcc 13.1: {others}, NCCL 2.28.7: {machine}", said)

    def test_what_lies_beside_programs_on_the_path_is_not_taken_for_the_systems(self):
        for name in ("bin/protoc", "bin/grpc_cpp_plugin", "bin/pkg-config"):
            program = self.folder / name
            program.write_text("#!/bin/sh\nexit 1\n")
            program.chmod(0o755)
        for name in ("spdlog", "CLI11"):
            package = self.folder / f"lib/cmake/{name}/{name}Config.cmake"
            package.parent.mkdir(parents=True)
            package.write_text(f'message(FATAL_ERROR "{name} of another place")')
        (self.folder / "include").mkdir()
        (self.folder / "include/zlib.h").write_text("")
        good, said = self.configure("-DHVD_WITH_TORCH=OFF", "-DHVD_WITH_CUDA=OFF", launcher="ON")
        self.assertTrue(good, said)
        cache = (self.folder / "build/CMakeCache.txt").read_text().splitlines()
        found = {line.split(":")[0]: line.split("=")[1] for line in cache if line.startswith(("HVD_PROTOC:", "HVD_GRPC_PLUGIN:", "ZLIB_INCLUDE_DIR:"))}
        self.assertEqual(len(found), 3)
        self.assertEqual([name for name, path in found.items() if path.startswith(str(self.folder))], [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
