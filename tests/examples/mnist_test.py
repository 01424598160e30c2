"""examples/mnist under hvdrun: its lines, resuming, bad input. Arguments: the example, hvdrun."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

MNIST, HVDRUN = sys.argv[1:3]
DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "data", "digits")

# What Horovod's pytorch_mnist prints for this amount of data, byte for byte but for the figures after "Loss: ".
TRAIN = ["Train Epoch: {epoch} [{done}/719 ({percent}%)]\tLoss: #".format(epoch=1, done=done, percent=percent)
         for done, percent in ((0, 0), (256, 33), (512, 67))]
TEST = "\nTest set: Average loss: #, Accuracy: #%\n"


def without_figures(text):
    text = re.sub(r"(oss: )\d\.\d{6}\b", r"\1#", text)
    return re.sub(r"loss: \d\.\d{4}, Accuracy: \d{1,3}\.\d{2}%", "loss: #, Accuracy: #%", text)


class Mnist(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="hvd-mnist-")
        self.addCleanup(shutil.rmtree, self.folder)

    def run_mnist(self, *flags, ranks=2, name="c.pt"):
        command = [HVDRUN, "-np", str(ranks), "--no-tag-output", "--output-ranks", "0", "--", MNIST, "--checkpoint",
                   os.path.join(self.folder, name), *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    def tensors(self, name):
        """The bytes of all tensors of a checkpoint, in no order: the optimizer's are keyed by addresses."""
        with zipfile.ZipFile(os.path.join(self.folder, name)) as archive:
            return sorted(archive.read(entry) for entry in archive.namelist() if "/data/" in entry)

    def test_prints_horovods_lines(self):
        done = self.run_mnist("--epochs", "1", "--batch-size", "64", "--log-interval", "4")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(without_figures(done.stdout), "\n".join(TRAIN) + "\n" + TEST + "\n")

    def test_counts_every_test_image_once(self):
        for ranks in (1, 3):
            done = self.run_mnist("--epochs", "1", "--test-batch-size", "50", ranks=ranks)
            self.assertEqual(done.returncode, 0, done.stderr)
            correct = float(re.search(r"Accuracy: ([\d.]+)%", done.stdout).group(1)) / 100 * 360
            self.assertAlmostEqual(correct, round(correct), delta=0.02)

    def test_resumed_run_ends_with_the_same_bits(self):
        whole = self.run_mnist("--epochs", "4", name="whole.pt")
        first = self.run_mnist("--epochs", "2", name="parts.pt")
        second = self.run_mnist("--epochs", "4", "--resume", name="parts.pt")
        self.assertEqual([whole.returncode, first.returncode, second.returncode], [0, 0, 0], second.stderr)
        self.assertEqual(whole.stdout, first.stdout + second.stdout)
        self.assertEqual(self.tensors("whole.pt"), self.tensors("parts.pt"))
        self.assertGreater(len(self.tensors("whole.pt")), 15)
        # The comparison can fail: another epoch has other bits.
        self.assertEqual(self.run_mnist("--epochs", "5", "--resume", name="parts.pt").returncode, 0)
        self.assertNotEqual(self.tensors("whole.pt"), self.tensors("parts.pt"))

    def test_compression_and_predivide(self):
        for flags in (["--fp16-allreduce"], ["--gradient-predivide-factor", "2"]):
            done = self.run_mnist("--epochs", "2", *flags)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_bad_input_is_named(self):
        cases = [
            (["--use-adasum"], 2, "--use-adasum is not supported yet"),
            (["--epochs", "0"], 2, "--epochs"),
            (["--resume"], 1, "c.pt: no such checkpoint"),
            (["--data-dir", "/nowhere"], 1, "/nowhere/train-images-idx3-ubyte"),
            (["--data-dir", self.truncated()], 1, "the file ends"),
        ]
        for flags, status, text in cases:
            done = self.run_mnist(*flags)
            self.assertEqual((done.returncode, text in done.stderr), (status, True), done.stderr)

    def truncated(self):
        folder = os.path.join(self.folder, "digits")
        shutil.copytree(DIGITS, folder)
        labels = os.path.join(folder, "t10k-labels-idx1-ubyte")
        os.truncate(labels, os.path.getsize(labels) - 1)
        return folder


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
