"""Trains a small model with torch.distributed alone, as its tutorial does; knows nothing of hvdrun."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")  # env://
    rank, size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(7)
    inputs = torch.randn(64, 3)
    targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.25

    torch.manual_seed(100 + rank)  # DDP has to bring rank 0's parameters to all
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mine = slice(rank, None, size)
    for step in range(100):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine])
        loss.backward()
        optimizer.step()

    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    all_flat = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(all_flat, flat)
    same = all(torch.equal(flat, other) for other in all_flat)
    print(f"rank {rank} of {size}, same: {same}, weights: " + " ".join(f"{x:.2f}" for x in flat.tolist()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # The interpreter's own way out sometimes aborts over a thread of torch 2.11's gloo, also without a launcher.
    os._exit(0)
