"""What bounds a job's start and end: an agent that does not answer, time limits, and the clocks they are counted by."""
import fcntl
import json
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import time

import support
from support import NO_TRACING, Debugger, Terminal, agent_of, expect, ranks_of, run, start, state, take_hold, wait_for, wait_for_ranks, wait_for_words

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
    assert b"bytes of output that nobody read in time" in err and len(out) < 700000, (len(out), err)


def read_slowly(job, size=4096, alive_at=0):
    """A page every quarter of a second: a pipe's 64 KiB take longer than the limit and the grace. hvdrun has to be there
    after `alive_at` of them."""
    parts = []
    while not parts or parts[-1]:
        time.sleep(0.25)
        parts.append(os.read(job.stdout.fileno(), size))
        assert len(parts) < 4 * LIMIT_S
        assert len(parts) != alive_at or job.poll() is None, len(parts)
    job.wait(timeout=LIMIT_S)
    return b"".join(parts)


def a_slow_reader_is_waited_for_where_all_ranks_ended_in_time():
    job = start("--no-tag-output", "--timeout", "1", "--stop-grace", "1", "--", "seq", "100000", "120000", np=1, stderr=subprocess.STDOUT)
    out = read_slowly(job, alive_at=16)  # 140 KB: more than a pipe and what is read of it until limit and grace are over
    expect(job.returncode, 0, out[-300:])
    assert out.startswith(b"".join(b"%d\n" % number for number in range(100000, 120001))), out[-300:]


def a_fast_reader_gets_hvdruns_last_words_whatever_the_ranks_write():
    job = start("--timeout", "1", "--stop-grace", "1", "--", "bash", "-c", "trap '' TERM; exec yes " + "0123456789" * 9, np=1, stderr=subprocess.STDOUT)
    last = b""
    while part := os.read(job.stdout.fileno(), 1 << 13):
        last = (last + part)[-1000:]
        time.sleep(0.001)  # slower than they write: there is always more
    job.wait(timeout=LIMIT_S)
    expect(job.returncode, 124, last)
    assert last.endswith(b"\nhvdrun: time limit of 1 s reached (--timeout)\n"), last


def start_that_wrote(last, *flags):
    """A job whose rank has written the numbers from 100000 on, more than a pipe holds, and sleeps."""
    with tempfile.TemporaryDirectory() as folder:
        script = f"seq 100000 {last}; : > {folder}/done; exec sleep 60"
        job = start("--no-tag-output", *flags, "--", "bash", "-c", script, np=1, stderr=subprocess.STDOUT)
        wait_for(lambda: os.path.exists(f"{folder}/done"))
    return job


def a_slow_reader_does_not_hold_up_an_end_that_was_asked_for():
    job = start_that_wrote(200000, "--stop-grace", "1")
    job.terminate()
    out = read_slowly(job)
    expect(job.returncode, -signal.SIGTERM, out[-300:])
    assert len(out) < 500000, len(out)
    assert b" bytes of output that nobody read in time\n" in out[-1000:] and out.endswith(b"\nhvdrun: ended by SIGTERM\n"), out[-1000:]


def a_stop_of_hvdruns_own_costs_a_reader_nothing():
    job = start_that_wrote(200000, "--stop-grace", "2")
    job.terminate()
    wait_for(lambda: not ranks_of(job.pid))
    os.kill(job.pid, signal.SIGSTOP)
    time.sleep(2.6)  # more than the reader has, less than that and a second
    os.kill(job.pid, signal.SIGCONT)
    with job.stdout as pipe:
        out = pipe.read()
    job.wait(timeout=LIMIT_S)
    assert b"\n200000\n" in out and out.endswith(b"\nhvdrun: ended by SIGTERM\n"), out[-300:]


