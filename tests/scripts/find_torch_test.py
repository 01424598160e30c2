"""find_torch takes a torch that is new enough and whole, and says why it takes no other."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/find_torch.py"


class FindTorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hvd-torch-")
        self.addCleanup(folder.cleanup)
        self.packages = pathlib.Path(folder.name)
        self.torch = self.packages / "torch"
        self.put("lib/libtorch_cpu.so", "")
        self.put("lib/libc10.so", "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_string")
        self.put("include/torch/csrc/api/include/torch/torch.h", "")
        self.put("__init__.py", "raise ImportError('never imported')\n")
        self.version("2.11.0+cpu")

    def put(self, name, text):
        path = self.torch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def version(self, text):
        self.put("version.py", f"from typing import Optional\n__version__ = '{text}'\n")

    def find(self, *arguments):
        done = subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, timeout=60,
                              env={"PYTHONPATH": str(self.packages)}, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_a_whole_new_torch_is_taken_without_importing_it(self):
        self.assertEqual(self.find(), (0, f"{self.torch}\n2.11.0+cpu\n", ""))
        self.assertEqual(self.find(self.torch), (0, f"{self.torch}\n2.11.0+cpu\n", ""))
        self.version("3.0.1")
        self.assertEqual(self.find()[0], 0)

    def refused(self, why):
        status, out, error = self.find()
        self.assertEqual((status, out), (1, ""))
        self.assertIn(why, error)

    def test_an_older_one_is_refused(self):
        self.version("2.9.1")
        self.refused("torch 2.9.1 in")

    def test_one_without_headers_is_refused(self):
        (self.torch / "include/torch/csrc/api/include/torch/torch.h").unlink()
        self.refused("has no include/torch/csrc/api/include/torch/torch.h")

    def test_one_with_the_old_string_abi_is_refused(self):
        self.put("lib/libc10.so", "_ZN3c105ErrorC1ENS_14SourceLocationESs")
        self.refused("old C++ string ABI")

    def test_none_at_all_is_said(self):
        self.torch.rename(self.packages / "elsewhere")
        self.refused("has no torch")


if __name__ == "__main__":
    unittest.main()
