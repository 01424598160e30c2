"""Finds the programs that are compared and runs them, each with a limit and with nothing left behind."""
import os
import shutil
import subprocess
import sys
import time

from experiment import RunFailed
from machine import children, end_descendants

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "tests", "support"))
import hosts  # noqa: E402 (only found through the path above)


class NotBuilt(Exception):
    """A program of our own is missing, or what it would run on. The text says which, and what to do."""


def built(folder, name):
    """A program of this project in a build folder."""
    path = os.path.abspath(os.path.join(folder, "bin", name))  # whoever runs it may be elsewhere
    if not os.access(path, os.X_OK):
        raise NotBuilt(f"{path} is not there; build it: scripts/build release")
    return path


def made_hosts(count):
    """So many hosts, all on this machine, h0 apart."""
    if why := hosts.why_not():
        raise NotBuilt(f"there are no hosts to measure between: {why}")
    return hosts.Hosts(count, quick_keys=False)


def first_found(*names):
    return next(filter(None, map(shutil.which, names)), None)


class Peer:
    """Another launcher: its name, its program if it is here, and what it needs when ranks outnumber the CPUs."""

    def __init__(self, name, programs, crowded):
        self.name, self.program, self.crowded = name, first_found(*programs), crowded

    def missing(self):
        return None if self.program else "not installed, scripts/setup --peers does that"

    def command(self, np, words):
        crowded = self.crowded if np > len(os.sched_getaffinity(0)) else []
        return [self.program, *crowded, "-np", str(np), *words]


OPEN_MPI = Peer("Open MPI", ["mpirun.openmpi"], ["--oversubscribe"])
HYDRA = Peer("Hydra", ["mpiexec.hydra", "mpiexec.mpich"], [])


def python_with_torch():
    """A Python that can import torch, or None: the one scripts/setup makes, else the user's."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for python in (os.path.join(cache, "hvdrun", "torch-2.11.0", "bin", "python"), sys.executable):
        words = [python, "-c", "import torch.distributed"]
        if os.path.exists(python) and subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return python
    return None


def environment(**more):
    """Ours, one compute thread a rank, what peers need to run as root, and no other launcher's variables."""
    prefixes = ("OMPI_", "PMI_", "PMIX_", "HVD_", "HOROVOD_", "HYDRA_", "MPI")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    asked = {"OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return kept | asked | more


def run_once(words, limit_s, **popen):
    """Runs a command to its end and returns (stdout, seconds). RunFailed when it hangs or fails."""
    popen = {"stdin": subprocess.DEVNULL, "env": environment(), **popen}
    before = children(os.getpid())  # hosts, say
    begin_s = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **popen) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            end_descendants(spared=before)
            raise RunFailed(f"no end after {limit_s:g} s: {' '.join(words)}") from None
        took_s = time.perf_counter() - begin_s
    if process.returncode != 0:
        last = (err.strip() or out.strip() or "no output").splitlines()[-1]
        raise RunFailed(f"exit status {process.returncode}: {' '.join(words)}: {last}")
    return out, took_s
