"""Chooses how `mnist` scales these digits, by the training images alone: python3 choose_scale.py [FOLDS [EPOCHS]]

Needs PyTorch. Each candidate trains Horovod's MNIST network on four fifths of the 1,437 training images and is judged
by the last fifth, which takes turns (a seeded shuffle, equal for all); the 360 test images are never read. A step here
is one of `hvdrun -np 2 mnist`: 128 images, learning rate 0.02. Prints accuracies, the best candidate last.
"""

import pathlib
import random
import statistics
import sys

import torch
import torch.nn.functional as F
from torch import nn

SEED, FIFTHS, BATCH, SIDE = 1437, 5, 128, 28
MODES = ("nearest", "bilinear")
DEVIATIONS = (0.37, 0.25, 0.2, 0.15, 0.1, 0.07, 0.05, 0.035)  # the first is the images' own


def read(name):
    data = (pathlib.Path(__file__).parent / f"train-{name}-ubyte").read_bytes()
    count = int.from_bytes(data[4:8], "big")
    return torch.tensor(list(data[16 if name.startswith("images") else 8:]), dtype=torch.uint8), count


def load():
    (pixels, count), (labels, _) = read("images-idx3"), read("labels-idx1")
    return pixels.view(count, 1, 8, 8).float() / 255, labels.long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.drop = nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2)).view(-1, 320)
        x = F.dropout(F.relu(self.fc1(x)), training=self.training)
        return F.log_softmax(self.fc2(x), 1)


def accuracy(images, labels, fold, epochs):
    """Of one fifth, in percent, after training on the others."""
    order = list(range(len(labels)))
    random.Random(SEED).shuffle(order)
    held_out = torch.tensor(order[fold::FIFTHS])
    training = torch.tensor([i for at, i in enumerate(order) if at % FIFTHS != fold])
    torch.manual_seed(fold)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.5)
    for _ in range(epochs):
        for part in training[torch.randperm(len(training))].split(BATCH):
            optimizer.zero_grad()
            F.nll_loss(net(images[part]), labels[part]).backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        right = net(images[held_out]).argmax(1) == labels[held_out]
    return 100 * right.float().mean().item()


def main(folds=3, epochs=60):
    torch.set_num_threads(1)
    images, labels = load()
    mean = round(images.mean().item(), 1)
    print(f"mean {images.mean().item():.3f}, taken as {mean}; deviation {images.std().item():.3f}")
    found = []
    for mode in MODES:
        large = F.interpolate(images, SIDE, mode=mode)
        for deviation in DEVIATIONS:
            scaled = (large - mean) / deviation
            each = [accuracy(scaled, labels, fold, epochs) for fold in range(folds)]
            found.append((statistics.mean(each), mode, deviation))
            print(f"{mode:8} (x - {mean}) / {deviation:<4}: {found[-1][0]:.2f} %  "
                  + " ".join(f"{one:.2f}" for one in each), flush=True)
    print("best: {1}, deviation {2}, {0:.2f} %".format(*max(found)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
