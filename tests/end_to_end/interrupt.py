"""Ctrl-C and its kin: what ranks get, when they are killed, and how hvdrun itself ends."""
import contextlib
import fcntl
import json
import os
import signal
import tempfile
import termios
import time

import support
from support import (NO_TRACING, Debugger, Terminal, agent_of, children, expect, is_taken, keeper_of, ranks_of, read, sh, start,
                     take_hold, wait_for, wait_for_ranks, wait_for_words)

STUBBORN = "trap '' TERM INT; echo up; sleep 60; sleep 60"
ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT


def up(job, np=2):
    for _ in range(np):
        job.stdout.readline()


def hvdrun_ends_by_the_signal_it_got():
    for sent in ENDING:
        job = start("--", "sleep", "60")
        wait_for_ranks(job, 2)
        job.send_signal(sent)
        _, words = job.communicate(timeout=20)
        expect(job.returncode, -sent)
        assert sent.name in words.decode().splitlines()[-1], words


def ranks_that_ignore_term_are_killed_after_the_grace():
    job = start("--stop-grace", "1", "--", "bash", "-c", STUBBORN)
    up(job)
    begin = time.monotonic()
    for _ in range(3):  # more of them do not shorten it: who sends TERM is no impatient user
        job.send_signal(signal.SIGTERM)
        wait_for(lambda: is_taken(job.pid))
    job.communicate(timeout=20)
    seconds = time.monotonic() - begin
    expect(job.returncode, -15)
    assert seconds > 0.95, seconds
    return f"{seconds:.2f} s at a grace of 1 s"


def the_second_interrupt_kills_now():
    job = start("--stop-grace", "30", "--", "bash", "-c", STUBBORN)
    up(job)
    job.send_signal(signal.SIGINT)
    wait_for_words(job, b"interrupted")
    begin = time.monotonic()
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=20)
    expect(job.returncode, -2)
    return f"{(time.monotonic() - begin) * 1000:.0f} ms after the second"


def the_third_interrupt_leaves_even_an_agent_that_is_stuck():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        note = leave_an_agent_that_is_stuck(path)
        if note:
            return note
        with open(path) as file:
            result = json.load(file)
    expect((result["exit_code"], result["signal"], result["cause"]), (130, "SIGINT", "interrupted"))
    return None


def the_third_interrupt_gives_a_pipes_reader_the_result():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pipe")
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        note = leave_an_agent_that_is_stuck(path)
        if note:
            return note
        with open(reader) as pipe:
            expect(json.load(pipe)["cause"], "interrupted")
    return None


