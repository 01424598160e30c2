"""Idle: what hvdrun, keeper and agent, and ranks that are blocked in a collective, cost while nothing happens."""
import os
import subprocess
import tempfile
import threading
import time

from experiment import Experiment, RunFailed, Variant
from machine import cpu_s, descendants, status_kib
from programs import built, environment
from samples import Claim, Term
from usage import positive

HELP = "CPU time per minute and memory of a job in which nothing happens"
DETAILS = """\
Jobs of four ranks: /bin/sleep, and three ranks that wait for the fourth, in a synchronous allreduce, in wait() of an
asynchronous one, at the end of an optimizer's step. Targets: hvdrun, keeper and agent together at most 150 ms of CPU a
minute and 38 MiB (40 MB; proportional set size), a blocked rank at most 10 ms."""
SAMPLES, SECONDS = 5, 800
NP = 4
START_S = 20.0
SETTLE_S = 3.0  # sleepers look around more often in their first second
SLEEP = "ranks that sleep"
BLOCKED = {"ranks blocked in allreduce": "call", "ranks blocked in an asynchronous wait": "async", "ranks blocked in step()": "step"}


def add_arguments(parser):
    parser.add_argument("--window", type=positive, default=15, metavar="S", help="length of one sample (15)")


class Job:
    """A running hvdrun whose ranks do nothing. The ranks are what does not run hvdrun's own file."""

    def __init__(self, hvdrun, words, ready_lines):
        words = [hvdrun, "-np", str(NP), "--no-tag-output", "--", *words]
        self.words = tempfile.TemporaryFile("w+")  # how it ends, too, which is of no interest when we ask for that
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.words, text=True, env=environment())
        try:
            self._await_lines(ready_lines)
            self.launcher, self.ranks = self._await_ranks(os.stat(hvdrun).st_ino)
        except RunFailed:
            self.end()
            raise
        time.sleep(SETTLE_S)

    def _await_lines(self, count):
        timer = threading.Timer(START_S, self.process.kill)
        timer.start()
        lines = [self.process.stdout.readline() for _ in range(count)]
        timer.cancel()
        if not all(lines):
            raise RunFailed(f"no start within {START_S:g} s: {' '.join(self.process.args)}: {self.last_words()}")

    def _await_ranks(self, inode):
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            launcher, ranks = [self.process.pid], []
            for pid in descendants(self.process.pid):
                try:
                    (launcher if os.stat(f"/proc/{pid}/exe").st_ino == inode else ranks).append(pid)
                except OSError:
                    pass  # it ended, or is about to run something else
            if len(ranks) == NP:
                return launcher, ranks
            time.sleep(0.02)
        raise RunFailed(f"no {NP} ranks within {START_S:g} s: {' '.join(self.process.args)}")

    def last_words(self):
        self.words.seek(0)
        return self.words.read().strip().rpartition("\n")[2]

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.words.close()


def pss_kib(pid):
    kib = status_kib(pid, "Pss", "smaps_rollup")
    if kib == 0:
        raise RunFailed(f"the memory of process {pid} cannot be read")
    return kib


class Jobs:
    """Runs one at a time: what several had in common would count for each of them in part only."""

    def __init__(self, options):
        self.window_s = options.window
        self.hvdrun = built(options.build, "hvdrun")
        rank = built(options.build, "blocked_rank")
        self.commands = {SLEEP: (["sleep", "86400"], 0), **{case: ([rank, wait], NP - 1) for case, wait in BLOCKED.items()}}
        self.case, self.job = None, None

    def measure(self, case):
        if case != self.case:
            self.close()
            self.case, self.job = case, Job(self.hvdrun, *self.commands[case])
        job = self.job
        pids = [*job.launcher, *job.ranks]
        before, begin_s = {pid: cpu_s(pid) for pid in pids}, time.monotonic()
        time.sleep(self.window_s)
        if job.process.poll() is not None:
            raise RunFailed(f"it ended by itself with status {job.process.returncode}: {job.last_words()}")
        per_minute = 60e3 / (time.monotonic() - begin_s)
        spent = {pid: (cpu_s(pid) - before[pid]) * per_minute for pid in pids}
        return {
            "launcher CPU": sum(spent[pid] for pid in job.launcher),
            "launcher memory": sum(pss_kib(pid) for pid in job.launcher) / 1024,
            "busiest rank CPU": max(spent[pid] for pid in job.ranks),
        }

    def close(self):
        if self.job:
            self.job.end()
        self.case, self.job = None, None


def make(options):
    jobs = Jobs(options)
    claims = []
    for case in (SLEEP, *BLOCKED):
        claims += [
            Claim(f"{case}: hvdrun, keeper and agent", Term(case, ("job",), "launcher CPU"), at_most=150, unit=" ms/min"),
            Claim(f"{case}: hvdrun, keeper and agent", Term(case, ("job",), "launcher memory"), at_most=38, unit=" MiB"),
        ]
    claims += [Claim(f"{case}: the busiest", Term(case, ("job",), "busiest rank CPU"), at_most=10, unit=" ms/min") for case in BLOCKED]
    metrics = {"launcher CPU": "ms/min", "launcher memory": "MiB", "busiest rank CPU": "ms/min"}
    return Experiment("idle", [SLEEP, *BLOCKED], [Variant("job", jobs.measure, ours=True)], claims, metrics, close=jobs.close)
