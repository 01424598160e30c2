"""The checks, in the order in which they are run: what is simple first."""
import os
import re
import shutil
import statistics
import tempfile

import comparisons
import deaths
import traces
from place import ROOT
from torch_part import torch_words
from verdicts import Check, CouldNotRun, need

DIGITS = os.path.join(ROOT, "examples", "data", "digits")
BUCKET_LIMIT_US = 5.0  # of a gradient's hook in the library
EPOCHS = 5


def devices(place):
    if not shutil.which("nvidia-smi", path=place.environment.get("PATH")):
        raise CouldNotRun("there is no nvidia-smi on the PATH")
    ended = place.run([place.program("hvdrun"), "devices"])
    need(ended.status == 0, ended.words())
    need(re.search(r"^0 +\d+ ", ended.out, re.MULTILINE), f"no row for rank 0: {ended.out}")
    return ""


def values(ranks):
    def run(place):
        ended = place.job(ranks, "--", place.program("device_worker"), "values")
        said = re.findall(r"^right: \d+ collectives$", ended.out, re.MULTILINE)
        need(len(said) == ranks and len(set(said)) == 1, f"ranks say {ended.out!r}")
        return said[0]
    return run


def launch_times(place):
    ended = place.job(2, "--", place.program("device_worker"), "times")
    return judge_times(ended.out, place.stand_ins)


TIMES = ("event record", "bucket", "bucket's median", "submit", "log's hop and launch")


def judge_times(out, stand_ins):
    """What the driver's calls take is not judged where a stand-in does them."""
    us = {name: float(value) for name, value in re.findall(r"^([a-z' ]+): ([\d.]+)$", out, re.MULTILINE)}
    need(all(name in us for name in (*TIMES, "steps")), f"not a time of each of {', '.join(TIMES)}: {out!r}")
    bare = max(us["event record"], 1e-3)
    ratios = [f"{name} {us[name]:.1f} us, {us[name] / bare:.1f} times that" for name in TIMES[1:]]
    note = f"event record {bare:.1f} us; {'; '.join(ratios)} (medians of rank 0 of 2, of {us['steps']:.0f} steps; a bucket, with its launch, as a step's mean, may cost {BUCKET_LIMIT_US:g} us on a GPU)"
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
    words = torch_words(place, "device_steps")
    ended = place.job(2, *words, "--", place.program("device_steps"), "copies")
    said = same_of_both(r"^\d+ gradients: copied in .*$", ended)
    return f"{said}, by LibTorch's record of its operators"


def loss_curve(place):
    return judge_curve(place.job(2, *curve_words(place.program("device_steps"), torch_words(place, "device_steps"))))


def curve_words(program, words=(), device=()):
    return [*words, "--deterministic", "--", program, "curve", *device]


def judge_curve(ended):
    """The program compares, and fails where they part."""
    return same_of_both(r"^\d+ losses, .*: those of one process, bit for bit$", ended)


def same_of_both(pattern, ended):
    """The line that each of two ranks says."""
    said = re.findall(pattern, ended.out, re.MULTILINE)
    need(len(said) == 2 and len(set(said)) == 1, f"ranks say {ended.out!r}")
    return said[0]


def mnist(place):
    """Two ranks with half a batch each, and one with all of it."""
    words, losses = torch_words(place, "mnist"), {}
    with tempfile.TemporaryDirectory(prefix="hvd-gpu-check-") as folder:
        for ranks in (1, 2):
            checkpoint = os.path.join(folder, f"{ranks}.pt")
            # The program multiplies the rate by the number of ranks.
            shape = ["--batch-size", str(64 // ranks), "--lr", str(0.02 / ranks), "--epochs", str(EPOCHS), "--log-interval", "1000",
                     "--data-dir", DIGITS, "--checkpoint", checkpoint]
            ended = place.job(ranks, *words, *nccl_words(ranks), "--", place.program("mnist"), *shape)
            need_nccl(ranks, ended)
            need_gpu(checkpoint)
            losses[ranks] = [float(loss) for loss in re.findall(r"Average loss: ([\d.]+)", ended.out)]
    return judge_losses(losses[1], losses[2])


def need_gpu(checkpoint):
    """A checkpoint names the device that each tensor lay on."""
    with open(checkpoint, "rb") as file:
        need(b"cuda:" in file.read(), "the program has trained on the CPU: its checkpoint names no GPU")


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
        rates[ranks] = rate_on_gpus(ended, ranks)
    shared = " that share the GPU" * place.shares(2)
    return f"{rates[1]} images a second of one process, {rates[2]} of two{shared}"


def rate_on_gpus(ended, ranks):
    found = re.search(r"^Total img/sec on (\d+) (\S+): ([\d.]+)", ended.out, re.MULTILINE)
    need(found, f"no rate: {ended.words()}")
    need(found[1] == str(ranks) and found[2] == "GPU(s)", f"it has trained on {found[1]} {found[2]}, not on {ranks} GPU(s)")
    return found[3]


WORKER_SUMS, WORKER_STEPS, WORKER_ABORT = ("sums", "0"), ("steps",), ("abort", "2")

# Together with what facts.describe() may take they have no more than the whole run: main.LIMIT_S.
CHECKS = [
    Check("hvdrun devices", 12, devices),
    *(Check(f"values of {ranks} rank{'s' * (ranks > 1)}", limit_s, values(ranks)) for ranks, limit_s in ((1, 15), (2, 16), (3, 20), (4, 22))),
    Check("a rank killed in a sum", 18, deaths.in_sums(*WORKER_SUMS)),
    Check("a rank killed in steps of buckets", 18, deaths.in_sums(*WORKER_STEPS)),
    Check("a rank killed while NCCL connects", 18, deaths.at("nccl_connect", deaths.VICTIM, *WORKER_SUMS)),
    Check("a rank killed in an abort of NCCL", 18, deaths.at("nccl_abort", deaths.RANKS - 1, *WORKER_ABORT)),
    Check("an epoch that a rank ends", 15, deaths.broken),
    Check("host time of a launch", 20, launch_times),
    Check("a sum beside compute", 15, overlap),
    Check("the loss curve of two ranks and of one process", 22, loss_curve),
    Check("mnist, two ranks and one process", 40, mnist),
    Check("synthetic_benchmark, two ranks and one process", 30, synthetic),
    Check("copies of gradients", 18, gradient_copies),
    Check("kernels and copies of steps, by CUPTI", 25, traces.steps),
    Check("a step's time beside torch's DDP", 45, comparisons.step_times),
    Check("bus bandwidth beside nccl-tests", 45, comparisons.bandwidth),
]
