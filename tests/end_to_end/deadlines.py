"""What bounds a job's start and end: an agent that does not answer, time limits, and the clocks they are counted by."""
import os
import re
import signal
import subprocess
import time

import support
from support import NO_TRACING, Debugger, Terminal, agent_of, expect, run, start, state, take_hold, wait_for, wait_for_ranks

LATE_S = 6  # by the clock on the wall: until then the test has stepped in, also on a busy machine
AWAY_S = 9  # how long it holds the job up then: longer than that, and than the time-outs
LIMIT_S = 40  # of what would take --agent-timeout's 60 s if nothing else bounded it


def late(where, rank, seconds):
    return ["--", support.options.late_worker, where, str(rank), str(seconds)]


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


def a_reader_that_stands_still_does_not_hold_up_a_limited_job_whose_ranks_have_ended():
    job = start("--timeout", "2", "--stop-grace", "1", "--", "bash", "-c", "yes | head -c 100000", np=1)  # tagged, more than a pipe holds
    job.wait(timeout=LIMIT_S)
    out, err = job.communicate()
    expect(job.returncode, 125, err)
    assert b"time limit of 2 s reached (--timeout); all ranks have ended" in err, err
    assert b"bytes of output that nobody read any more" in err and len(out) < 700000, (len(out), err)


def read_slowly(job):
    """A page every quarter of a second: a pipe's 64 KiB take longer than the limit and the grace."""
    parts = []
    while not parts or parts[-1]:
        time.sleep(0.25)
        parts.append(os.read(job.stdout.fileno(), 4096))
        assert len(parts) < 4 * LIMIT_S
    job.wait(timeout=LIMIT_S)
    return b"".join(parts)


def a_slow_reader_is_waited_for_where_all_ranks_ended_in_time():
    job = start("--no-tag-output", "--timeout", "1", "--stop-grace", "2", "--", "seq", "100000", "112000", np=1, stderr=subprocess.STDOUT)
    out = read_slowly(job)
    expect(job.returncode, 0, out[-300:])
    assert out.startswith(b"".join(b"%d\n" % number for number in range(100000, 112001))), out[-300:]


def a_slow_reader_does_not_hold_up_an_end_that_was_asked_for():
    job = start("--no-tag-output", "--stop-grace", "1", "--", "bash", "-c", "seq 100000 250000; exec sleep 60", np=1, stderr=subprocess.STDOUT)
    assert os.read(job.stdout.fileno(), 4096).startswith(b"100000\n")
    job.terminate()
    out = read_slowly(job)
    expect(job.returncode, -signal.SIGTERM, out[-300:])
    assert len(out) < 1000000, len(out)


def a_stopped_agent_does_not_hold_up_a_terminated_job():
    job = with_stopped_agent()
    job.terminate()
    err = end_of(job)
    expect(job.returncode, -signal.SIGTERM, err)
    assert b"the agent on localhost does not answer; its keeper ends the job" in err, err


def interrupt_twice(job):
    """The second time when hvdrun has told what a second one does."""
    job.send_signal(signal.SIGINT)
    assert any(b"again: kill them now" in line for line in iter(job.stderr.readline, b"")), "it ended without a word"
    job.send_signal(signal.SIGINT)


def a_stopped_agent_does_not_hold_up_an_impatient_user():
    job = with_stopped_agent()
    interrupt_twice(job)
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


def suspended(flags, where):
    """What a job says that is stopped by Ctrl-Z while rank 0 waits for rank 1, for longer than its time-outs."""
    terminal = Terminal()
    words = " ".join([support.options.hvdrun, "-np", "2", "--color", "never", *flags, *late(where, 1, LATE_S)])
    terminal.type(f"{words}\n")
    if ":late" not in terminal.wait(":waiting"):
        terminal.wait(":late")
    terminal.type("\x1a")
    terminal.wait("Stopped")
    time.sleep(AWAY_S)
    terminal.type("fg; echo rc=$?\n")
    said = terminal.wait("\nrc=")
    said += terminal.wait("\n")
    terminal.close()
    return said


def a_rank_in_init_is_not_timed_out_while_the_job_is_suspended():
    said = suspended(["--start-timeout", "6", "--timeout", "8"], "init")
    expect(said.split()[-1], "rc=0", said)


def a_rank_in_a_collective_is_not_timed_out_while_the_job_is_suspended():
    said = suspended(["--collective-timeout", "6", "--stall-check-warning-time-seconds", "6"], "sum")
    expect(said.split()[-1], "rc=0", said)
    assert "Missing ranks" not in said, said


