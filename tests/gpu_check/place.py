"""Where checks run: a built tree, its programs as jobs with a limit, and what the machine is."""
import ctypes
import os
import re
import subprocess
import sys
import threading
import time
from typing import NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path += [os.path.join(ROOT, "tests", folder) for folder in ("benchmark", "end_to_end")]
import machine  # noqa: E402 (only found through the path above)
import programs  # noqa: E402
import support  # noqa: E402

from verdicts import CouldNotRun, Failed, need  # noqa: E402

NO_GPU = 4  # what device_worker ends with
DESCRIBE_LIMIT_S = 20


class NotUsable(Exception):
    """There is nothing to check with: no GPU, no NCCL. The text is a line."""


class NotBuilt(Exception):
    """A program is missing without which nothing can be checked. The text says what to do."""


class Ended(NamedTuple):
    status: int
    out: str
    err: str

    def words(self):
        """The first line of a rank's own, and the last, in which hvdrun says who failed first."""
        lines = (self.err.strip() or self.out.strip() or "no output").splitlines()
        own = [row for row in lines if not row.startswith(("hvdrun: ", "  | "))]
        return f"exit status {self.status}: " + " | ".join(dict.fromkeys(own[:1] + lines[-1:]))


class Place:
    def __init__(self, build):
        self.build = os.path.abspath(build)
        self.environment = {**nccl_beside_header(self.build), **os.environ}
        self.deadline_s = 0.0
        self.stand_ins, self.gpus = False, 1  # as describe() finds
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

    def describe(self):
        """What has to be known of a result; NotUsable without a GPU."""
        self.begin(DESCRIBE_LIMIT_S)
        ended = self.run([self.program("device_worker"), "describe"])
        if ended.status:
            what = "there is no GPU here" if ended.status == NO_GPU else "no GPU can be used here"
            raise NotUsable(f"{what}: {(ended.err.strip() or ended.words()).splitlines()[-1]}")
        said = dict(row.split(": ", 1) for row in ended.out.splitlines())
        self.stand_ins, self.gpus = said["stand-ins"] == "yes", int(said["GPUs"])
        return {"stand_ins": self.stand_ins, "device": said["device"], "gpus": self.gpus,
                "driver": f"{driver()}, CUDA {said['CUDA of the driver']}", "commit": machine.commit(), "build": self.build}

    def begin(self, limit_s):
        self.deadline_s = time.monotonic() + limit_s

    def left_s(self):
        return max(self.deadline_s - time.monotonic(), 0.1)

    def run(self, words, **variables):
        """A command to its end, within what is left of the limit."""
        return self.finish(self._popen(words, **variables))

    def finish(self, process):
        limit_s = self.left_s()
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.end_all()
            raise Failed(f"no end after {limit_s:.0f} s: {' '.join(process.args)}") from None
        return Ended(process.returncode, out, err)

    def _popen(self, words, stdin=subprocess.DEVNULL, **variables):
        return subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                env={**self.environment, **variables})

    def shares(self, np):
        """Whether so many ranks have to share GPUs. Where they need not they do not: what NCCL does then is what users have."""
        return self.gpus < np

    def command(self, np, *words):
        """A word before "--" is hvdrun's."""
        return [self.program("hvdrun"), "-np", str(np), *["--share-gpu"] * self.shares(np), "--no-tag-output", *words]

    def job(self, np, *words, **variables):
        ended = self.run(self.command(np, *words), **variables)
        need(ended.status == 0, ended.words())
        return ended

    def start(self, np, *words):
        """A job whose output a check reads and whose input it writes, until at the limit it is killed; for finish()."""
        job = self._popen(self.command(np, *words), stdin=subprocess.PIPE)
        limit = threading.Timer(self.left_s(), job.kill)
        limit.daemon = True
        limit.start()
        return job

    def end_all(self):
        """How many it had to kill."""
        return machine.end_descendants()


def nccl_beside_header(build):
    """The variable that names the library of the header that the tree was built with, where they lie as pip installs them."""
    try:
        with open(os.path.join(build, "CMakeCache.txt")) as cache:
            include = re.search(r"^HVD_NCCL_INCLUDE:\w+=(.+)$", cache.read(), re.MULTILINE)
    except OSError:
        return {}
    library = include and os.path.join(os.path.dirname(include[1]), "lib", "libnccl.so.2")
    return {"HVD_NCCL_LIBRARY": library} if library and os.path.exists(library) else {}


def driver():
    try:
        with open("/proc/driver/nvidia/version") as file:
            return file.readline().strip()
    except OSError:
        return "of a version that is not told"


def torch_cuda(place, program):
    """LibTorch's CUDA part, which the examples do not link: to be loaded before them."""
    if not place.has(program):
        raise CouldNotRun(f"{program} is not built: it needs LibTorch")
    found = re.search(r"libtorch_cpu\.so => (\S+)", place.run(["ldd", place.program(program)]).out)
    if not found:
        raise CouldNotRun(f"the loader does not find {program}'s LibTorch")
    library = os.path.join(os.path.dirname(found[1]), "libtorch_cuda.so")
    if not os.path.exists(library):
        raise CouldNotRun(f"the LibTorch of this build has no CUDA part, {library}; scripts/setup --peers installs a whole one")
    refused = place.run([place.program(program), "--help"], LD_PRELOAD=library).err
    if "cannot be preloaded" in refused:
        raise CouldNotRun(f"LibTorch's CUDA part cannot be loaded: {refused.strip().splitlines()[0]}")
    return library


def torch_words(place, program):
    """hvdrun's, for a program with LibTorch that is to train on the GPU."""
    if place.stand_ins:
        raise CouldNotRun("LibTorch's CUDA part needs the driver itself")
    return ["-x", f"LD_PRELOAD={torch_cuda(place, program)}"]


def python_with_cuda(place):
    """A Python whose torch has the GPU, and NCCL."""
    python = programs.python_with_torch()
    if not python:
        raise CouldNotRun("there is no Python with torch; scripts/setup --peers installs one")
    ended = place.run([python, "-c", "import torch, torch.distributed as d; print(torch.cuda.is_available() and d.is_nccl_available())"])
    if ended.out.strip() != "True":
        raise CouldNotRun(f"the torch of {python} has no GPU, or no NCCL: {ended.words()}")
    return python


def ranks_of(job):
    return support.ranks_of(job.pid)


def rank_of(pid):
    found = re.search(r"\bHVD_RANK=(\d+)", support.read(pid, "environ"))
    return int(found[1]) if found else None
