"""Where checks run: a built tree, and what is started of it, each within its check's deadline."""
import ctypes
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path += [os.path.join(ROOT, "tests", folder) for folder in ("benchmark", "end_to_end")]
import machine  # noqa: E402 (only found through the path above)
import support  # noqa: E402

import environment  # noqa: E402
from verdicts import CouldNotRun, Failed, need  # noqa: E402

LOADER_FAILED = 127  # what the dynamic loader ends with
END_BY_ITSELF_S = 1.0  # what a job leaves may take so long, as its launcher's own children that were told to end


class NotBuilt(Exception):
    """A program is missing, or does not start, without which nothing can be checked. The text says what to do."""


class Ended(NamedTuple):
    status: int
    out: str
    err: str

    def words(self):
        """The first line of a rank's own, and the last, in which hvdrun says who failed first."""
        lines = (self.err.strip() or self.out.strip() or "no output").splitlines()
        own = [row for row in lines if not row.startswith(("hvdrun: ", "  | "))]
        return f"exit status {self.status}: " + " | ".join(dict.fromkeys(own[:1] + lines[-1:]))


class Job:
    """A process whose lines are read while it runs. What it says on stderr goes to a file, so that it never waits for a reader."""

    def __init__(self, words, variables, stdin):
        self.words, self.errors, self.unread = words, tempfile.TemporaryFile(), b""
        self.process = subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, stderr=self.errors, env=variables)
        self.pid = self.process.pid

    def say(self, text):
        try:
            self.process.stdin.write(text.encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is found in what it says

    def next_line(self, pattern, deadline_s):
        """The next line that is like the pattern, as a match; None: its output has ended without, or the deadline has passed."""
        while True:
            while b"\n" in self.unread:
                line, self.unread = self.unread.split(b"\n", 1)
                if found := re.fullmatch(pattern, line.decode(errors="replace")):
                    return found
            stream = self.process.stdout.fileno()
            if not select.select([stream], [], [], max(deadline_s - time.monotonic(), 0))[0]:
                return None
            came = os.read(stream, 1 << 16)
            if not came:
                return None
            self.unread += came

    def finish(self, limit_s):
        out, _ = self.process.communicate(timeout=limit_s)
        return Ended(self.process.returncode, (self.unread + out).decode(errors="replace"), self.close())

    def close(self):
        """Once it has ended. Returns what it has said on stderr."""
        self.process.poll()
        for stream in filter(None, (self.process.stdin, self.process.stdout)):
            stream.close()
        with self.errors:
            self.errors.seek(0)
            return self.errors.read().decode(errors="replace")


class Place:
    def __init__(self, build):
        self.build = os.path.abspath(build)
        self.environment, self.left_out = environment.split(os.environ)
        self.deadline_s = 0.0
        self.torch = None  # as facts.describe() finds, and what follows
        self.stand_ins, self.gpus, self.exclusive = False, 1, False
        for name in ("hvdrun", "device_worker"):
            if not self.has(name):
                raise NotBuilt(f"{self.program(name)} is not there; build with the headers of CUDA and NCCL: scripts/setup --cuda, scripts/build release")
        # Orphans of a launcher come to us, to be ended.
        if ctypes.CDLL(None, use_errno=True).prctl(machine.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")

    def program(self, name):
        return os.path.join(self.build, "bin", name)

    def has(self, name):
        return os.access(self.program(name), os.X_OK)

    def begin(self, limit_s):
        self.deadline_s = time.monotonic() + limit_s

    def left_s(self):
        return max(self.deadline_s - time.monotonic(), 0.1)

    def run(self, words, **variables):
        """A command to its end, within what is left of the limit."""
        return self.finish(self._start(words, subprocess.DEVNULL, **variables))

    def _start(self, words, stdin, **variables):
        return Job(words, {**self.environment, **variables}, stdin)

    def finish(self, job):
        limit_s = self.left_s()
        try:
            return job.finish(limit_s)
        except subprocess.TimeoutExpired:
            self.end_all(0)
            said = job.close().strip().splitlines()[-1:]
            raise Failed(": ".join([f"no end after {limit_s:.0f} s: {' '.join(job.words)}", *said])) from None

    def shares(self, np):
        """Whether so many ranks have to share GPUs. Where they need not they do not: what NCCL does then is what users have."""
        return self.gpus < np

    def command(self, np, *words):
        """A word before "--" is hvdrun's."""
        if self.shares(np) and self.exclusive:
            raise CouldNotRun("the GPU's compute mode is Exclusive_Process, in which it takes one rank; nvidia-smi --compute-mode=DEFAULT lets several share it")
        return [self.program("hvdrun"), "-np", str(np), *["--share-gpu"] * self.shares(np), "--no-tag-output", *words]

    def job(self, np, *words, **variables):
        ended = self.run(self.command(np, *words), **variables)
        need(ended.status == 0, ended.words())
        return ended

    def start(self, np, *words):
        """A job whose output a check reads and whose input it writes; for finish()."""
        return self._start(self.command(np, *words), subprocess.PIPE)

    def next_line(self, job, pattern):
        """Fails with the job's own words where none comes."""
        return job.next_line(pattern, self.deadline_s) or need(False, f"no line like {pattern!r} came; {self.finish(job).words()}")

    def end_all(self, patience_s=END_BY_ITSELF_S):
        """Ends all that is still running below us. Returns what was, but for what ends by itself within a moment."""
        deadline_s = time.monotonic() + patience_s
        while (left := running_below()) and time.monotonic() < deadline_s:
            time.sleep(0.005)
        names = [f"{support.read(pid, 'comm')} ({pid})" for pid in left]
        machine.end_descendants()
        return names


def running_below():
    """Processes below this one. The dead are reaped, and none of these."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    return [pid for pid in support.descendants(os.getpid()) if support.state(pid) not in ("Z", "X", "")]


def ranks_of(job):
    """Process ids by rank."""
    found = {}
    for pid in support.ranks_of(job.pid):
        if rank := re.search(r"\bHVD_RANK=(\d+)", support.read(pid, "environ")):
            found[int(rank[1])] = pid
    return found
