"""Allreduce by torch's c10d over gloo, between processes on loopback: started by links.py, needs torch.

usage: links_gloo.py -np N --min-bytes B --max-bytes B --seconds S --json FILE. One size, timed as collective_rows times it:
the median over repetitions of the slowest rank, many calls at a time up to 4 KiB.
"""
import argparse
import json
import mmap
import os
import statistics
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

SMALL_BYTES, MIB = 4096, 1 << 20
LEAST, MOST = 7, 4000  # repetitions


def slowest(seconds):
    times = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return times.tolist()


def memory(size):
    """With huge pages, as all that it is compared with has them."""
    pages = mmap.mmap(-1, size)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.float32, count=size // 4).zero_()


def measure(size, seconds):
    tensor = memory(size)
    calls = 1 if size > SMALL_BYTES else 64 if dist.get_world_size() <= os.cpu_count() else 16

    def repetition():
        if calls == 1:
            tensor.zero_()
            dist.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            dist.all_reduce(tensor)
        return (time.perf_counter() - begin) / calls

    for _ in range(50 if size <= MIB else 3):
        dist.all_reduce(tensor)
    once = slowest([sum(repetition() for _ in range(3)) / 3 * calls])[0]
    repetitions = int(min(max(seconds / once, LEAST), MOST))
    return statistics.median(slowest([repetition() for _ in range(repetitions)]))


def wrong(size):
    """Elements that are not the sum of the ranks' numbers."""
    tensor = torch.full((size // 4,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    ranks = dist.get_world_size()
    return int((tensor != ranks * (ranks + 1) / 2).sum())


def run_rank(rank, options, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.np)
    took, bad = measure(options.max_bytes, options.seconds), wrong(options.max_bytes)
    if rank == 0:
        row = {"bytes": options.max_bytes, "time_us": took * 1e6, "algbw_gbps": options.max_bytes / took / 1e9, "wrong": bad}
        with open(options.json, "w") as file:
            json.dump({"rows": [row]}, file)
    dist.barrier()
    dist.destroy_process_group()
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-np", type=int, required=True)
    parser.add_argument("--min-bytes", type=int, required=True)
    parser.add_argument("--max-bytes", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory(prefix="hvd-benchmark-") as folder:
        children = []
        for rank in range(options.np):  # torch is there already, and has started no thread
            pid = os.fork()
            if pid == 0:
                try:
                    os._exit(run_rank(rank, options, os.path.join(folder, "store")))
                except BaseException:
                    traceback.print_exc()
                os._exit(1)
            children.append(pid)
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in children)


sys.exit(main())