def a_full_disk_is_not_called_a_reader():
    with open("/dev/full", "w") as full:
        seen = subprocess.run([support.options.hvdrun, "-np", "1", "--timeout", "1", "--stop-grace", "0.3", "--", "yes"],
                              stdout=full, stderr=subprocess.PIPE, timeout=LIMIT_S)
    assert b"No space left on device" in seen.stderr and b"lost" not in seen.stderr, seen.stderr


def a_stopped_agent_does_not_hold_up_a_terminated_job():
    job = with_stopped_agent()
    job.terminate()
    err = end_of(job)
    expect(job.returncode, -signal.SIGTERM, err)
    assert b"the agent on localhost does not answer; its keeper ends the job" in err, err


def interrupt_twice(job):
    """The second time when hvdrun has told what a second one does."""
    job.send_signal(signal.SIGINT)
    wait_for_words(job, b"again: kill them now")
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
    words = shlex.join([support.options.hvdrun, "-np", "2", "--color", "never", *flags, *late(where, 1, LATE_S)])
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


def with_standing_reader(*flags, both=False, ends=os.pipe):
    """A job that writes without end into a pipe that nobody reads, and that pipe's end."""
    reader, writer = ends()
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


def a_reader_of_both_streams_that_had_stood_still_is_told_what_ranks_did():
    job, reader = with_standing_reader("--timeout", "4", "--stop-grace", "30", both=True)
    wait_for(lambda: not support.ranks_of(job.pid))
    said = b"".join(iter(lambda: os.read(reader, 65536), b""))
    expect(job.wait(timeout=LIMIT_S), 124)
    for rank in (0, 1):
        assert f"rank {rank} runs and has not called hvd::init(), blocked in writing: nobody reads".encode() in said, said[-2000:]
    os.close(reader)


def a_reader_that_stands_still_does_not_hold_up_a_hvdrun_that_fails():
    with tempfile.TemporaryDirectory() as folder:
        for point in "hvdrun_bootstrap_sent", "hvdrun_finish":
            path = os.path.join(folder, point)
            reader, writer = os.pipe()
            os.write(writer, b"x" * fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ))
            job = start("--result-file", path, "--", "true", stderr=writer, env={**os.environ, "HVD_FAULT_POINT": f"{point}:1:throw"})
            os.close(writer)
            expect(job.wait(timeout=LIMIT_S), 125)
            os.close(reader)
            with open(path) as file:
                result = json.load(file)
            expect((result["cause"], result["exit_code"], point in result["cause_text"]), ("own_failure", 125, True))


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


def until_its_rank_has_ended(*flags, script):
    """A job of one rank, of whose end hvdrun has read, and that waits for something else."""
    job = start("--stop-grace", "50", "--verbose", *flags, "--", "bash", "-c", script, np=1)
    wait_for_words(job, b"info: rank 0 ")
    return job


def an_interrupt_drops_what_nobody_reads_once_all_ranks_have_ended():
    for code, wanted, cause in ((7, 7, "rank_failed"), (0, 125, "finished")):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "result.json")
            job = until_its_rank_has_ended("--result-file", path, script=f"yes | head -c 100000; exit {code}")
            job.send_signal(signal.SIGINT)
            job.wait(timeout=LIMIT_S)
            out, err = job.communicate()
            with open(path) as file:
                result = json.load(file)
        expect((job.returncode, result["exit_code"], result["cause"]), (wanted, wanted, cause), err)
        assert b"interrupted; all ranks have ended" in err and b"bytes of output that nobody read in time" in err, err
        assert len(out) < 700000, len(out)


def a_reader_that_leaves_after_an_interrupt_is_no_cause_once_all_ranks_have_ended():
    for code, wanted in ((7, 7), (0, 125)):
        job = until_its_rank_has_ended(script=f"yes | head -c 100000; exit {code}")
        job.send_signal(signal.SIGINT)
        wait_for_words(job, b"interrupted; all")
        job.stdout.close()
        err = end_of(job)
        expect(job.returncode, wanted, err)


