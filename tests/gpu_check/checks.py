"""The checks, in the order in which they are run: what is simple first."""
import os
import re
import shutil
import signal
import statistics
import tempfile
import time

import comparisons
import place as places
from verdicts import Check, CouldNotRun, need

THROW_LIMIT_S = 1.0  # until every other rank has its CommFailure, after one is gone
END_LIMIT_S = 10.0  # of the job
BUCKET_LIMIT_US = 5.0  # of a gradient's hook in the library
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
    return f"{judge_throws(ended.out, begin_s, 2)}; all ended after {took_s:.2f} s"


def judge_throws(out, begin_s, survivors):
    """By the monotonic clock, which is one for all processes of the machine."""
    after_s = [float(at) - begin_s for at in re.findall(r"^failure at ([\d.]+) s$", out, re.MULTILINE)]
    need(len(after_s) == survivors, f"{len(after_s)} of {survivors} survivors say when they had their CommFailure: {out!r}")
    note = f"survivors had their CommFailure {' and '.join(f'{one:.2f} s' for one in after_s)} after the death"
    need(max(after_s) <= THROW_LIMIT_S, f"{note}, which may take {THROW_LIMIT_S:g} s")
    return note


def aborted(place):
    ended = place.run(place.command(3, "--", place.program("device_worker"), "abort", "20"))
    need(ended.status == 3, ended.words())
    # Each rank by itself, hvdrun's repetition of one of them aside.
    said = [row for row in ended.err.splitlines() if row.startswith("allreduce ") and row.endswith("rank 2: the check ends it")]
    need(len(said) == 3, f"{len(said)} of 3 ranks say why: {ended.words()}")
    return ""


def launch_times(place):
    ended = place.job(2, "--", place.program("device_worker"), "times")
    return judge_times(ended.out, place.stand_ins)


def judge_times(out, stand_ins):
    """What the driver's calls take is not judged where a stand-in does them."""
    us = {name: float(value) for name, value in (row.split(": ") for row in out.splitlines())}
    bare = max(us["event record"], 1e-3)
    ratios = [f"{name} {us[name]:.1f} us, {us[name] / bare:.1f} times that" for name in ("bucket", "bucket's median", "submit", "log's hop and launch")]
    note = f"event record {bare:.1f} us; {'; '.join(ratios)} (medians of rank 0 of 2; a bucket, with its launch, as a step's mean, may cost {BUCKET_LIMIT_US:g} us on a GPU)"
    need(stand_ins or us["bucket"] <= BUCKET_LIMIT_US, note)
    return note


def overlap(place):
    ended = place.job(2, "--", place.program("device_worker"), "overlap", str(256 if place.stand_ins else 1024))
    return judge_overlap(ended.out, 2)


OVERLAP = re.compile(r"compute ([\d.]+) ms; sum from (-?[\d.]+) to (-?[\d.]+) ms; launched in ([\d.]+) ms; then (\w+)")


def judge_overlap(out, ranks):
    """Times of the device's events, on each rank from the beginning of its compute."""
    rows = OVERLAP.findall(out)
    need(len(rows) == ranks, f"{len(rows)} of {ranks} ranks say when: {out!r}")
    notes = []
    for *times, then in rows:
        compute, begin, end, launched = map(float, times)
        note = f"a sum from {begin:.1f} to {end:.1f} ms of {compute:.1f} ms of copies, launched in {launched:.1f} ms"
        need(then == "computing", f"the host had the sum launched only once the copies were over: {note}")
        need(0 <= begin <= end < compute, f"the sum did not go on beside them: {note}")
        notes.append(note)
    return "; ".join(notes)


def gradient_copies(place):
    words = places.torch_words(place, "device_steps")
    ended = place.job(2, *words, "--", place.program("device_steps"), "copies")
    said = set(ended.out.splitlines())
    need(len(ended.out.splitlines()) == 2 and len(said) == 1, f"ranks say {ended.out!r}")
    return f"{said.pop()}, by LibTorch's record of its operators"


def loss_curve(place):
    return judge_curve(place.job(2, *curve_words(place.program("device_steps"), places.torch_words(place, "device_steps"))))


def curve_words(program, words=(), device=()):
    return [*words, "--deterministic", "--", program, "curve", *device]


def judge_curve(ended):
    """The program compares, and fails where they part."""
    said = ended.out.splitlines()
    need(len(said) == 2 and len(set(said)) == 1 and said[0].endswith(": those of one process, bit for bit"), f"ranks say {ended.out!r}")
    return said[0]


def mnist(place):
    """Two ranks with half a batch each, and one with all of it."""
    words, losses = places.torch_words(place, "mnist"), {}
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
    words, rates = places.torch_words(place, "synthetic_benchmark"), {}
    shape = ["--model", "resnet18", "--batch-size", "8", "--image-size", "64", "--num-warmup-batches", "2", "--num-batches-per-iter", "4",
             "--num-iters", "2"]
    for ranks in (1, 2):
        ended = place.job(ranks, *words, *nccl_words(ranks), "--", place.program("synthetic_benchmark"), *shape)
        need_nccl(ranks, ended)
        found = re.search(r"^Total img/sec on \d+ \S+: ([\d.]+)", ended.out, re.MULTILINE)
        need(found, f"no rate: {ended.words()}")
        rates[ranks] = found[1]
    shared = " that share the GPU" * place.shares(2)
    return f"{rates[1]} images a second of one process, {rates[2]} of two{shared}"


# Together with what place.describe() may take they have no more than the whole run: main.LIMIT_S.
CHECKS = [
    Check("hvdrun devices", 15, devices),
    *(Check(f"values of {ranks} rank{'s' * (ranks > 1)}", 25, values(ranks)) for ranks in (1, 2, 3, 4)),
    Check("a rank killed in a sum", 25, killed),
    Check("an epoch that a rank ends", 25, aborted),
    Check("host time of a launch", 20, launch_times),
    Check("a sum beside compute", 20, overlap),
    Check("the loss curve of two ranks and of one process", 30, loss_curve),
    Check("mnist, two ranks and one process", 50, mnist),
    Check("synthetic_benchmark, two ranks and one process", 40, synthetic),
    Check("copies of gradients", 30, gradient_copies),
    Check("a step's time beside torch's DDP", 55, comparisons.step_times),
    Check("bus bandwidth beside nccl-tests", 50, comparisons.bandwidth),
]
