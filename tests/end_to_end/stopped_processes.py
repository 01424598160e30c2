"""Processes of hvdrun's own that are stopped: who notices, who ends what, and that a freeze of all is no failure."""
import os
import signal
import time

import support
from support import NO_TRACING, Debugger, agent_of, expect, keeper_of, start, state, take_hold, wait_for, wait_for_ranks, wait_for_words

LONG_LIVED = ["--", "bash", "-c", "setsid sleep 60 & sleep 60"]


def a_stopped_agent_is_said_and_then_ended():
    job = start("--agent-timeout", "4", *LONG_LIVED)
    wait_for_ranks(job, 2)
    os.kill(agent_of(job.pid), signal.SIGSTOP)
    begin = time.monotonic()
    _, err = job.communicate(timeout=40)
    expect(job.returncode, 125)
    assert b"has not answered for 3 s" in err and b"--agent-timeout" in err, err
    return f"all gone after {time.monotonic() - begin:.1f} s"


def a_stopped_agent_that_goes_on_costs_nothing():
    job = start("--", "sh", "-c", "sleep 5; exit 3", np=1)
    wait_for_ranks(job, 1)
    agent = agent_of(job.pid)
    os.kill(agent, signal.SIGSTOP)
    wait_for_words(job, b"has not answered")
    os.kill(agent, signal.SIGCONT)
    job.communicate(timeout=30)
    expect(job.returncode, 3)


def a_stopped_agent_and_keeper_are_ended_by_hvdrun():
    job = start("--agent-timeout", "2", *LONG_LIVED)
    wait_for_ranks(job, 2)
    keeper, agent = keeper_of(job.pid), agent_of(job.pid)
    os.kill(keeper, signal.SIGSTOP)
    os.kill(agent, signal.SIGSTOP)
    begin = time.monotonic()
    _, err = job.communicate(timeout=40)
    expect(job.returncode, 125)
    return f"all gone after {time.monotonic() - begin:.1f} s"


