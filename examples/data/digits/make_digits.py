"""Writes the four files of this folder from scikit-learn's copy of the UCI digits: python3 make_digits.py

Needs scikit-learn, of which only the data file `datasets/data/digits.csv.gz` is read; the files in the
repository came from its version 1.9.1. The same input always gives the same bytes. The format is that of
MNIST: big-endian, a magic number (0x803 images, 0x801 labels), the sizes, then a byte a pixel or label.
"""

import csv
import gzip
import importlib.resources
import pathlib
import random
import struct

TEST_IMAGES = 360
SEED = 1797
SIDE = 8
GREY_MAX = 16


def read_source():
    """(pixels 0..16, digit) of each of the 1,797 images."""
    packed = importlib.resources.files("sklearn.datasets.data").joinpath("digits.csv.gz").read_bytes()
    rows = csv.reader(gzip.decompress(packed).decode("ascii").splitlines())
    numbers = ([int(float(value)) for value in row] for row in rows)
    return [(tuple(row[:-1]), row[-1]) for row in numbers]


def test_counts(digits):
    """How many of each digit go into the test set: shares of TEST_IMAGES, by largest remainder."""
    shares = {d: TEST_IMAGES * digits.count(d) / len(digits) for d in sorted(set(digits))}
    counts = {d: int(share) for d, share in shares.items()}
    by_remainder = sorted(shares, key=lambda d: (counts[d] - shares[d], d))
    for d in by_remainder[: TEST_IMAGES - sum(counts.values())]:
        counts[d] += 1
    return counts


def split(images):
    """Training and test images, each in shuffled order, every digit in the same proportion in both."""
    shuffled = list(images)
    random.Random(SEED).shuffle(shuffled)
    wanted = test_counts([digit for _, digit in images])
    training, test = [], []
    for pixels, digit in shuffled:
        into_test = wanted[digit] > 0
        wanted[digit] -= into_test
        (test if into_test else training).append((pixels, digit))
    return training, test


def write(folder, name, images):
    grey = [(level * 255 + GREY_MAX // 2) // GREY_MAX for level in range(GREY_MAX + 1)]
    header = struct.pack(">IIII", 0x803, len(images), SIDE, SIDE)
    pixels = b"".join(bytes(grey[level] for level in image) for image, _ in images)
    (folder / f"{name}-images-idx3-ubyte").write_bytes(header + pixels)
    labels = bytes(digit for _, digit in images)
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, len(images)) + labels)


def main():
    folder = pathlib.Path(__file__).parent
    training, test = split(read_source())
    write(folder, "train", training)
    write(folder, "t10k", test)
    print(f"{len(training)} training and {len(test)} test images in {folder}")


if __name__ == "__main__":
    main()