def hold(where, *flags):
    """A job whose late rank is held for longer than its time-outs, before and while the others wait for it.

    Returns what the job said; None without the right to trace.
    """
    job = start(*flags, *late(where, 1, LATE_S), np=3)
    lines = [job.stdout.readline() for _ in range(3)]
    held = next(pid for pid in wait_for_ranks(job, 3) if b"HVD_RANK=1\0" in open(f"/proc/{pid}/environ", "rb").read())
    debugger = take_hold(job, held, Debugger)
    if not debugger:
        return None
    time.sleep(AWAY_S)
    expect(job.poll(), None, lines)
    expect(state(held), "t")
    debugger.let_go()
    err = end_of(job)
    expect(job.returncode, 0, err)
    expect(err.count(f"rank 1 (process {held}) is held by a debugger".encode()), 1, err)
    return err


def a_rank_that_a_debugger_holds_before_init_is_waited_for():
    return "" if hold("init", "--start-timeout", "6", "--timeout", "8") else NO_TRACING


def a_rank_that_a_debugger_holds_before_a_collective_is_waited_for():
    err = hold("sum", "--collective-timeout", "6", "--stall-check-warning-time-seconds", "6", "--timeout", "8")
    assert err is None or b"Missing ranks" not in err, err
    return NO_TRACING if err is None else ""


def writes(pid):
    before = support.read(pid, "io").split()[:4]  # of rchar and wchar
    time.sleep(0.3)
    return support.read(pid, "io").split()[:4] != before


def with_standing_reader(*flags, both=False):
    """A job that writes without end into a pipe that nobody reads, and that pipe's end."""
    reader, writer = os.pipe()
    job = start("--stop-grace", "1", *flags, "yes", stdout=writer, stderr=writer if both else subprocess.PIPE)
    os.close(writer)
    wait_for_ranks(job, 2)
    wait_for(lambda: not any(writes(pid) for pid in support.ranks_of(job.pid)))
    return job, reader


def a_reader_that_stands_still_does_not_hold_up_a_time_limit():
    job, reader = with_standing_reader("--timeout", "2")
    err = end_of(job)
    expect(job.returncode, 124, err)
    for rank in (0, 1):
        assert f"rank {rank} runs and has not called hvd::init(), blocked in writing: nobody reads".encode() in err, err
    assert re.search(rb"hvdrun: lost [1-9][0-9]{5,} bytes of output", err), err
    os.close(reader)


def a_reader_that_stands_still_does_not_hold_up_a_terminated_job():
    for both in (False, True):
        job, reader = with_standing_reader(both=both)
        job.terminate()
        job.communicate(timeout=LIMIT_S)
        expect(job.returncode, -signal.SIGTERM)
        os.close(reader)


def a_reader_that_stands_still_does_not_hold_up_an_impatient_user():
    job, reader = with_standing_reader()
    interrupt_twice(job)
    err = end_of(job)
    expect(job.returncode, -signal.SIGINT, err)
    os.close(reader)


def a_reader_that_comes_late_gets_all():
    reader, writer = os.pipe()
    job = start("--stop-grace", "1", "--timeout", "30", "--", "bash", "-c", "seq 100000 200000", stdout=writer)
    os.close(writer)
    time.sleep(3)
    with os.fdopen(reader, "rb") as file:
        lines = file.read().splitlines()
    err = end_of(job)
    expect((job.returncode, len(lines)), (0, 200002), err)


support.parse_options("late_worker")
support.main(the_start_timeout_bounds_an_agent_that_never_comes,
             a_reader_that_stands_still_does_not_hold_up_a_limited_job_whose_ranks_have_ended,
             a_slow_reader_is_waited_for_where_all_ranks_ended_in_time, a_slow_reader_does_not_hold_up_an_end_that_was_asked_for,
             a_stopped_agent_does_not_hold_up_a_terminated_job,
             a_stopped_agent_does_not_hold_up_an_impatient_user, being_continued_is_no_word_of_the_agent,
             a_rank_in_init_is_not_timed_out_while_the_job_is_suspended,
             a_rank_in_a_collective_is_not_timed_out_while_the_job_is_suspended,
             a_rank_that_a_debugger_holds_before_init_is_waited_for,
             a_rank_that_a_debugger_holds_before_a_collective_is_waited_for,
             a_reader_that_stands_still_does_not_hold_up_a_time_limit,
             a_reader_that_stands_still_does_not_hold_up_a_terminated_job,
             a_reader_that_stands_still_does_not_hold_up_an_impatient_user, a_reader_that_comes_late_gets_all)
