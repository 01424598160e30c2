"""The digits in examples/data: well-formed IDX files, the right sizes, stratified, no image in both parts."""

import collections
import importlib.util
import pathlib
import struct
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).parents[2] / "examples/data/digits"
TRAINING, TEST, SIDE = 1437, 360, 8


def images(name, count):
    data = (FOLDER / f"{name}-images-idx3-ubyte").read_bytes()
    header = struct.unpack(">IIII", data[:16])
    assert header == (0x803, count, SIDE, SIDE), header
    assert len(data) == 16 + count * SIDE * SIDE, len(data)
    return [data[at : at + SIDE * SIDE] for at in range(16, len(data), SIDE * SIDE)]


def labels(name, count):
    data = (FOLDER / f"{name}-labels-idx1-ubyte").read_bytes()
    assert struct.unpack(">II", data[:8]) == (0x801, count), data[:8]
    assert len(data) == 8 + count, len(data)
    return list(data[8:])


def make_digits():
    """The script that wrote the files, as a module."""
    spec = importlib.util.spec_from_file_location("make_digits", FOLDER / "make_digits.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Digits(unittest.TestCase):
    def test_the_script_writes_the_same_bytes_again(self):
        script = make_digits()
        if importlib.util.find_spec("sklearn"):
            parts = script.split(script.read_source())
        else:  # then from the images that are there: all but the source and the shuffle
            level = {(grey * 255 + 8) // 16: grey for grey in range(17)}
            parts = [[(tuple(level[byte] for byte in image), digit) for image, digit in zip(images(*part), labels(*part))]
                     for part in (("train", TRAINING), ("t10k", TEST))]
            shares = script.test_counts([digit for part in parts for _, digit in part])
            self.assertEqual(collections.Counter(digit for _, digit in parts[1]), shares)
            print("without scikit-learn: the shuffle was not repeated", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            for name, part in zip(("train", "t10k"), parts):
                script.write(pathlib.Path(folder), name, part)
            written = sorted(pathlib.Path(folder).iterdir())
            self.assertEqual(len(written), 4)
            for file in written:
                self.assertEqual(file.read_bytes(), (FOLDER / file.name).read_bytes(), file.name)

    def test_pixels_span_black_to_white(self):
        for part in (images("train", TRAINING), images("t10k", TEST)):
            levels = {level for image in part for level in image}
            self.assertEqual((min(levels), max(levels), len(levels)), (0, 255, 17))

    def test_no_image_is_twice_in_or_in_both_parts(self):
        everything = images("train", TRAINING) + images("t10k", TEST)
        self.assertEqual(len(set(everything)), TRAINING + TEST)

    def test_every_digit_has_the_same_share_in_both_parts(self):
        training = collections.Counter(labels("train", TRAINING))
        test = collections.Counter(labels("t10k", TEST))
        self.assertEqual(sorted(training), list(range(10)))
        for digit in range(10):
            share = (training[digit] + test[digit]) * TEST / (TRAINING + TEST)
            self.assertLess(abs(test[digit] - share), 1, f"digit {digit}")

    def test_labels_belong_to_their_images(self):
        # A label file in another order would leave neighbours no likelier to be of one digit than chance.
        known = list(zip(images("train", TRAINING), labels("train", TRAINING)))[:400]
        right = 0
        for image, digit in list(zip(images("t10k", TEST), labels("t10k", TEST)))[:60]:
            nearest = min(known, key=lambda pair: sum((a - b) ** 2 for a, b in zip(pair[0], image)))
            right += nearest[1] == digit
        self.assertGreater(right, 48)


if __name__ == "__main__":
    unittest.main()