def a_pipes_reader_that_has_the_result_gets_no_second_one():
    """While hvdrun cannot say its report: nobody reads its standard error, which is full."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pipe")
        os.mkfifo(path)
        result = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        words, full = os.pipe()
        os.set_blocking(full, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(full, bytes(4096)):
                pass
        os.set_blocking(full, True)
        job = start("--result-file", path, "--", "bash", "-c", "exit 7", np=1, stderr=full)
        os.close(full)
        wait_for(lambda: fcntl.ioctl(result, termios.FIONREAD, bytes(4)) != bytes(4))
        for _ in range(3):
            job.send_signal(signal.SIGINT)
            wait_for(lambda: job.poll() is not None or is_taken(job.pid))
        job.communicate(timeout=20)
        assert job.returncode in (-2, 7), job.returncode  # 7: it gave its reader up before the third
        with open(result) as pipe:
            expect(json.load(pipe)["exit_code"], 7)
        os.close(words)


def leave_an_agent_that_is_stuck(result):
    job = start("--stop-grace", "30", "--result-file", result, "--", "bash", "-c", STUBBORN)
    up(job)
    # One that a debugger holds is waited for without limit, so nothing else can end this job.
    debugger = take_hold(job, agent_of(job.pid), Debugger)
    if not debugger:
        return NO_TRACING
    for _ in range(2):
        job.send_signal(signal.SIGINT)
        wait_for(lambda: is_taken(job.pid))
    job.send_signal(signal.SIGINT)
    try:
        _, words = job.communicate(timeout=30)
    finally:
        job.kill()
        debugger.bury()  # its keeper has killed it
    expect(job.returncode, -2, words)
    return None


def ranks_get_int_and_may_end_by_themselves():
    job = start("--", "bash", "-c", "trap 'echo saved; exit 0' INT; echo up; while :; do sleep 0.05; done")
    up(job)
    job.send_signal(signal.SIGINT)
    out, _ = job.communicate(timeout=20)
    expect(job.returncode, -2)
    expect(out.count(b"saved"), 2)


def what_keeper_or_agent_get_alone_changes_nothing():
    notes = " ".join(f"trap 'echo {one.name}' {one.name};" for one in ENDING)
    for sent in ENDING:
        job = start("--", "bash", "-c", notes + "trap 'echo here' USR1; trap 'exit 6' USR2; echo up; while :; do sleep 0.05; done", np=1)
        up(job, 1)
        for ours in keeper_of(job.pid), agent_of(job.pid):
            os.kill(ours, sent)
        job.send_signal(signal.SIGUSR1)  # by way of the agent
        job.stdout.readline()
        job.send_signal(signal.SIGUSR2)
        out, err = job.communicate(timeout=20)
        expect((job.returncode, out.count(b"SIG")), (6, 0), (sent, out, err))


def what_every_process_gets_is_judged_by_hvdrun_alone():
    # As batch systems and systemd send it. Whoever saves takes longer than any grace but the one that was asked for.
    saves = " ".join(f"trap 'echo {one.name}; sleep 7; echo saved; exit 0' {one.name};" for one in ENDING)
    jobs = {}
    for sent in ENDING:
        job = jobs[sent] = start("--stop-grace", "60", "--", "bash", "-c", saves + "echo up; while :; do sleep 0.05; done", np=1)
        up(job, 1)
        for pid in keeper_of(job.pid), agent_of(job.pid), job.pid:
            os.kill(pid, sent)
    for sent, job in jobs.items():
        out, err = job.communicate(timeout=60)
        expect(job.returncode, -sent, err)
        got = signal.SIGINT if sent == signal.SIGINT else signal.SIGTERM
        expect([line.split(b":")[-1].decode() for line in out.splitlines()], [got.name, "saved"], err)


def a_keeper_that_has_just_begun_ignores_them_too():
    for _ in range(20):
        job = start("--", "true", np=1, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        while job.poll() is None:
            for pid in children(job.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGHUP)
        _, err = job.communicate()
        expect(job.returncode, 0, err)


def usr1_and_usr2_go_to_the_ranks():
    for sent in signal.SIGUSR1, signal.SIGUSR2:
        job = start("--", "bash", "-c", f"trap 'echo saved; kill $!; exit 0' {sent.name}; sleep 60 & echo up; wait")
        up(job)
        for ours in keeper_of(job.pid), agent_of(job.pid):
            os.kill(ours, sent)  # as from a batch system that signals every process
        job.send_signal(sent)
        out, _ = job.communicate(timeout=20)
        expect((job.returncode, out.count(b"saved")), (0, 2))
    job = start("--", "sleep", "60", np=1)
    wait_for(lambda: [one for one in ranks_of(job.pid) if read(one, "comm") == "sleep"])
    job.send_signal(signal.SIGUSR1)
    _, words = job.communicate(timeout=20)
    expect(job.returncode, 128 + signal.SIGUSR1)
    assert b"was killed by SIGUSR1" in words.splitlines()[-1], words


def background_children_that_ignore_int_do_not_delay():
    job = start("--stop-grace", "20", "--", "bash", "-c", "sleep 60 & echo up; wait")
    up(job)
    begin = time.monotonic()
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=30)
    expect(job.returncode, -2)
    assert time.monotonic() - begin < 8, "waited for half the grace"


def a_fork_loop_that_ignores_term_is_ended():
    begin = time.monotonic()
    seen = sh("trap '' TERM INT; while :; do setsid sleep 60 & done", "--timeout", "0.5", "--stop-grace", "1", np=1)
    expect(seen.returncode, 124)
    return f"{time.monotonic() - begin:.1f} s at a limit of 0.5 s and a grace of 1 s"


def a_terminals_ctrl_c():
    terminal = Terminal()
    terminal.type(f"'{support.options.hvdrun}' -np 2 --color never -- bash -c "
                  "'trap \"echo got int; exit 0\" INT; echo up; sleep 60 & wait'; echo not reached\n")
    terminal.wait("<stdout>:up"), terminal.wait("<stdout>:up")
    terminal.type("\x03")
    terminal.wait("$ ")  # hvdrun really died of SIGINT, so bash drops the rest of the line
    terminal.type("echo rc=$?\n")
    terminal.wait("rc=130")
    assert "not reached\r\n" not in terminal.text
    terminal.close()


support.main(hvdrun_ends_by_the_signal_it_got, ranks_that_ignore_term_are_killed_after_the_grace,
             the_second_interrupt_kills_now, the_third_interrupt_leaves_even_an_agent_that_is_stuck,
             the_third_interrupt_gives_a_pipes_reader_the_result, a_pipes_reader_that_has_the_result_gets_no_second_one,
             ranks_get_int_and_may_end_by_themselves, what_keeper_or_agent_get_alone_changes_nothing,
             what_every_process_gets_is_judged_by_hvdrun_alone,
             a_keeper_that_has_just_begun_ignores_them_too, usr1_and_usr2_go_to_the_ranks, background_children_that_ignore_int_do_not_delay,
             a_fork_loop_that_ignores_term_is_ended, a_terminals_ctrl_c)