def a_second_interrupt_kills_what_ranks_left_running_and_the_status_stays_theirs():
    job = until_its_rank_has_ended(script="trap '' INT TERM; sleep 60 & exit 0")
    job.send_signal(signal.SIGINT)
    wait_for_words(job, b"again: kill")
    expect(job.poll(), None)
    job.send_signal(signal.SIGINT)
    err = end_of(job)
    expect(job.returncode, 0, err)


def a_standing_reader_that_leaves_is_no_failing_disk():
    """A socket that is closed with bytes unread (inetd's, systemd's, Node's) resets the connection for who waits."""
    for ends in os.pipe, lambda: [end.detach() for end in socket.socketpair()]:
        job, reader = with_standing_reader(ends=ends)
        os.close(reader)
        err = end_of(job)
        expect(job.returncode, -signal.SIGPIPE, err)
        assert b"cannot write" not in err, err


def start_whose_reader_stands_still(command, **options):
    """Its ranks have written all that the pipe from hvdrun holds."""
    job = start("--stop-grace", "1", *options.pop("flags", ()), "--", "bash", "-c", command, **options)
    room = fcntl.fcntl(job.stdout, fcntl.F_GETPIPE_SZ)
    wait_for(lambda: struct.unpack("i", fcntl.ioctl(job.stdout, termios.FIONREAD, bytes(4)))[0] > room - 4096)
    return job


def a_reader_that_stands_still_hides_no_failure():
    with tempfile.TemporaryDirectory() as folder:
        result = f"{folder}/result.json"
        job = start_whose_reader_stands_still("[ $HVD_RANK = 1 ] && exec sleep 300; exec yes", flags=["--result-file", result])
        sleeper = wait_for(lambda: next((pid for pid in ranks_of(job.pid) if support.read(pid, "comm") == "sleep"), None))
        os.kill(sleeper, signal.SIGUSR1)
        line = wait_for_words(job, b"; all ranks have ended, and who reads their output is waited for (INT: drop it)")
        assert re.search(rb"^hvdrun: rank 1 .* was killed by SIGUSR1 ", line), line
        wait_for(lambda: os.path.exists(result))
        with open(result) as file:
            expect(json.load(file)["first_failure"]["rank"], 1)
        expect(job.poll(), None, line)
        out, err = job.communicate(timeout=LIMIT_S)
        expect(job.returncode, 128 + signal.SIGUSR1, err)
        assert b"nobody read" not in err and out.endswith(b":y\n"), err
        with open(result) as file:
            expect(json.load(file)["output"]["lost_bytes"], 0)


def a_reader_that_stands_still_hides_no_lost_agent():
    with tempfile.TemporaryDirectory() as folder:
        result = f"{folder}/result.json"
        job = start_whose_reader_stands_still("exec yes", flags=["--result-file", result])
        os.kill(agent_of(job.pid), signal.SIGKILL)
        line = wait_for_words(job, b"; all ranks have ended, and who reads their output is waited for (INT: drop it)")
        # Ranks' output may come before the agent has reached hvdrun the other way.
        assert re.match(rb"hvdrun: the agent on localhost (was lost|ended before it had reached hvdrun) ", line), line
        wait_for(lambda: os.path.exists(result))
        with open(result) as file:
            expect(json.load(file)["cause"], "agent_lost")
        out, err = job.communicate(timeout=LIMIT_S)
        expect(job.returncode, 125, err)
        assert b"nobody read" not in err and out.endswith(b":y\n"), (out[-20:], err)


def a_reader_that_stands_still_keeps_nobody_alive_whose_agent_and_keeper_were_killed():
    job = start_whose_reader_stands_still("setsid tail -f /dev/null & tail -f /dev/null & exec yes")
    left = wait_for(lambda: len(now := {pid for pid in support.descendants(job.pid) if support.read(pid, "comm") == "tail"}) == 4 and now)
    for pid in (support.keeper_of(job.pid), agent_of(job.pid)):
        os.kill(pid, signal.SIGKILL)
    wait_for_words(job, b"; all ranks have ended, and who reads their output is waited for (INT: drop it)")
    wait_for(lambda: not left & set(support.descendants(job.pid)))
    expect(job.poll(), None)
    out, err = job.communicate(timeout=LIMIT_S)
    expect(job.returncode, 125, err)
    assert out.endswith(b":y\n"), (out[-20:], err)


