"""What bounds a job's start and end: an agent that does not answer, time limits, and the clocks they are counted by."""
import os
import signal
import time

import support
from support import agent_of, expect, run, start, wait_for, wait_for_ranks

LIMIT_S = 40  # of what would take --agent-timeout's 60 s if nothing else bounded it


def end_of(job):
    """Its stderr; it has LIMIT_S to end."""
    return job.communicate(timeout=LIMIT_S)[1]


def with_stopped_agent(*flags):
    job = start(*flags, "--stop-grace", "1", "--", "bash", "-c", "setsid sleep 600 & sleep 600")
    wait_for_ranks(job, 2)
    os.kill(agent_of(job.pid), signal.SIGSTOP)
    return job


def the_start_timeout_bounds_an_agent_that_never_comes():
    stopped = {**os.environ, "HVD_FAULT_POINT": "agent_started:1:stop"}
    seen = run("--start-timeout", "1", "sleep", "0.1", env=stopped, limit=LIMIT_S)
    expect(seen.returncode, 125, seen.stderr)
    assert b"no agent reported from localhost within 1 s (--start-timeout)" in seen.stderr, seen.stderr


def a_stopped_agent_does_not_hold_up_a_terminated_job():
    job = with_stopped_agent()
    job.terminate()
    err = end_of(job)
    expect(job.returncode, -signal.SIGTERM, err)
    assert b"the agent on localhost does not answer; its keeper ends the job" in err, err


def a_stopped_agent_does_not_hold_up_an_impatient_user():
    job = with_stopped_agent()
    job.send_signal(signal.SIGINT)
    while b"again: kill them now" not in job.stderr.readline():
        pass
    job.send_signal(signal.SIGINT)
    err = end_of(job)
    expect(job.returncode, -signal.SIGINT, err)


def being_continued_is_no_word_of_the_agent():
    job = with_stopped_agent("--agent-timeout", "3")

    def ended():
        job.send_signal(signal.SIGCONT)
        time.sleep(0.1)
        return job.poll() is not None
    wait_for(ended, LIMIT_S)
    expect(job.returncode, 125, job.stderr.read())
    job.communicate(timeout=LIMIT_S)


support.parse_options("worker")
support.main(the_start_timeout_bounds_an_agent_that_never_comes, a_stopped_agent_does_not_hold_up_a_terminated_job,
             a_stopped_agent_does_not_hold_up_an_impatient_user, being_continued_is_no_word_of_the_agent)
