"""Programs whose processes are hard to end, and the processes of a job that are killed above them.

What the programs leave behind would run for five minutes: none ends by itself while a test waits for it to be ended.
"""
import os
import signal

from support import children, descendants, read

SHAPES = {
    "plain": ["sleep", "300"],
    "shell wrapper": ["bash", "-c", "sleep 300; true"],
    "setsid": ["bash", "-c", "setsid sleep 300 & setsid sleep 300 & wait"],
    "double fork": ["bash", "-c", "(setsid sleep 300 &); (sleep 300 &); sleep 300"],
    "env -i": ["env", "-i", "/bin/sh", "-c", "/bin/sleep 300 & /usr/bin/setsid /bin/sleep 300 & wait"],
    "ignores TERM": ["bash", "-c", "trap '' TERM INT HUP; sleep 300 & (setsid sleep 300 &); sleep 300; true"],
    "fork loop": ["bash", "-c", "while :; do setsid sleep 300 & sleep 0.02; done"],
    "stopped": ["bash", "-c", "sleep 300 & kill -STOP $!; (setsid sleep 300 &); kill -STOP $$; true"],
}
TARGETS = ["hvdrun", "agent", "keeper", "hvdrun+agent", "hvdrun+keeper", "agent+keeper"]


def processes(launcher, host=0):
    """The three processes of a job by their part, those of one of its hosts, None for one that is not there (yet)."""
    below = children(launcher)
    keeper = below[host] if len(below) > host else None
    below = children(keeper) if keeper else []
    agent = below[0] if below and read(below[0], "comm") in ("hvd-agent", "hvd-keeper", "exe") else None
    return {"hvdrun": launcher, "keeper": keeper, "agent": agent}


def matched_by_name(launcher):
    """All of a job that a kill by the name "hvdrun" would match, by its command line or its own name."""
    return [pid for pid in [launcher] + descendants(launcher) if "hvdrun" in read(pid, "cmdline") + read(pid, "comm")]


def kill(pids, number=signal.SIGKILL):
    """Who is gone already was ended, and reaped, by the one above it: those hit before it are reason enough."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