def an_interrupt_keeps_back_no_result_while_a_slow_reader_is_waited_for():
    with tempfile.TemporaryDirectory() as folder:
        result = f"{folder}/result.json"
        script = "[ $HVD_RANK = 0 ] && exec sleep 300; trap '' TERM INT; yes | head -c 100000; exec tail -f /dev/null"
        job = start("--stop-grace", "50", "--result-file", result, "--", "bash", "-c", script)
        ranks = wait_for(lambda: (now := {support.read(pid, "comm"): pid for pid in ranks_of(job.pid)}).keys() == {"sleep", "tail"} and now)
        os.kill(ranks["sleep"], signal.SIGUSR1)
        wait_for_words(job, b"; ending the others")
        job.send_signal(signal.SIGINT)
        wait_for_words(job, b"again: kill them now")
        os.kill(ranks["tail"], signal.SIGKILL)
        wait_for(lambda: os.path.exists(result))
        expect(job.poll(), None)
        with open(result) as file:
            expect(json.load(file)["exit_code"], 128 + signal.SIGUSR1)
        out, err = job.communicate(timeout=LIMIT_S)
        expect((job.returncode, out.count(b":y\n")), (128 + signal.SIGUSR1, 50000), err)
        assert b"is waited for" not in err, err


def one_interrupt_ends_a_job_whose_reader_stands_still():
    job = start_whose_reader_stands_still("exec yes", np=1)
    job.send_signal(signal.SIGINT)
    job.wait(timeout=LIMIT_S)
    err = end_of(job)
    expect(job.returncode, -signal.SIGINT, err)
    assert b"bytes of output that nobody read in time" in err, err


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
             a_fast_reader_gets_hvdruns_last_words_whatever_the_ranks_write, a_stop_of_hvdruns_own_costs_a_reader_nothing,
             a_full_disk_is_not_called_a_reader,
             a_stopped_agent_does_not_hold_up_a_terminated_job,
             a_stopped_agent_does_not_hold_up_an_impatient_user, being_continued_is_no_word_of_the_agent,
             a_rank_in_init_is_not_timed_out_while_the_job_is_suspended,
             a_rank_in_a_collective_is_not_timed_out_while_the_job_is_suspended,
             a_rank_that_a_debugger_holds_before_init_is_waited_for,
             a_rank_that_a_debugger_holds_before_a_collective_is_waited_for,
             a_reader_that_stands_still_does_not_hold_up_a_time_limit, a_reader_of_both_streams_that_had_stood_still_is_told_what_ranks_did,
             a_reader_that_stands_still_does_not_hold_up_a_hvdrun_that_fails,
             a_reader_that_stands_still_does_not_hold_up_a_terminated_job,
             a_reader_that_stands_still_does_not_hold_up_an_impatient_user, a_standing_reader_that_leaves_is_no_failing_disk,
             an_interrupt_drops_what_nobody_reads_once_all_ranks_have_ended,
             a_reader_that_leaves_after_an_interrupt_is_no_cause_once_all_ranks_have_ended,
             a_second_interrupt_kills_what_ranks_left_running_and_the_status_stays_theirs, a_reader_that_comes_late_gets_all,
             a_reader_that_stands_still_hides_no_failure, a_reader_that_stands_still_hides_no_lost_agent,
             a_reader_that_stands_still_keeps_nobody_alive_whose_agent_and_keeper_were_killed,
             an_interrupt_keeps_back_no_result_while_a_slow_reader_is_waited_for,
             one_interrupt_ends_a_job_whose_reader_stands_still)
