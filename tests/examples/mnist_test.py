"""examples/mnist under hvdrun: its lines, resuming, bad input. Arguments: the example, hvdrun."""

import array
import math
import operator
import os
import re
import shutil
import signal
import stat
import struct
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

    def command(self, *flags, ranks=2, name="c.pt"):
        return [HVDRUN, "-np", str(ranks), "--no-tag-output", "--output-ranks", "0", "--", MNIST, "--no-cuda", "--checkpoint",
                os.path.join(self.folder, name), *flags]

    def run_mnist(self, *flags, **more):
        return subprocess.run(self.command(*flags, **more), capture_output=True, text=True, timeout=120)

    def tensors(self, name):
        """The bytes of all tensors of a checkpoint, in no order: the optimizer's are keyed by addresses."""
        with zipfile.ZipFile(os.path.join(self.folder, name)) as archive:
            return sorted(archive.read(entry) for entry in archive.namelist() if "/data/" in entry)

    def test_prints_horovods_lines(self):
        done = self.run_mnist("--epochs", "1", "--batch-size", "64", "--log-interval", "4")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(without_figures(done.stdout), "\n".join(TRAIN) + "\n" + TEST + "\n")

    # Six seeds ended with 98.3 to 98.9 %; 97 % is what the demo promises.
    def test_learns(self):
        done = self.run_mnist("--epochs", "60", "--log-interval", "1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        accuracies = re.findall(r"Accuracy: ([\d.]+)%", done.stdout)
        self.assertEqual(len(accuracies), 60)
        self.assertGreaterEqual(float(accuracies[-1]), 97)

    def test_counts_every_test_image_once(self):
        def tested(*flags, ranks):
            done = self.run_mnist("--test-batch-size", "50", *flags, ranks=ranks)
            self.assertEqual(done.returncode, 0, done.stderr)
            return [float(figure) for figure in re.search(r"loss: ([\d.]+), Accuracy: ([\d.]+)%", done.stdout).groups()]

        few = self.digits(images=3, labels=[3, 1, 4])
        # One rank alone sees all images, so those after it, with its parameters, have to find the same in them all.
        for flags, others in (([], (3, 7)), (["--data-dir", few], (5, 7))):  # of these some have none of the few
            loss, accuracy = tested("--epochs", "1", *flags, ranks=1)
            for epoch, ranks in enumerate(others, start=2):
                with self.subTest(ranks=ranks):
                    found = tested("--epochs", str(epoch), "--resume", "--lr", "0", *flags, ranks=ranks)
                    self.assertAlmostEqual(found[0], loss, delta=0.00011)  # summed in another order
                    self.assertEqual(found[1], accuracy)

    def test_resumed_run_ends_with_the_same_bits(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                self.check_resumed(ranks)

    def check_resumed(self, ranks):
        whole = self.run_mnist("--epochs", "4", name="whole.pt", ranks=ranks)
        first = self.run_mnist("--epochs", "2", name="parts.pt", ranks=ranks)
        second = self.run_mnist("--epochs", "4", "--resume", name="parts.pt", ranks=ranks)
        self.assertEqual([whole.returncode, first.returncode, second.returncode], [0, 0, 0], second.stderr)
        self.assertEqual(whole.stdout, first.stdout + second.stdout)
        self.assertEqual(self.tensors("whole.pt"), self.tensors("parts.pt"))
        self.assertGreater(len(self.tensors("whole.pt")), 15)
        # The comparison can fail: another epoch has other bits.
        self.assertEqual(self.run_mnist("--epochs", "5", "--resume", name="parts.pt", ranks=ranks).returncode, 0)
        self.assertNotEqual(self.tensors("whole.pt"), self.tensors("parts.pt"))

    # Over ssh they are those of pretended hosts, bit for bit (tests/end_to_end/several_hosts.py). Sums of four in another order
    # are as close as floating point allows.
    def test_hosts_end_with_the_parameters_of_local_ranks(self):
        def trained(name, *shape):
            command = [*self.command("--epochs", "2", name=name)]
            command[1:3] = shape
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            return [array.array("f", one) for one in self.tensors(name) if len(one) >= 40 and len(one) % 4 == 0]

        def distance(one, other):
            return max(map(abs, map(operator.sub, one, other))) if len(one) == len(other) else math.inf

        local, hosts, begin = trained("local.pt", "-np", "4"), trained("hosts.pt", "--pretend-hosts", "2x2"), trained("begin.pt", "-np", "1")
        farthest = lambda ones, others: max(min(distance(one, other) for other in others) for one in ones)  # noqa: E731
        self.assertGreater(len(local), 8)
        self.assertLess(max(farthest(local, hosts), farthest(hosts, local)), 1e-5)
        self.assertGreater(farthest(local, begin), 1e-3)  # the comparison can fail: so far apart is what one rank learns

    def test_resumed_run_takes_its_own_flags(self):
        first = self.run_mnist("--epochs", "1")
        second = self.run_mnist("--epochs", "2", "--resume", "--lr", "0")
        self.assertEqual([first.returncode, second.returncode], [0, 0], second.stderr)
        tested = lambda done: re.search(r"Test set: .*", done.stdout).group(0)  # noqa: E731
        self.assertEqual(tested(first), tested(second))

    def test_resumed_run_with_nothing_left_says_so(self):
        self.assertEqual(self.run_mnist("--epochs", "1", "--seed", "-1").returncode, 0)
        before = self.tensors("c.pt")
        done = self.run_mnist("--epochs", "1", "--resume")
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertRegex(done.stderr, "mnist: nothing is left to train: .*c.pt holds epoch 1, --epochs is 1\n")
        self.assertEqual(before, self.tensors("c.pt"))

    def test_killed_run_goes_on_with_the_same_bits(self):
        flags = ["--epochs", "4", "--batch-size", "16", "--log-interval", "1"]
        whole = self.run_mnist(*flags, name="whole.pt")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        job = subprocess.Popen(self.command(*flags, name="parts.pt"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in job.stdout:
            if line.startswith("Train Epoch: 3 [32/"):
                break
        # Neither may get ready for its end: rank 0 dies where it is, and nobody writes afterwards.
        os.kill(self.rank_zero(job.pid), signal.SIGKILL)
        job.communicate(timeout=60)
        self.assertEqual(job.returncode, 128 + signal.SIGKILL)
        resumed = self.run_mnist(*flags, "--resume", name="parts.pt")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        begin = resumed.stdout[: resumed.stdout.index("[")]
        self.assertIn(begin, ("Train Epoch: 3 ", "Train Epoch: 4 "))  # 4 when the signal found it that late
        self.assertEqual(resumed.stdout, whole.stdout[whole.stdout.index(begin) :])
        self.assertEqual(self.tensors("whole.pt"), self.tensors("parts.pt"))

    def test_ranks_with_different_numbers_of_batches_are_told_so(self):
        command = self.command("--epochs", "1")
        command[command.index("--") + 1 : command.index(MNIST)] = ["bash", "-c", 'exec "$@" --batch-size "$((64 << RANK))"', "bash"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, '[(]do all have as many batches[?][)]: rank 0 is in step 7 of .*, rank 1 in allreduce "test_sums"')

    def test_rank_that_stops_earlier_than_others_ends_the_job(self):
        uneven = 'if [ "$HVD_RANK" = 1 ]; then exec "$@" --epochs 1; else exec "$@" --epochs 2; fi'
        command = self.command(ranks=3)
        at = command.index(MNIST)
        done = subprocess.run([*command[:at], "sh", "-c", uneven, "sh", *command[at:]], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(" failed: rank 1 let go of \"DistributedOptimizer 1 of ", done.stderr)
        self.assertRegex(done.stderr.splitlines()[-1], "first failure: rank 1 .*exited with code 0")

    def rank_zero(self, launcher):
        below = [launcher]
        for pid in below:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    below += [int(word) for word in file.read().split()]
        for pid in below:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if b"HVD_RANK=0" in file.read().split(b"\0"):
                    return pid
        raise AssertionError("rank 0 does not run")

    def trained(self, *flags, ranks=2):
        """What a few steps have made of parameters and optimizer, and the loss of the first batch."""
        done = self.run_mnist("--batch-size", "360", *flags, ranks=ranks)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.tensors("c.pt"), re.search(r"Loss: ([\d.]+)", done.stdout).group(1)

    def test_each_flag_has_its_effect_on_what_is_learned(self):
        usual = self.trained("--epochs", "1")
        self.assertEqual(self.trained("--epochs", "1"), usual)
        for flags in (["--fp16-allreduce"], ["--gradient-predivide-factor", "3"], ["--lr", "0.02"], ["--momentum", "0.9"],
                      ["--seed", "7"]):
            with self.subTest(flags=flags):
                self.assertNotEqual(self.trained("--epochs", "1", *flags)[0], usual[0])

    def test_learning_rate_grows_with_the_ranks(self):
        for ranks in (1, 3):
            self.trained("--epochs", "1", "--lr", "0.0078125", ranks=ranks)
            with zipfile.ZipFile(os.path.join(self.folder, "c.pt")) as archive:
                kept = b"".join(archive.read(entry) for entry in archive.namelist() if entry.endswith("data.pkl"))
            self.assertEqual([rate for rate in (1, 2, 3) if struct.pack(">d", rate * 0.0078125) in kept], [ranks])

    # Epoch 2 with a seed less by two has the dropout of epoch 1, and where nothing is learned its parameters.
    def test_each_epoch_draws_other_images(self):
        first = self.trained("--epochs", "1", "--lr", "0")
        second = self.trained("--epochs", "2", "--lr", "0", "--resume", "--seed", "40")
        self.assertNotEqual(second[1], first[1])

    def test_bad_input_is_named(self):
        cases = [
            (["--use-adasum"], 2, "--use-adasum is not supported yet"),
            (["--epochs", "0"], 2, "--epochs: Value 0 not in range"),
            (["--epochs", "x"], 2, "--epochs: Value x not in range"),
            (["--lr", "nan"], 2, "mnist: --lr: nan is no number from 0 up"),
            (["--gradient-predivide-factor", "0"], 2, "--gradient-predivide-factor: 0 is no number above 0"),
            (["--gradient-predivide-factor", "inf"], 2, "--gradient-predivide-factor: inf is no number above 0"),
            (["--nonsense"], 2, "mnist: The following argument was not expected: --nonsense; --help lists the flags"),
            (["--checkpoint", ""], 2, "--checkpoint: the name is empty"),
            (["--seed", "1.5"], 2, "--seed: 1.5 is no whole number of 64 bits"),
            (["--seed", "9" * 20], 2, f"--seed: {'9' * 20} is no whole number of 64 bits"),
            (["--resume"], 1, "c.pt: no such checkpoint"),
            (["--data-dir", "/nowhere"], 1, "/nowhere/train-images-idx3-ubyte"),
            (["--data-dir", self.digits(images=3, labels=[3, 1, 4], cut=1)], 1, "t10k-labels-idx1-ubyte: the file ends"),
            (["--data-dir", self.digits(images=3, labels=[3, 1])], 1, "t10k-images-idx3-ubyte: 3 images but 2 labels at offset 4"),
            (["--data-dir", self.digits(images=0, labels=[])], 1, "t10k-images-idx3-ubyte: 0 images of 8 x 8 pixels at offset 4"),
            (["--data-dir", self.digits(images=3, labels=[3, 10, 4])], 1, "t10k-labels-idx1-ubyte: label 10 is no digit at offset 9"),
        ]
        for flags, status, text in cases:
            with self.subTest(flags=flags):
                self.expect_one_line(self.run_mnist(*flags), status, text)

    def test_bad_checkpoint_is_named_before_training(self):
        whole = self.run_mnist("--epochs", "1")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        size = os.path.getsize(os.path.join(self.folder, "c.pt"))
        for name, change in (("cut.pt", lambda f: f.truncate(size // 2)), ("empty.pt", lambda f: f.truncate(0)),
                             ("text.pt", lambda f: (f.truncate(0), f.write(b"no archive")))):
            shutil.copy(os.path.join(self.folder, "c.pt"), os.path.join(self.folder, name))
            with open(os.path.join(self.folder, name), "r+b") as file:
                change(file)
            with self.subTest(checkpoint=name):
                self.expect_one_line(self.run_mnist("--resume", name=name), 1, name + ": is no whole checkpoint: ")
        os.mkfifo(os.path.join(self.folder, "pipe"))
        for name, text in (("none/c.pt", "none/c.pt.unfinished: cannot be written: No such file"),
                           ("pipe", "pipe: is no regular file"), (".", ": is no regular file")):
            with self.subTest(checkpoint=name):
                done = self.run_mnist(name=name)
                self.expect_one_line(done, 1, text)
                self.assertEqual(done.stdout, "")
        self.assertTrue(stat.S_ISFIFO(os.stat(os.path.join(self.folder, "pipe")).st_mode))

    def test_a_checkpoint_of_another_net_or_of_no_epoch_is_named(self):
        whole = self.run_mnist("--epochs", "1")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        # 49 hidden units instead of 50, in all sizes and strides; and the first number that is there.
        for name, text, change in (
                ("narrow.pt", "its fc1.weight is another net's", lambda entry, data: data.replace(b"K2", b"K1") if entry.endswith("/data.pkl") else data),
                ("early.pt", "it holds epoch -5", lambda entry, data: struct.pack("<q", -5) if entry.endswith("/data/0") else data)):
            with zipfile.ZipFile(os.path.join(self.folder, "c.pt")) as old, zipfile.ZipFile(os.path.join(self.folder, name), "w") as new:
                for entry in old.namelist():
                    new.writestr(entry, change(entry, old.read(entry)))
            with self.subTest(checkpoint=name):
                self.expect_one_line(self.run_mnist("--resume", name=name), 1, f"{name}: is no whole checkpoint: {text}")

    def test_a_checkpoint_that_finds_no_room_is_named_and_leaves_nothing(self):
        words = self.command("--epochs", "1")
        launcher, program = words[:words.index(MNIST)], words[words.index(MNIST):]
        limited = ["sh", "-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"]
        done = subprocess.run([*launcher, *limited, *program], capture_output=True, text=True, timeout=120)
        self.expect_one_line(done, 1, "c.pt.unfinished: cannot be written: File too large")
        self.assertEqual(os.listdir(self.folder), [])

    def expect_one_line(self, done, status, text):
        self.assertEqual(done.returncode, status, done.stderr)
        # Rank 0's own and, where another rank was first, that one's in hvdrun's report: the same line.
        said = {line.removeprefix("  | ") for line in done.stderr.splitlines() if not line.startswith("hvdrun: ")}
        self.assertEqual(len(said), 1, done.stderr)
        self.assertIn(text, said.pop())

    def digits(self, images, labels, cut=0):
        """A folder whose test part is made up of so many images and these labels, less so many bytes at the end."""
        folder = tempfile.mkdtemp(dir=self.folder)
        for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
            shutil.copy(os.path.join(DIGITS, name), folder)
        with open(os.path.join(folder, "t10k-images-idx3-ubyte"), "wb") as file:
            file.write(struct.pack(">IIII", 0x803, images, 8, 8) + bytes(images * 64))
        with open(os.path.join(folder, "t10k-labels-idx1-ubyte"), "wb") as file:
            data = struct.pack(">II", 0x801, len(labels)) + bytes(labels)
            file.write(data[: len(data) - cut])
        return folder


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
