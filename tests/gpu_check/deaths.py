"""Checks in which a rank dies, or ends the epoch: every other one has its CommFailure in time, and all end."""
import os
import re
import signal
import time

import place as places  # first: it knows where the next one is
import support
from verdicts import need

THROW_LIMIT_S = 1.0  # until every other rank has its CommFailure, after one is gone
END_LIMIT_S = 10.0  # of the job
RANKS, VICTIM = 3, 1


def in_sums(*mode):
    """Dies while all ranks sum without end."""
    def run(place):
        job = place.start(RANKS, "--", place.program("device_worker"), *mode)
        for _ in range(RANKS):
            place.next_line(job, r"NCCL [\d.]+ on GPU .*")
        pids = places.ranks_of(job)
        need(sorted(pids) == list(range(RANKS)), f"ranks of the job: {pids}")
        return kill(place, job, pids[VICTIM], VICTIM)
    return run


def at(point, to_blame, *mode):
    """Dies at that point of the product's, where it stands until we have seen it. The others blame that rank, which may have ended the epoch before."""
    def run(place):
        words = ["-x@", str(VICTIM), f"HVD_FAULT_POINT={point}:1:stop"]
        job = place.start(RANKS, *words, "--", place.program("device_worker"), *mode)
        return kill(place, job, stopped_rank(place, job, point), to_blame)
    return run


def stopped_rank(place, job, point):
    while time.monotonic() < place.deadline_s and job.process.poll() is None:
        pid = places.ranks_of(job).get(VICTIM)
        if pid and support.state(pid) == "T":
            return pid
        time.sleep(0.005)
    return need(False, f"rank {VICTIM} did not come to {point}: {place.finish(job).words()}")


def kill(place, job, pid, to_blame):
    begin_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    ended = place.finish(job)
    return judge(ended, begin_s, time.monotonic() - begin_s, to_blame)


def judge(ended, begin_s, took_s, to_blame):
    need(ended.status == 128 + signal.SIGKILL, ended.words())
    need(f"first failure: rank {VICTIM} " in ended.err, f"no first failure of rank {VICTIM}: {ended.words()}")
    said = re.findall(rf"failed: .*\brank {to_blame}\b", ended.err)
    need(len(said) >= RANKS - 1, f"{len(said)} of {RANKS - 1} survivors blame rank {to_blame}: {ended.words()}")
    note = f"{judge_throws(ended.out, begin_s, RANKS - 1)}; all ended after {took_s:.2f} s"
    need(took_s < END_LIMIT_S, note)
    return note


def broken(place):
    """The last rank ends the epoch, and lives."""
    ended = place.run(place.command(RANKS, "--", place.program("device_worker"), "abort", "20"))
    need(ended.status == 3, ended.words())
    # Each rank by itself, hvdrun's repetition of one of them aside.
    said = re.findall(rf"^allreduce .*rank {RANKS - 1}: the check ends it$", ended.err, re.MULTILINE)
    need(len(said) == RANKS, f"{len(said)} of {RANKS} ranks say why: {ended.words()}")
    return ""


def judge_throws(out, begin_s, survivors):
    """By the monotonic clock, which is one for all processes of the machine."""
    after_s = [float(at) - begin_s for at in re.findall(r"^failure at ([\d.]+) s$", out, re.MULTILINE)]
    need(len(after_s) == survivors, f"{len(after_s)} of {survivors} survivors say when they had their CommFailure: {out!r}")
    note = f"survivors had their CommFailure {' and '.join(f'{one:.2f} s' for one in after_s)} after the death"
    need(max(after_s) <= THROW_LIMIT_S, f"{note}, which may take {THROW_LIMIT_S:g} s")
    return note
