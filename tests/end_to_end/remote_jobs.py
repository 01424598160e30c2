"""What scripts share that run jobs over ssh: hosts made for each case, jobs of h0's, and what runs on the others."""
import functools
import pathlib
import subprocess
import sys

import support
from support import wait_for

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import hosts

PAIR = ["-np", "4", "-H", "h1:2,h2:2"]
LONELY = ["-x", "OMP_NUM_THREADS=1"]  # else hvdrun says which it chose
SLEEP = ["--", "bash", "-c", "setsid sleep 300 & sleep 300"]

world = None


def keep(made):
    global world
    world = made


on_hosts = functools.partial(hosts.on_hosts, bare=1, prepare=keep)


def command(*words):
    return world.command("h0", support.options.hvdrun, *words)


def run(*words, limit=60, **more):
    if "input" not in more:
        more.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=limit, **more)


def start(*words, **more):
    return subprocess.Popen(command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


def beside_network(err):
    """Lines of its standard error but for the one that says where hosts reach each other (networks.py)."""
    return [line for line in err.splitlines() if not line.startswith(b"hvdrun: other hosts reach ")]


def launcher(job):
    return wait_for(lambda: next((p for p in [job.pid] + support.descendants(job.pid) if support.read(p, "comm") == "hvdrun"), None))


def processes(host):
    """Names of all that ssh brought there, or that lost its parent there."""
    pids = [pid for pid in support.descendants(world.first[host]) if support.state(pid) not in ("", "Z", "X")]
    return [name for name in (support.read(pid, "comm") for pid in pids) if name and not name.startswith("sshd")]


def wait_for_sleeps(*names, count=4):
    wait_for(lambda: all(processes(host).count("sleep") == count for host in names))


def wait_until_empty(*names, limit_s=3):
    try:
        wait_for(lambda: not any(processes(host) for host in names), limit_s)
    except AssertionError:
        raise AssertionError(f"after {limit_s} s there live {[(host, processes(host)) for host in names]}") from None
