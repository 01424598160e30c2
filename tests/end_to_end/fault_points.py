"""hvdrun, keeper and agent killed at each named fault point of theirs: nobody survives."""
import os
import re
import signal
import subprocess

import support
from support import wait_for_nobody

SCRIPT = "setsid sleep 2 & (sleep 2 &); trap '' TERM; sleep 0.2"
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../runtime/base/fault_point.cc")


def points():
    with open(SOURCE) as file:
        names = re.findall(r'^ *"((?:hvdrun|keeper|agent)_\w+)"', file.read(), re.M)
    assert len(names) >= 10, names
    return names


def job(point, times, action, script=SCRIPT):
    environment = dict(os.environ, HVD_FAULT_POINT=f"{point}:{times}:{action}")
    return subprocess.Popen(support.command("--stop-grace", "1", "--", "bash", "-c", SCRIPT), stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


def end(process, note):
    """Its status; everybody else must be gone too."""
    process.stderr.close()
    statuses = {}
    _, survivors = wait_for_nobody(15, statuses)
    process.returncode = os.waitstatus_to_exitcode(statuses[process.pid])
    assert not survivors, f"{note}: {survivors}"
    return process.returncode


def killed_there():
    # These are passed only after another kill.
    after_a_kill = {"keeper_lease_lost", "agent_lease_lost"}
    for point in points():
        if point in after_a_kill:
            continue
        for times in (1, 2) if point in ("agent_spawn", "agent_spawned", "agent_rank_ended") else (1,):
            code = end(job(point, times, "kill"), point)
            if point.startswith("hvdrun_"):
                support.expect(code, -signal.SIGKILL, point)
            elif point not in ("keeper_finish", "agent_finish"):  # there all was said
                support.expect(code, 125, point)


def killed_after_hvdrun_was_killed():
    for point in ("keeper_lease_lost", "agent_lease_lost", "agent_begin_end", "agent_finish", "keeper_finish"):
        process = job(point, 1, "kill", "setsid sleep 60 & (sleep 60 &); trap '' TERM; sleep 60; sleep 60")
        support.wait_for(lambda: len(support.ranks_of(process.pid)) >= 2)
        process.kill()
        support.expect(end(process, point), -signal.SIGKILL, point)


def thrown_there():
    for point in points():
        if not point.startswith("agent_") or point in ("agent_lease_lost", "agent_finish"):
            continue
        support.expect(end(job(point, 1, "throw"), point), 125, point)


support.main(killed_there, killed_after_hvdrun_was_killed, thrown_there)
