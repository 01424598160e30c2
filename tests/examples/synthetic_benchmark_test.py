"""examples/synthetic_benchmark under hvdrun: Horovod's lines, bad input. Arguments: the example, hvdrun."""

import re
import subprocess
import sys
import unittest

BENCHMARK, HVDRUN = sys.argv[1:3]
SMALL = ["--model", "resnet18", "--batch-size", "2", "--image-size", "32", "--num-warmup-batches", "1",
         "--num-batches-per-iter", "1", "--num-iters", "2"]
LINES = """Model: resnet18
Batch size: 2
Number of CPUs: 2
Running warmup...
Running benchmark...
Iter #0: # img/sec per CPU
Iter #1: # img/sec per CPU
Img/sec per CPU: # +-#
Total img/sec on 2 CPU(s): # +-#
"""


class SyntheticBenchmark(unittest.TestCase):
    def run_it(self, *flags):
        command = [HVDRUN, "-np", "2", "--no-tag-output", "--", BENCHMARK, *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=200)

    def test_prints_horovods_lines_once(self):
        done = self.run_it(*SMALL)
        self.assertEqual((done.returncode, re.sub(r"\d+\.\d\b", "#", done.stdout)), (0, LINES), done.stderr)
        mean = float(re.search(r"^Img/sec per CPU: ([\d.]+)", done.stdout, re.M).group(1))
        total = float(re.search(r"^Total img/sec on 2 CPU\(s\): ([\d.]+)", done.stdout, re.M).group(1))
        self.assertGreater(mean, 0)
        self.assertAlmostEqual(total, 2 * mean, delta=0.2)

    def test_bad_input_is_named(self):
        for flags, status, text in ((["--use-adasum"], 2, "--use-adasum is not supported yet"),
                                    (["--model", "vgg"], 2, "vgg"),
                                    (["--num-iters", "0"], 2, "synthetic_benchmark: --num-iters")):
            done = self.run_it(*flags)
            self.assertEqual((done.returncode, text in done.stderr), (status, True), done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
