"""What no signal ends or gives back: the job ends all the same and says who is left.

A dead process that a tracer holds stands for all of them: like one in an uninterruptible wait it cannot be reaped.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import support
from support import NO_TRACING, agent_of, expect, read, start, state, take_hold, wait_for, wait_for_ranks

LIMIT_S = 60
SOON_S = 10  # half of what the agent waits for those that cannot be ended
SLEEP = ["--", "sleep", "300"]


def ranks_in_order(job, count):
    name = lambda pid: [word for word in read(pid, "environ").split() if word.startswith("HVD_RANK=")]
    ranks = wait_for_ranks(job, count)
    wait_for(lambda: all(name(pid) for pid in ranks))  # before its exec a child has the agent's environment
    return sorted(ranks, key=name)


def let_end(job):
    """Its rank reads a line and ends: what hvdrun said then, and how long it took."""
    begin = time.monotonic()
    _, err = job.communicate(input=b"\n", timeout=LIMIT_S)
    return err, time.monotonic() - begin


class Stuck:
    """A job whose rank 1 cannot be ended from now on."""

    def __init__(self, *flags):
        self.job = start("--stop-grace", "0.2", *flags, *SLEEP)
        self.ranks = ranks_in_order(self.job, 2)
        self.tracer = take_hold(self.job, self.ranks[1])

    def end(self):
        _, err = self.job.communicate(timeout=LIMIT_S)
        expect(state(self.ranks[1]), "Z")
        self.tracer.bury()
        said = f"hvdrun: rank 1 (pid {self.ranks[1]}) on localhost cannot be ended: it has ended, but the process that traces it".encode()
        expect(err.count(said), 1, err)
        expect(err.count(b"cannot be ended"), 1, err)
        assert b"keeper" not in err, err
        return self.job.returncode


def a_rank_that_cannot_be_ended_is_named_and_the_job_ends_as_it_would_have():
    with tempfile.TemporaryDirectory() as folder:
        result = f"{folder}/result.json"
        failed, limited, stopped = Stuck("--result-file", result), Stuck("--timeout", "5"), Stuck()
        if not all(one.tracer for one in (failed, limited, stopped)):
            return NO_TRACING
        os.kill(failed.ranks[0], signal.SIGUSR1)
        os.kill(stopped.job.pid, signal.SIGTERM)
        begin = time.monotonic()
        expect(failed.end(), 128 + signal.SIGUSR1)
        expect(stopped.end(), -signal.SIGTERM)
        expect(limited.end(), 124)
        with open(result) as file:
            rank = json.load(file)["ranks"][1]
        expect((rank["outcome"], rank["pid"]), ("stuck", failed.ranks[1]))
        return f"all ended after {time.monotonic() - begin:.1f} s"


def a_dead_rank_that_a_tracer_holds_costs_nothing_until_it_is_let_go():
    stuck = Stuck()
    if not stuck.tracer:
        return NO_TRACING
    agent, rank = agent_of(stuck.job.pid), stuck.ranks[1]
    used = lambda: sum(int(ticks) for ticks in read(agent, "stat").split(") ")[1].split()[11:13]) / os.sysconf("SC_CLK_TCK")
    slept = lambda: int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", read(agent, "status"), re.MULTILINE)[1])
    os.kill(rank, signal.SIGKILL)
    wait_for(lambda: state(rank) == "Z")
    begin, before, until = time.monotonic(), used(), slept() + 3  # it beats once a second
    wait_for(lambda: slept() >= until)
    share = (used() - before) / (time.monotonic() - begin)
    expect(stuck.job.poll(), None)
    stuck.tracer.bury()
    _, err = stuck.job.communicate(timeout=SOON_S)
    expect(stuck.job.returncode, 128 + signal.SIGKILL, err)
    assert share < 0.2, f"the agent used {share:.0%} of a CPU"
    return f"the agent used {share:.1%} of a CPU"


def a_dead_process_that_a_tracer_holds_is_not_waited_for():
    job = start("--", "bash", "-c", "sleep 300 & read; exit 4", np=1, stdin=-1)
    rank, = wait_for_ranks(job, 1)
    left, = wait_for(lambda: support.children(rank))
    tracer = take_hold(job, left)
    if not tracer:
        return NO_TRACING
    err, took = let_end(job)
    expect(state(left), "Z")
    tracer.bury()
    expect(job.returncode, 4, err)
    assert b"cannot be ended" not in err and took < SOON_S, (took, err)
    return f"after {took:.1f} s"


def a_keeper_that_a_tracer_holds_is_given_up():
    job = start("--", "bash", "-c", "read; exit 4", np=1, stdin=-1)
    wait_for_ranks(job, 1)
    keeper = support.keeper_of(job.pid)
    tracer = take_hold(job, keeper)
    if not tracer:
        return NO_TRACING
    err, took = let_end(job)
    expect(state(keeper), "Z")
    os.waitpid(keeper, tracer.WALL)
    expect(job.returncode, 4, err)
    expect(err.count(b"the keeper does not end; killing it"), 1, err)
    expect(err.count(f"process {keeper} (the keeper) is not waited for any longer: it has ended, but the process that traces it".encode()), 1, err)
    return f"after {took:.1f} s"


def a_process_whose_first_thread_has_left_alone_is_ended():
    program = ("import ctypes, threading, time; threading.Thread(target=time.sleep, args=(300,)).start(); "
               "ctypes.CDLL(None).pthread_exit(None)")
    job = start("--", "bash", "-c", '"$0" -c "$1" & read; exit 4', sys.executable, program, np=1, stdin=-1)
    rank, = wait_for_ranks(job, 1)
    left, = wait_for(lambda: support.children(rank))
    wait_for(lambda: state(left) == "Z")
    err, took = let_end(job)
    expect(job.returncode, 4, err)
    assert b"cannot be ended" not in err and took < SOON_S, (took, err)
    return f"after {took:.1f} s"


# In a /proc that shows others' processes, and those that let nobody look into them, to root alone.
HIDDEN = """
mount -t proc -o hidepid=2 proc /proc || exit 77
setpriv --regid 65534 --clear-groups --bounding-set=-all "$@"
status=$?
grep -lsx hidden-one /proc/[0-9]*/comm
exit $status
"""
HIDE = ("import ctypes, os, signal, subprocess, sys; libc = ctypes.CDLL(None); libc.prctl(15, b'hidden-one', 0, 0, 0); libc.prctl(4, 0, 0, 0, 0); "
        "seen = subprocess.call(['test', '-e', f'/proc/{os.getpid()}/stat']) == 0; "
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('told', flush=True))); "
        "print('shown' if seen else 'hidden', flush=True); signal.alarm(300); signal.pause()")


def processes_that_proc_hides_are_ended():
    if os.geteuid() != 0:
        return "left out: only root can hide processes"
    took = []
    limited, hide = ["--timeout", "3"], [sys.executable, "-c", HIDE]
    for flags, program, status, out in (
            (limited, hide, 124, b"hidden\ntold\n"),
            (limited, ["bash", "-c", 'trap "" TERM; "$@"; exit 4', "bash", *hide], 124, b"hidden\ntold\n"),
            ([], ["bash", "-c", 'exec 3< <("$@"); read line <&3; echo "$line"; exit 4', "bash", *hide], 4, b"hidden\n")):
        line = support.command("--no-tag-output", "--stop-grace", "0.5", *flags, "--", *program, np=1)
        begin = time.monotonic()
        seen = subprocess.run(["unshare", "--mount", "--pid", "--fork", "bash", "-c", HIDDEN, "bash", *line],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT_S)
        took.append(time.monotonic() - begin)
        if seen.returncode == 77 or seen.stderr.startswith(b"unshare: "):
            return "left out: no right to mount"
        expect(seen.returncode, status, seen.stderr)
        expect(seen.stdout, out, seen.stderr)
        assert b"cannot be ended" not in seen.stderr and b"keeper" not in seen.stderr and took[-1] < SOON_S, (took, seen.stderr)
    return "after " + " and ".join(f"{one:.1f} s" for one in took)


support.main(a_rank_that_cannot_be_ended_is_named_and_the_job_ends_as_it_would_have,
             a_dead_rank_that_a_tracer_holds_costs_nothing_until_it_is_let_go,
             a_dead_process_that_a_tracer_holds_is_not_waited_for,
             a_keeper_that_a_tracer_holds_is_given_up,
             a_process_whose_first_thread_has_left_alone_is_ended,
             processes_that_proc_hides_are_ended)
