"""Training steps under torch's DistributedDataParallel (gloo), on demand. Started once per rank by step.py.

Reads lines "net mode steps"; rank 0 answers each with its median step in milliseconds. Modes: ddp, ddp-view
(gradient_as_bucket_view=True), plain (no DDP). The nets are those of step_nets.h.
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Mnist(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.drop = nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)
        self.x, self.y = torch.randn(64, 1, 28, 28), torch.randint(10, (64,))

    def forward(self):
        h = F.relu(F.max_pool2d(self.conv1(self.x), 2))
        h = F.relu(F.max_pool2d(self.drop(self.conv2(h)), 2)).view(-1, 320)
        h = F.dropout(F.relu(self.fc1(h)), training=self.training)
        return F.nll_loss(F.log_softmax(self.fc2(h), 1), self.y)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(1024, 4096), nn.Linear(4096, 4096), nn.Linear(4096, 1024)
        self.x, self.y = torch.randn(32, 1024), torch.randint(1024, (32,))

    def forward(self):
        h = F.relu(self.b(F.relu(self.a(self.x))))
        return F.nll_loss(F.log_softmax(self.c(h), 1), self.y)


class Vectors(nn.Module):
    """160 gradients of one size and next to no computation."""

    def __init__(self, kilobytes):
        super().__init__()
        self.p = nn.ParameterList([nn.Parameter(torch.randn(kilobytes * 256)) for _ in range(160)])
        self.x = [torch.randn(kilobytes * 256) for _ in range(160)]

    def forward(self):
        return torch.stack([torch.dot(p, x) for p, x in zip(self.p, self.x)]).sum()


def make(net, mode):
    torch.manual_seed(1)
    module = Mnist() if net == "mnist" else Mlp() if net == "mlp" else Vectors(int(net))
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.5 if net == "mnist" else 0)
    if mode != "plain":
        module = nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=mode == "ddp-view")
    return module, optimizer


def timed_step(module, optimizer):
    begin = time.perf_counter()
    optimizer.zero_grad()
    module().backward()
    optimizer.step()
    return (time.perf_counter() - begin) * 1e3


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainers = {}
    for line in sys.stdin:
        net, mode, steps = line.split()
        if (net, mode) not in trainers:
            trainers[net, mode] = make(net, mode)
        dist.barrier()
        times = [timed_step(*trainers[net, mode]) for _ in range(int(steps))]
        dist.barrier()
        if os.environ["RANK"] == "0":
            print(f"{statistics.median(times):.4f}", flush=True)


if __name__ == "__main__":
    main()
