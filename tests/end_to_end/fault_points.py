"""Kills at each named fault point of hvdrun, keeper and agent, below programs that are hard to end: nobody survives.

Judged by a subreaper above everything. The short run goes once through all points with every target and takes the
programs in turn; --long tries every program at each.
"""
import os
import re
import signal
import subprocess

import support
from support import expect, state, wait_for, wait_for_nobody
from victims import SHAPES, TARGETS, kill, matched_by_name, processes

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../runtime/base/fault_point.cc")
LIMIT_S = 12.0  # until all must be gone: keeper and agent have 20 s to give up, the programs' children live for 300
LEAVES_SOME = ["bash", "-c", "setsid sleep 300 & (sleep 300 &); trap '' TERM; sleep 0.2"]
AT_THE_END = {"agent_rank_ended", "agent_begin_end", "agent_finish", "keeper_finish", "hvdrun_agent_ended", "hvdrun_finish"}
LEASE_LOST = {"keeper_lease_lost", "agent_lease_lost"}  # passed only after hvdrun was killed
PARTS = {"hvdrun", "keeper", "agent"}
THERE = {  # of the three, who is when somebody stands at a point; all of them elsewhere
    "keeper_before_fork": {"hvdrun", "keeper"},
    "keeper_lease_lost": {"keeper", "agent"},
    "agent_lease_lost": {"keeper", "agent"},
    "keeper_finish": {"hvdrun", "keeper"},
    "hvdrun_finish": {"hvdrun"},
}
OF_EACH_RANK = {"agent_spawn", "agent_spawned", "agent_rank_ended"}


def points():
    with open(SOURCE) as file:
        names = re.findall(r'^ *"(\w+)",.*// cli/', file.read(), re.M)
    assert len(names) >= 16 and len({name.split("_")[0] for name in names}) == 3, names
    return names


def owner(point):
    return point.split("_")[0]


def job(point, times, action, program, *flags):
    environment = dict(os.environ, HVD_FAULT_POINT=f"{point}:{times}:{action}")
    # The path of hvdrun may hold any word; the processes below it must not have it from there.
    words = ["hvdrun", *support.command("--stop-grace", "1", *flags, "--", *program)[1:]]
    return subprocess.Popen(words, executable=support.options.hvdrun, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, env=environment)


def end(process, note):
    """Its status; everybody else must be gone too."""
    statuses = {}
    _, survivors = wait_for_nobody(LIMIT_S, statuses)
    assert not survivors, f"{note}: {survivors}"
    process.returncode = os.waitstatus_to_exitcode(statuses[process.pid])
    return process.returncode


def killed_there():
    """Each by itself, at the very point."""
    for point in points():
        if point in LEASE_LOST:
            continue
        for times in (1, 2) if point in OF_EACH_RANK else (1,):
            code = end(job(point, times, "kill", LEAVES_SOME), point)
            if owner(point) == "hvdrun":
                expect(code, -signal.SIGKILL, point)
            elif point not in ("keeper_finish", "agent_finish"):  # there all was said
                expect(code, 125, point)


def killed_there_on_two_hosts():
    """The same with an agent and a keeper on each of two hosts, all of which stand at the point sooner or later."""
    for point in points():
        if point in LEASE_LOST:
            continue
        code = end(job(point, 1, "kill", LEAVES_SOME, "--pretend-hosts", "2x1"), point)
        if owner(point) == "hvdrun":
            expect(code, -signal.SIGKILL, point)
        elif point not in ("keeper_finish", "agent_finish"):
            expect(code, 125, point)


def run_to(point, process, wanted):
    """Until the owner of the point stands still there, and who is `wanted` is there; returns the three processes.

    None when all ended without passing it: on a busy machine the agent may learn from its connection, before its lease,
    that hvdrun was killed.
    """
    before = {}
    if point in AT_THE_END | LEASE_LOST:
        wait_for(lambda: len(support.ranks_of(process.pid)) >= 2)
        before = processes(process.pid)
        if point in LEASE_LOST:
            process.kill()
        else:
            process.terminate()

    def stands():
        now = before or processes(process.pid)
        if point in LEASE_LOST and state(now[owner(point)]) in ("", "Z"):
            return "ended"
        return all(now[name] for name in wanted) and state(now[owner(point)]) == "T" and now
    try:
        seen = wait_for(stands)
    except AssertionError as error:
        raise AssertionError(f"{point}, {wanted}, {before}, {processes(process.pid)}") from error
    return None if seen == "ended" else seen


def trial(point, target, shape):
    note = f"{target} killed while {owner(point)} stands at {point}, {shape}"
    names = [name for name in target.split("+") if name in THERE.get(point, PARTS)]
    process = job(point, 1, "stop", SHAPES[shape])
    found = run_to(point, process, [owner(point), *names])
    if found is None:
        hit = []
    elif target == "by name":
        hit = [process.pid]
        wait_for(lambda: matched_by_name(process.pid) == hit)  # a keeper is called so once it runs
    else:
        hit = [found[name] for name in names]
    kill(hit)
    if found and found[owner(point)] not in hit:
        kill([found[owner(point)]], signal.SIGCONT)
    code = end(process, note)
    if process.pid in hit or point in LEASE_LOST:
        expect(code, -signal.SIGKILL, note)


def killed_while_one_stands_there():
    shapes, tried = list(SHAPES), 0
    for point in points():
        for target in [*TARGETS, "by name"]:
            if not set(target.replace("by name", "hvdrun").split("+")) & THERE.get(point, PARTS):
                continue
            if point in LEASE_LOST and target == "agent+keeper":
                continue  # hvdrun is dead by then: that would be all three, which is not promised
            for shape in shapes if support.options.long else [shapes[tried % len(shapes)]]:
                trial(point, target, shape)
                tried += 1
    return f"{tried} kills"


def thrown_there():
    for point in points():
        if owner(point) == "keeper" or point in ("agent_lease_lost", "agent_finish"):
            continue
        expect(end(job(point, 1, "throw", LEAVES_SOME), point), 125, point)


support.main(killed_there, killed_there_on_two_hosts, killed_while_one_stands_there, thrown_there)
