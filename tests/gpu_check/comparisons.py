"""Checks that compare: ratios of one run beside what others take, judged by the rules of tests/benchmark/samples."""
import os
import re
import shutil
import statistics

import place  # noqa: F401 (it knows where the next one is)
from samples import MET, MISSED, Cell, Claim, Record, Term, judge
from torch_part import python_with_cuda, torch_words
from verdicts import CouldNotRun, Failed, need

OURS, THEIRS = "hvd", "peer"
DDP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "device_ddp.py")

ROUNDS, STEPS = 9, 3
LEAST_LEFT_S = 15.0  # for a round, and the end of both jobs

RUNS, SUMS = 5, 100
SIZES_MIB = (2, 32, 512)  # the first is a bucket's
PERF = "all_reduce_perf"
BANDWIDTH = 0.98  # of nccl-tests'


def compare(what, unit, over, under, at_least=None):
    """The words for n-th samples of ours and theirs as ratios; and what became of the target."""
    records = {Cell(what, OURS): Record(), Cell(what, THEIRS): Record()}
    for name, numbers in zip(records, (over, under)):
        for number in numbers:
            records[name].add({unit: number}, 0.0)
    verdict = judge(Claim(what, Term(what, (OURS,), unit), Term(what, (THEIRS,), unit), at_least=at_least), records)
    low, median, high = verdict.spread
    said = f"{what} {statistics.median(over):.4g} and {statistics.median(under):.4g} {unit}, ratio {median:.3f} ({low:.3f} to {high:.3f})"
    if at_least is not None:
        said += f", at least {at_least:g} is wanted: {verdict.outcome}{f' ({verdict.why})' if verdict.why else ''}"
    return said, verdict.outcome


class Trainer:
    """A job that makes steps on demand."""

    def __init__(self, place, np, *words):
        self.place = place
        self.job = place.start(np, *words)

    def step_ms(self, steps):
        self.job.say(f"{steps}\n")
        return float(self.place.next_line(self.job, r"(\d+\.\d+)")[1])

    def end(self):
        ended = self.place.finish(self.job)
        need(ended.status == 0, ended.words())


def step_times(place):
    words, python = torch_words(place, "device_steps"), python_with_cuda(place)
    ours = [*words, "--", place.program("device_steps"), "times"]
    theirs = ["--", python, DDP, "nccl"]
    try:
        return compare_steps(place, 2, ours, theirs)
    except Peerless as error:
        why = f"one rank each, since with two {error}"
        try:
            said = compare_steps(place, 1, ours, theirs)
        except CouldNotRun as alone:
            raise CouldNotRun(f"{alone}; {why}") from None
        return f"{said}; {why}"


class Peerless(Failed):
    """DDP did not make its first steps."""


def compare_steps(place, np, ours, theirs):
    """The same net and ranks for both, that take turns; both started the same way. CouldNotRun where nothing is judged."""
    peer = Trainer(place, np, *theirs)
    try:
        peer.step_ms(STEPS)
    except Failed as error:
        raise Peerless(str(error)) from None
    hvd = Trainer(place, np, *ours)
    hvd.step_ms(STEPS)
    times = {OURS: [], THEIRS: []}
    while len(times[OURS]) < ROUNDS and place.left_s() > LEAST_LEFT_S:
        times[THEIRS].append(peer.step_ms(STEPS))
        times[OURS].append(hvd.step_ms(STEPS))
    need(times[OURS], "no time was left after the first steps")
    peer.end()
    hvd.end()
    # Where ranks share a GPU, it is the turns of their processes that are timed.
    share = place.shares(np)
    judged = np > 1 and not share
    said, outcome = compare(f"{np} rank{'s' * (np > 1)}{' that share the GPU' * share}: a step of DDP and hvd", "ms",
                            times[THEIRS], times[OURS], 1.0 if judged else None)
    if not judged:
        raise CouldNotRun(f"{said}; not judged")
    return conclude([outcome], said)


def conclude(outcomes, said):
    need(MISSED not in outcomes, said)
    if any(outcome != MET for outcome in outcomes):
        raise CouldNotRun(said)
    return said


def bus_gb_s(size, us, ranks):
    """As nccl-tests has it: what each link has to carry, by any algorithm, in 10^9 bytes a second."""
    return size / us / 1e3 * 2 * (ranks - 1) / ranks


def own_rates(out, ranks):
    """By size, of the slowest rank."""
    us = {}
    for size, value in re.findall(r"^(\d+): ([\d.]+)$", out, re.MULTILINE):
        us.setdefault(int(size), []).append(float(value))
    need(us and all(len(values) == ranks for values in us.values()), f"not each of {ranks} ranks says how long: {out!r}")
    return {size: bus_gb_s(size, max(values), ranks) for size, values in us.items()}


def peers_rates(out):
    """By size, in place: the last but one of the columns that nccl-tests prints."""
    rates = {}
    for words in map(str.split, out.splitlines()):
        if words and words[0].isdigit() and len(words) >= 12:
            rates[int(words[0])] = float(words[-2])
    return rates


def bandwidth(place):
    if place.gpus < 2:
        raise CouldNotRun("there is one GPU")
    sums, sizes_mib = (3, (1,)) if place.stand_ins else (SUMS, SIZES_MIB)
    sizes = [mib << 20 for mib in sizes_mib]
    ours = place.command(place.gpus, "--", place.program("device_worker"), "bandwidth", *map(str, (sums, *sizes_mib)))
    peer = shutil.which(PERF, path=place.environment.get("PATH"))
    theirs = [peer, "-g", str(place.gpus), "-b", str(sizes[0]), "-e", str(sizes[-1]), "-f", "16", "-w", "5", "-n", str(sums), "-c", "0"]
    seen = {OURS: [], THEIRS: []}
    while len(seen[OURS]) < (RUNS if peer else 1):
        seen[OURS].append(own_rates(ended_well(place, ours), place.gpus))
        if peer:
            seen[THEIRS].append(peers_rates(ended_well(place, theirs)))
    return judge_bandwidth(seen[OURS], seen[THEIRS], sizes)


def ended_well(place, words):
    ended = place.run(words)
    need(ended.status == 0, ended.words())
    return ended.out


def judge_bandwidth(ours, theirs, sizes):
    need(all(size in rates for size in sizes for rates in ours + theirs), f"not a figure for each size: {ours}, {theirs}")
    column = lambda rates, size: [one[size] for one in rates]  # noqa: E731
    if not theirs:
        said = ", ".join(f"{size >> 20} MiB {statistics.median(column(ours, size)):.4g} GB/s" for size in sizes)
        raise CouldNotRun(f"{said}; beside nothing, as there is no {PERF} on the PATH")
    notes, outcomes = zip(*(compare(f"{size >> 20} MiB: hvd and nccl-tests", "GB/s", column(ours, size), column(theirs, size), BANDWIDTH)
                            for size in sizes))
    return conclude(outcomes, "; ".join(notes))
