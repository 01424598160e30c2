"""The checks, in the order in which they are run: what is simple first."""
import os
import re
import shutil
import signal
import statistics
import tempfile
import time

import place as places
from verdicts import Check, CouldNotRun, need

END_LIMIT_S = 10.0  # of all ranks, after one is gone
EPOCHS = 5


def devices(place):
    if not shutil.which("nvidia-smi"):
        raise CouldNotRun("there is no nvidia-smi on the PATH")
    ended = place.run([place.program("hvdrun"), "devices"])
    need(ended.status == 0, ended.words())
    need(re.search(r"^0 +\d+ ", ended.out, re.MULTILINE), f"no row for rank 0: {ended.out}")
    return ""


def values(ranks):
    def run(place):
        ended = place.job(ranks, "--", place.program("device_worker"), "values")
        counts = set(ended.out.splitlines())
        need(len(ended.out.splitlines()) == ranks and len(counts) == 1, f"ranks say {ended.out!r}")
        return counts.pop()
    return run


def start_sums(place, ranks):
    """Once all ranks are in sums without end; and who is which."""
    job = place.start(ranks, "--", place.program("device_worker"), "sums", "0")
    for _ in range(ranks):
        if not job.stdout.readline():
            need(False, place.finish(job).words())
    return job, {places.rank_of(pid): pid for pid in places.ranks_of(job)}


def killed(place):
    job, pids = start_sums(place, 3)
    need(sorted(pids, key=str) == [0, 1, 2], f"ranks of the job: {pids}")
    begin_s = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    ended = place.finish(job)
    took_s = time.monotonic() - begin_s
    need(ended.status == 128 + signal.SIGKILL, ended.words())
    need("first failure: rank 1 " in ended.err, f"no first failure of rank 1: {ended.words()}")
    named = [row for row in ended.err.splitlines() if "failed: " in row and "rank 1" in row]
    need(named, f"no other rank says that rank 1 is gone: {ended.words()}")
    need(took_s < END_LIMIT_S, f"all ended, but after {took_s:.1f} s")
    return f"all ended after {took_s:.2f} s"


def aborted(place):
    ended = place.run(place.command(3, "--", place.program("device_worker"), "abort", "20"))
    need(ended.status == 3, ended.words())
    # Each rank by itself, hvdrun's repetition of one of them aside.
    said = [row for row in ended.err.splitlines() if row.startswith("allreduce ") and row.endswith("rank 2: the check ends it")]
    need(len(said) == 3, f"{len(said)} of 3 ranks say why: {ended.words()}")
    return ""


def launch_times(place):
    ended = place.job(2, "--", place.program("device_worker"), "times")
    us = {name: float(value) for name, value in (row.split(": ") for row in ended.out.splitlines())}
    bare = max(us["event record"], 1e-3)
    ratios = [f"{name} {us[name]:.1f} us, {us[name] / bare:.1f} times that" for name in ("submit", "log's hop and launch")]
    return f"event record {bare:.1f} us; {'; '.join(ratios)} (medians of rank 0 of 2; of a submit 5 us are the goal)"


def torch_words(place, program):
    if place.stand_ins:
        raise CouldNotRun("LibTorch's CUDA part needs the driver itself")
    return ["-x", f"LD_PRELOAD={places.torch_cuda(place, program)}"]


def mnist(place):
    """Two ranks with half a batch each, and one with all of it."""
    words, losses = torch_words(place, "mnist"), {}
    with tempfile.TemporaryDirectory(prefix="hvd-gpu-check-") as folder:
        for ranks in (1, 2):
            # The program multiplies the rate by the number of ranks.
            shape = ["--batch-size", str(64 // ranks), "--lr", str(0.02 / ranks), "--epochs", str(EPOCHS), "--log-interval", "1000"]
            ended = place.job(ranks, *words, *nccl_words(ranks), "--", place.program("mnist"), *shape, "--checkpoint", f"{folder}/{ranks}.pt")
            need_nccl(ranks, ended)
            losses[ranks] = [float(loss) for loss in re.findall(r"Average loss: ([\d.]+)", ended.out)]
    return judge_losses(losses[1], losses[2])


def judge_losses(one, two):
    """Not the same bits, as each rank draws its own dropout: on CPUs a half of the epochs were nearer than 0.12, all than 0.22."""
    note = f"losses of one process {one}, of two {two}"
    need(len(one) == len(two) == EPOCHS, f"not one of each epoch: {note}")
    need(one[-1] < one[0] / 2, f"one process does not learn: {note}")
    apart = [abs(a - b) / a for a, b in zip(one, two)]
    need(statistics.median(apart) < 0.25 and max(apart) < 0.5, f"they part: {note}")
    return note


def nccl_words(ranks):
    return ["--nccl-debug", "0"] if ranks > 1 else []


def need_nccl(ranks, ended):
    need(ranks == 1 or "NCCL INFO" in ended.err + ended.out, "NCCL was not used: the program has computed on the CPU")


def synthetic(place):
    words, rates = torch_words(place, "synthetic_benchmark"), {}
    shape = ["--model", "resnet18", "--batch-size", "8", "--image-size", "64", "--num-warmup-batches", "2", "--num-batches-per-iter", "4",
             "--num-iters", "2"]
    for ranks in (1, 2):
        ended = place.job(ranks, *words, *nccl_words(ranks), "--", place.program("synthetic_benchmark"), *shape)
        need_nccl(ranks, ended)
        found = re.search(r"^Total img/sec on \d+ \S+: ([\d.]+)", ended.out, re.MULTILINE)
        need(found, f"no rate: {ended.words()}")
        rates[ranks] = found[1]
    return f"{rates[1]} images a second of one process, {rates[2]} of two that share the GPU"


def not_there(why):
    def run(place):
        raise CouldNotRun(why)
    return run


CHECKS = [
    Check("hvdrun devices", 30, devices),
    *(Check(f"values of {ranks} rank{'s' * (ranks > 1)}", 60, values(ranks)) for ranks in (1, 2, 3, 4)),
    Check("a rank killed in a sum", 45, killed),
    Check("an epoch that a rank ends", 45, aborted),
    Check("host time of a launch", 45, launch_times),
    Check("mnist, two ranks and one process", 90, mnist),
    Check("synthetic_benchmark, two ranks and one process", 60, synthetic),
    Check("copies and overlap by a profiler's counters", 1, not_there("this script does not measure it")),
    Check("step time beside torch's DDP", 1, not_there("this script does not measure it")),
    Check("bus bandwidth beside nccl-tests", 1, not_there("this script does not measure it: it needs several GPUs")),
]
