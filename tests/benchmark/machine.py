"""What the kernel says of this machine: who used its CPUs, when it is quiet, and what machine it is.

Others' CPU time is the sum of their processes' own CPU clocks, in nanoseconds, and what a hypervisor stole. Nobody's
are the kernel's threads that move bytes, of a pseudo-terminal (so Open MPI forwards output) and of a network, and the
switching from and to idle: with 100,000 wake-ups a second it is a seventh of a CPU, and in no clock at all. Where a
container hides the machine's processes, others' is all that is neither idle time nor ours, and such runs look noisy.
"""
import ctypes
import functools
import os
import platform
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36
KTHREADD = 2  # the parent of all kernel threads
MOVERS = ("kworker/", "ksoftirqd/")  # what the threads that move bytes are called
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WINDOW_S = 0.06  # of a look whether others leave the machine alone
CALM_CPUS = 0.35  # what they may use in one window: so short a reading is off by two ticks


class Usage(NamedTuple):
    """Seconds since some moment: the clock, and CPUs at work for others (together)."""

    wall_s: float
    others_s: float


def foreign_cpus(before, after):
    """CPUs that others used between two usages: 0.08 is 8 % of one."""
    wall_s = max(after.wall_s - before.wall_s, 1e-9)
    return max(0.0, after.others_s - before.others_s) / wall_s


class Machine:
    """Usage of this machine, "own" being this process and all below it."""

    def __init__(self):
        # Orphans of a launcher come to us, so that their CPU time is known to be ours.
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")

    now = staticmethod(time.monotonic)

    def usage(self):
        if sees_all_processes():
            # What an ended process worked is found with the one that waited for it.
            others_s = sum(cpu_s(pid) + reaped_cpu_s(pid) for pid in other_pids())
            return Usage(time.monotonic(), others_s + _stolen_s())
        idle_s, cpus = _idle()
        wall_s = time.monotonic()
        return Usage(wall_s, cpus * wall_s - idle_s - self.own_cpu_s())

    @staticmethod
    def own_cpu_s():
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        alive = sum(cpu_s(pid) + reaped_cpu_s(pid) for pid in descendants(os.getpid()))
        return time.process_time() + ended.ru_utime + ended.ru_stime + alive

    def wait_until_quiet(self, limit_cpus, deadline_s):
        """Returns after two windows in a row in which others used little, or at the deadline (of now())."""
        limit_cpus = max(limit_cpus, CALM_CPUS)
        calm = 0
        while calm < 2 and time.monotonic() < deadline_s:
            before = self.usage()
            time.sleep(WINDOW_S)
            calm = calm + 1 if foreign_cpus(before, self.usage()) < limit_cpus else 0


def sees_all_processes():
    """Whether /proc shows the machine's processes, not a container's: then number 2 is the kernel's."""
    return process_name(KTHREADD) == "kthreadd"


def other_pids():
    """Everybody but us and the kernel's threads that move bytes."""
    own = {os.getpid(), *descendants(os.getpid())}
    movers = {pid for pid in children(KTHREADD) if process_name(pid).startswith(MOVERS)}
    return {int(name) for name in os.listdir("/proc") if name.isdigit()} - own - movers


def process_name(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _cpu_ticks():
    """The numbers of /proc/stat for all CPUs together, and how many CPUs there are."""
    with open("/proc/stat") as file:
        lines = [line.split() for line in file if line.startswith("cpu")]
    return [int(word) for word in lines[0][1:]], len(lines) - 1


def _idle():
    """Idle seconds of all CPUs since boot, and how many CPUs there are."""
    ticks, cpus = _cpu_ticks()
    return (ticks[3] + ticks[4]) / TICKS_PER_S, cpus


def _stolen_s():
    return _cpu_ticks()[0][7] / TICKS_PER_S


def children(pid):
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(word) for word in file.read().split()]
    except OSError:
        pass  # it ended meanwhile
    return found


def descendants(pid):
    found = children(pid)
    for one in found:
        found += children(one)
    return found


def cpu_s(pid):
    """CPU seconds of a process with all its threads, ended ones too."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3), which Python lacks
    except OSError:
        return 0.0


def reaped_cpu_s(pid):
    """CPU seconds of the children that a process has waited for."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[13]) + int(fields[14])) / TICKS_PER_S
    except OSError:
        return 0.0


def status_kib(pid, field, file="status"):
    """A figure of /proc/PID/status or smaps_rollup in KiB, such as VmHWM or Pss; 0 once the process is gone."""
    try:
        with open(f"/proc/{pid}/{file}") as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith(field + ":")), 0)
    except OSError:
        return 0


def end_descendants(limit_s=5.0, spared=()):
    """Kills and reaps all that is below this process, but for some children and what is below them. Returns how many it had to kill."""
    killed, deadline_s = set(), time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        kept = {*spared, *(below for pid in spared for below in descendants(pid))}
        left = [pid for pid in descendants(os.getpid()) if pid not in kept]
        if spared and not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
        time.sleep(0.002)
    return len(killed)


def describe():
    """What has to be known to compare a result with another machine's."""
    return {
        "cpu": _first_line_after("/proc/cpuinfo", "model name"),
        "cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "caches": _caches(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "virtual": "hypervisor" in _first_line_after("/proc/cpuinfo", "flags").split(),
        "kernel": platform.release(),
        "congestion_control": Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip(),
        "system": _first_line_after("/etc/os-release", "PRETTY_NAME", "=").strip('"'),
        "commit": commit(),
    }


@functools.cache
def commit():
    """The checkout's commit when this was first asked, with a "+" when files differ from it that are no kept results: these are written as we speak."""
    git = ["git", "-C", os.path.dirname(os.path.abspath(__file__))]
    sources = [":(top)", ":(top,exclude)tests/benchmark/results"]
    try:
        done = subprocess.run([*git, "describe", "--always", "--abbrev=12", "--exclude=*"], capture_output=True, text=True, timeout=10, check=True)
        same = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *sources], capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip() + ("" if same else "+")


def _first_line_after(path, key, separator=":"):
    try:
        with open(path) as lines:
            found = (line.split(separator, 1)[1].strip() for line in lines if line.startswith(key))
            return next(found, "unknown")
    except OSError:
        return "unknown"


def _caches():
    folder, found = Path("/sys/devices/system/cpu/cpu0/cache"), []
    for index in sorted(folder.glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        found.append(f"L{level} {kind} {size}")
    return ", ".join(found)
