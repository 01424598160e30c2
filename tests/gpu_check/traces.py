"""The check of what a GPU does in training steps, by the record of CUPTI: all kernels and copies, those below LibTorch too."""
import re
from typing import NamedTuple

from torch_part import torch_words
from verdicts import CouldNotRun, need

RANKS = 2
HEAD = re.compile(r"^rank (\d+): (\d+) steps of (\d+) buckets$", re.MULTILINE)
ROW = re.compile(r"^rank (\d+): (kernel|copy) ([\d.]+) ([\d.]+) (.*)$", re.MULTILINE)


class Span(NamedTuple):
    begin_us: float
    end_us: float
    kind: str
    name: str


def steps(place):
    ended = place.job(RANKS, *torch_words(place, "device_steps"), "--", place.program("device_steps"), "trace")
    return judge(ended)


def judge(ended):
    heads = {rank: (int(count), int(buckets)) for rank, count, buckets in HEAD.findall(ended.out)}
    need(len(heads) == RANKS, f"{len(heads)} of {RANKS} ranks tell of their steps: {ended.words()}")
    spans = {rank: [] for rank in heads}
    for rank, kind, begin, end, name in ROW.findall(ended.out):
        spans[rank].append(Span(float(begin), float(end), kind, name))
    if not all(spans.values()):
        own = [row for row in ended.err.splitlines() if not row.startswith("hvdrun: ")]
        raise CouldNotRun(f"CUPTI has told LibTorch's profiler nothing{''.join(f': {row}' for row in own[:1])}")
    return "; ".join(f"rank {rank}: {judge_rank(spans[rank], *heads[rank])}" for rank in sorted(heads))


def judge_rank(spans, count, buckets):
    kernels = sorted(span for span in spans if span.kind == "kernel")
    sums = [span for span in kernels if span.name.startswith("nccl")]
    casts = [span for span in kernels if span.name.startswith("hvd_cast")]
    compute = [span for span in kernels if not span.name.startswith(("nccl", "hvd_"))]
    copies = [span for span in spans if span.kind == "copy" and "DtoD" in span.name]
    said = f"{count} steps of {buckets} buckets, {len(sums)} kernels of NCCL's, {len(casts)} hvd_cast, {len(copies)} copies within the device"
    need(len(sums) <= count * buckets, f"more than one kernel of NCCL's for a bucket and step: {said}")
    need(len(casts) <= count * buckets, f"more than one kernel that copies for a bucket and step: {said}")
    need(not copies, f"something is copied within the device: {said}")
    if len(sums) < count * buckets:  # a sum that was not made would be seen in values, so it is the record that lacks some
        raise CouldNotRun(f"CUPTI has not told of all sums: {said}")
    inner = [span for number, span in enumerate(sums) if (number + 1) % buckets]
    beside = sum(any(one.begin_us < span.end_us and span.begin_us < one.end_us for one in compute) for span in inner)
    need(beside == len(inner), f"{beside} of {len(inner)} sums before a step's last one ran beside the backward pass: {said}")
    return f"{said}; all {len(inner)} sums before a step's last one ran beside the backward pass"
