"""Training steps under torch's DistributedDataParallel, for what device_steps asks of hvd: device_ddp.py nccl|gloo

A rank of a job that hvdrun starts. Rank 0 reads numbers of steps from standard input and answers each with their mean
time in milliseconds; 0, or the end, ends the job. nccl: on the rank's GPU. gloo: on the CPU, for a test of this.
"""
import os
import sys
import time

import torch
import torch.distributed as dist

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "benchmark"))
from step_ddp import Mlp  # noqa: E402 (only found through the path above)


def next_request(group):
    """The next number on rank 0's standard input, on every rank. Who waits for it uses no GPU: hvd is timed meanwhile."""
    line = sys.stdin.readline() if dist.get_rank() == 0 else ""
    steps = torch.tensor([int(line or 0)])
    dist.broadcast(steps, 0, group)
    return int(steps.item())


def make(device):
    torch.manual_seed(1)
    net = Mlp()
    net.x, net.y = net.x.to(device), net.y.to(device)
    net.to(device)
    module = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    return module, torch.optim.SGD(module.parameters(), lr=1e-4)


def mean_step_ms(module, optimizer, steps):
    dist.barrier()
    begin_s = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        module().backward()
        optimizer.step()
    next(module.parameters()).detach().flatten()[0].item()  # until the device has done all of it
    return (time.perf_counter() - begin_s) * 1e3 / steps


def main(backend):
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(backend)
    requests = dist.new_group(backend="gloo")
    module, optimizer = make(device)
    while steps := next_request(requests):
        ms = mean_step_ms(module, optimizer, steps)
        if dist.get_rank() == 0:
            print(f"{ms:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
    # The interpreter's own way out sometimes aborts over a thread of torch 2.11's gloo.
    os._exit(0)