def a_stopped_keeper_of_a_killed_agent_is_killed():
    job = start(*LONG_LIVED, env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"})
    wait_for_words(job, b"OMP_NUM_THREADS")  # the agent has spoken: before, --start-timeout is its time
    keeper, agent = keeper_of(job.pid), agent_of(job.pid)
    os.kill(keeper, signal.SIGSTOP)
    wait_for(lambda: state(keeper) == "T")
    os.kill(agent, signal.SIGKILL)
    _, err = job.communicate(timeout=40)
    expect(job.returncode, 125, err)
    assert b"hvdrun: the agent is lost and its keeper does not end; killing it" in err and b"answer" not in err, err


def an_agent_that_a_debugger_holds_is_waited_for():
    job = start("--agent-timeout", "2", "--", "sh", "-c", "sleep 7; exit 3", np=1)
    wait_for_ranks(job, 1)
    agent = agent_of(job.pid)
    debugger = take_hold(job, agent, Debugger)
    if not debugger:
        return NO_TRACING
    time.sleep(5)  # more than twice as long as an agent may be silent
    expect(state(agent), "t")
    debugger.let_go()
    _, err = job.communicate(timeout=30)
    expect(job.returncode, 3, err)


def a_start_that_gets_stuck_ends_at_its_time_limit():
    # Not only after --agent-timeout, which is 60 s.
    unheard, unstarted = b"no agent reported from localhost within 1 s", b"ranks 0, 1 could not be started within 1 s"
    # An agent that is stopped while it starts ranks may not have sent its first word yet.
    for point, words in (("keeper_before_fork", [unheard]), ("agent_started", [unheard]), ("agent_spawned", [unstarted, unheard])):
        job = start("--start-timeout", "1", *LONG_LIVED, env={**os.environ, "HVD_FAULT_POINT": f"{point}:1:stop"})
        _, err = job.communicate(timeout=40)
        expect(job.returncode, 125, (point, err))
        assert any(word in err.splitlines()[-1] for word in words), (point, err)


def a_stopped_keeper_does_not_hold_the_end():
    job = start("--", "sleep", "0.5")
    wait_for_ranks(job, 2)
    os.kill(keeper_of(job.pid), signal.SIGSTOP)
    _, err = job.communicate(timeout=30)
    expect(job.returncode, 0)
    assert b"the keeper does not end; killing it" in err and b"was killed by SIGKILL" not in err, err


def a_keeper_whose_words_nobody_reads_ends_all_the_same():
    job = start(*LONG_LIVED)
    wait_for_ranks(job, 2)
    keeper = keeper_of(job.pid)
    os.kill(job.pid, signal.SIGSTOP)
    wait_for(lambda: state(job.pid) == "T")
    words = os.open(f"/proc/{keeper}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(words, b"\n")
    except BlockingIOError:
        pass
    os.kill(agent_of(job.pid), signal.SIGKILL)
    wait_for(lambda: state(keeper) == "Z")
    os.close(words)
    expect([pid for pid in support.descendants(job.pid) if pid != keeper], [])
    os.kill(job.pid, signal.SIGCONT)
    _, err = job.communicate(timeout=30)
    expect(job.returncode, 125, err)


def a_stopped_agent_when_hvdrun_dies_is_ended_by_its_keeper():
    job = start(*LONG_LIVED)
    wait_for_ranks(job, 2)
    os.kill(agent_of(job.pid), signal.SIGSTOP)
    job.kill()
    job.communicate(timeout=30)  # and nobody is left after it


def a_stopped_keeper_goes_on_when_hvdrun_dies():
    for also_stopped in ([], [agent_of]):
        job = start(*LONG_LIVED)
        wait_for_ranks(job, 2)
        for pid in [keeper_of(job.pid)] + [of(job.pid) for of in also_stopped]:
            os.kill(pid, signal.SIGSTOP)
            wait_for(lambda: state(pid) == "T")
        job.kill()
        job.communicate(timeout=30)
        _, left = support.wait_for_nobody(support.GONE_LIMIT_S)
        expect(left, [])


def a_stopped_agent_goes_on_when_hvdrun_and_keeper_die():
    for keeper_first in (True, False):
        job = start(*LONG_LIVED)
        wait_for_ranks(job, 2)
        keeper, agent = keeper_of(job.pid), agent_of(job.pid)
        os.kill(agent, signal.SIGSTOP)
        wait_for(lambda: state(agent) == "T")
        for pid in (keeper, job.pid) if keeper_first else (job.pid, keeper):
            os.kill(pid, signal.SIGKILL)
        job.communicate(timeout=30)
        _, left = support.wait_for_nobody(support.GONE_LIMIT_S)
        expect(left, [])


def a_freeze_of_all_is_no_failure():
    job = start("--", "bash", "-c", "sleep 6; exit 6", np=1)
    wait_for_ranks(job, 1)
    frozen = [job.pid, keeper_of(job.pid), agent_of(job.pid)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(5)
    for pid in reversed(frozen):
        os.kill(pid, signal.SIGCONT)
    job.communicate(timeout=30)
    expect(job.returncode, 6)


support.main(a_stopped_agent_is_said_and_then_ended, a_stopped_agent_that_goes_on_costs_nothing,
             a_stopped_agent_and_keeper_are_ended_by_hvdrun, a_stopped_keeper_of_a_killed_agent_is_killed,
             an_agent_that_a_debugger_holds_is_waited_for,
             a_start_that_gets_stuck_ends_at_its_time_limit, a_stopped_keeper_does_not_hold_the_end,
             a_keeper_whose_words_nobody_reads_ends_all_the_same,
             a_stopped_agent_when_hvdrun_dies_is_ended_by_its_keeper, a_stopped_keeper_goes_on_when_hvdrun_dies, a_stopped_agent_goes_on_when_hvdrun_and_keeper_die,
             a_freeze_of_all_is_no_failure)
