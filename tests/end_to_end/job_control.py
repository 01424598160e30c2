"""Terminals and background: Ctrl-Z and fg, a job in the background, a terminal that closes, nohup."""
import os
import signal
import subprocess
import tempfile
import time

import support
from support import Terminal, agent_of, expect, keeper_of, ranks_of, start, state, wait_for
from victims import kill

LONG_STOP_S = 6  # longer than any patience between hvdrun, keeper and agent: there must be none


def in_terminal(script):
    """A job of two ranks in the foreground of a terminal, once both are in `script`; and its hvdrun."""
    terminal = Terminal()
    terminal.type(f"'{support.options.hvdrun}' -np 2 --color never -- bash -c 'echo up; {script}'; echo rc=$?\n")
    terminal.wait(":up"), terminal.wait(":up")
    return terminal, terminal.launcher()


def held(folder, script):
    """What a rank does that begins with `script` after go(folder), whatever stopped it meanwhile."""
    return f"while [ ! -e {folder}/go ]; do sleep 0.05; done; {script}"


def go(folder):
    open(os.path.join(folder, "go"), "w").close()


def ctrl_z_stops_ranks_and_fg_goes_on():
    terminal, launcher = in_terminal("while [ ! -e /proc/$PPID/gone ]; do sleep 0.05; if read -t 0.01 line; then exit 9; fi; done")
    ranks = ranks_of(launcher)
    terminal.type("\x1a")
    terminal.wait("Stopped")
    expect(state(launcher), "T")
    expect([state(rank) for rank in ranks], ["T", "T"])
    time.sleep(4)  # longer than any patience between hvdrun, keeper and agent: there must be none while suspended
    expect([state(rank) for rank in ranks], ["T", "T"])
    terminal.type("fg; echo rc=$?\n")
    wait_for(lambda: all(state(rank) in "SR" for rank in ranks))
    terminal.type("end\n")
    terminal.wait("rc=9")
    terminal.close()


ANSWER_LIMIT_S = 1.0  # then hvdrun stops, whoever of its ranks does not stand still yet


def shown_after(number):
    """What a shell shows when the signal comes while hvdrun, told to stop, waits for ranks to stand still; and the exit status."""
    for _ in range(20):
        with tempfile.TemporaryDirectory() as folder:
            terminal, launcher = in_terminal(held(folder, "exit 9"))
            agent = agent_of(launcher)
            os.kill(agent, signal.SIGSTOP)
            wait_for(lambda: state(agent) == "T")
            turns, begin = switches(launcher), time.monotonic()
            os.kill(launcher, signal.SIGTSTP)
            wait_for(lambda: switches(launcher) > turns)
            os.kill(launcher, number)
            in_time = time.monotonic() - begin < ANSWER_LIMIT_S
            if not in_time:
                os.kill(launcher, signal.SIGKILL)
            kill([agent], signal.SIGCONT)
            go(folder)
            shown = terminal.wait("rc="), terminal.wait("\n").strip()
            terminal.close()
            if in_time:
                return shown
    raise AssertionError("hvdrun was never signalled in time")


def a_sigcont_that_comes_before_the_ranks_stand_still_takes_the_stop_back():
    shown, code = shown_after(signal.SIGCONT)
    expect(("Stopped" in shown, code), (False, "9"), shown)


def an_end_that_comes_before_the_ranks_stand_still_is_not_put_off():
    shown, code = shown_after(signal.SIGTERM)
    expect(("Stopped" in shown, code), (False, "143"), shown)


def switches(pid):
    """How often it went to sleep."""
    return int(next(line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith("voluntary_ctxt_switches")))


def ctrl_z_while_ranks_are_being_started_holds_back_the_others():
    count = 40
    terminal = Terminal()
    terminal.type(f"HVD_FAULT_POINT=agent_spawn:9:stop '{support.options.hvdrun}' -np {count} --color never -- sleep 300\n")
    launcher = terminal.launcher()
    agent = wait_for(lambda: agent_of(launcher))
    wait_for(lambda: state(agent) == "T")
    terminal.type("\x1a")
    terminal.wait("Stopped")
    os.kill(agent, signal.SIGCONT)
    # An order that the agent's thread has read is obeyed before the next rank is started; it may read while some are.
    wait_for(lambda: 9 <= len(ranks_of(launcher)) <= 16 and all(state(rank) == "T" for rank in ranks_of(launcher)))
    started = len(ranks_of(launcher))
    turns = switches(agent)
    wait_for(lambda: switches(agent) >= turns + 3)  # it looks three times more whether anything is to be done
    expect(len(ranks_of(launcher)), started)
    terminal.type("fg\n")
    ranks = wait_for(lambda: len(ranks_of(launcher)) == count and ranks_of(launcher))
    wait_for(lambda: all(state(rank) in "SR" for rank in ranks))
    terminal.type("\x03")
    terminal.wait("interrupted (SIGINT)")
    terminal.close()


def a_background_job_neither_reads_nor_stops():
    with tempfile.TemporaryDirectory() as folder:
        go_on = os.path.join(folder, "go_on")
        os.mkfifo(go_on)
        held = os.open(go_on, os.O_RDWR)  # so that no rank waits for a writer
        terminal = Terminal()
        terminal.type(f"'{support.options.hvdrun}' -np 2 --color never -- bash -c 'read -r _ <{go_on}; echo fine' & wait $!; echo rc=$?\n")
        wait_for(lambda: len(ranks_of(terminal.launcher())) == 2)
        os.write(held, b"a line\nfor each\n")
        terminal.wait(":fine"), terminal.wait(":fine"), terminal.wait("rc=0")
        terminal.close()
        os.close(held)


def a_terminal_that_closes_ends_the_job():
    terminal = Terminal()
    terminal.type(f"'{support.options.hvdrun}' -np 2 --color never -- bash -c 'echo up; sleep 60'\n")
    terminal.wait(":up"), terminal.wait(":up")
    ranks = ranks_of(terminal.launcher())
    os.close(terminal.fd)
    wait_for(lambda: not any(state(rank) for rank in ranks))


def what_was_ignored_at_the_start_stays_ignored():
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = start("--", "bash", "-c", "grep SigIgn /proc/self/status; sleep 1; exit 4", preexec_fn=ignore)
    out = job.stdout.readline() + job.stdout.readline()
    job.send_signal(signal.SIGHUP)
    job.send_signal(signal.SIGINT)
    job.communicate(timeout=20)
    expect(job.returncode, 4)
    for line in out.splitlines():
        mask = int(line.split()[-1], 16)
        expect(mask & 3, 3, "HUP and INT are not ignored in a worker")
        expect(mask & 1 << 12, 0, "hvdrun's own SIGPIPE setting reached a worker")


def an_ignored_sigchld_hides_no_end():
    def ignore():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    job = start("--", "bash", "-c", "exit 4", preexec_fn=ignore)
    try:
        job.communicate(timeout=20)
    finally:
        job.kill()
    expect(job.returncode, 4)


def an_ignored_sigchld_hides_no_end_of_an_ssh():
    begin = time.monotonic()
    seen = subprocess.run([support.options.hvdrun, "clean", "-H", "198.51.100.1", "--ssh-command", "false", "--start-timeout", "100"],
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=200,
                          preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert seen.returncode == 125 and b"198.51.100.1: cannot be cleaned: " in seen.stderr, seen.stderr
    assert time.monotonic() - begin < 90, seen.stderr


def nohup_keeps_the_job_when_its_terminal_closes():
    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal()
        terminal.type(f"cd {folder}; nohup '{support.options.hvdrun}' -np 2 -- bash -c 'echo up; {held(folder, 'echo over')}'; echo rc=$?\n")
        terminal.wait("ignoring input")
        launcher = terminal.launcher()
        ranks = wait_for(lambda: len(ranks_of(launcher)) == 2 and ranks_of(launcher))
        os.kill(terminal.pid, signal.SIGHUP)  # as a closing terminal does, before its shell is gone
        os.close(terminal.fd)
        wait_for(lambda: state(terminal.pid) in ("", "Z"))
        for pid in keeper_of(launcher), agent_of(launcher), launcher:
            os.kill(pid, signal.SIGHUP)
        expect(all(state(rank) in "SR" for rank in ranks), True)
        go(folder)
        wait_for(lambda: not state(launcher) or state(launcher) == "Z")
        with open(os.path.join(folder, "nohup.out")) as file:
            said = file.read()
        expect((said.count(">:up"), said.count(">:over")), (2, 2), said)


def start_and_stop(folder, script, *flags):
    """A job of one rank that does `script` once hvdrun is stopped and `folder`/go is there."""
    job = start(*flags, "--", "bash", "-c", held(folder, script), np=1)
    wait_for(lambda: ranks_of(job.pid))
    job.send_signal(signal.SIGSTOP)
    wait_for(lambda: state(job.pid) == "T")
    return job


LOUD = "yes 0123456789abcde | head -c 8000000; exit 7"
# More than goes into one pipe, less than into the rank's and the agent's: the rank ends, its agent does not.
MIDDLING = "yes 0123456789abcde | head -c 1500000; exit 5"


def a_hvdrun_that_is_stopped_while_its_job_ends_knows_how_it_ended():
    with tempfile.TemporaryDirectory() as folder:
        ended = {6: start_and_stop(folder, "exit 6"), 0: start_and_stop(folder, "exit 0", "--timeout", "4")}
        loud = start_and_stop(folder, LOUD)
        middling = start_and_stop(folder, MIDDLING, "--timeout", "4")
        go(folder)
        for job in ended.values():
            wait_for(lambda: not ranks_of(job.pid))
        time.sleep(LONG_STOP_S)
        if not ranks_of(middling.pid):  # who may have few pages in pipes has small ones
            ended[5] = middling
        for job in loud, middling, *ended.values():
            job.send_signal(signal.SIGCONT)
        out, err = loud.communicate(timeout=60)
        expect((loud.returncode, out.count(b"0123456789abcde\n")), (7, 500000), err)
        for code, job in ended.items():
            _, err = job.communicate(timeout=30)
            expect(job.returncode, code, err)
        middling.communicate(timeout=30)


def a_hvdrun_that_is_stopped_while_its_job_starts_has_not_timed_out():
    job = start("--start-timeout", "1", "--", "bash", "-c", "exit 6", np=1,
                env={**os.environ, "HVD_FAULT_POINT": "hvdrun_bootstrap_sent:1:stop"})
    wait_for(lambda: state(job.pid) == "T")
    time.sleep(LONG_STOP_S)
    job.send_signal(signal.SIGCONT)
    _, err = job.communicate(timeout=30)
    expect(job.returncode, 6, err)


def a_hvdrun_that_is_killed_while_it_is_stopped_leaves_nobody():
    with tempfile.TemporaryDirectory() as folder:
        ended, loud, running = [start_and_stop(folder, script) for script in ("exit 6", LOUD, "sleep 60")]
        go(folder)
        wait_for(lambda: not ranks_of(ended.pid))
        for job in ended, loud, running:
            job.kill()
            job.communicate(timeout=30)
        _, left = support.wait_for_nobody(support.GONE_LIMIT_S)
        expect(left, [])


def a_terminal_that_stops_who_writes_in_the_background_costs_no_verdict():
    terminal = Terminal()
    terminal.type(f"stty tostop; '{support.options.hvdrun}' -np 1 --color never -- bash -c 'echo hi; sleep 0.5; exit 6' & \n")
    launcher = terminal.launcher()
    wait_for(lambda: state(launcher) == "T" and not ranks_of(launcher))
    time.sleep(LONG_STOP_S)
    terminal.type("fg; echo rc=$?\n")
    terminal.wait("rc=6")
    terminal.close()


support.main(ctrl_z_stops_ranks_and_fg_goes_on, ctrl_z_while_ranks_are_being_started_holds_back_the_others,
             a_sigcont_that_comes_before_the_ranks_stand_still_takes_the_stop_back,
             an_end_that_comes_before_the_ranks_stand_still_is_not_put_off,
             a_background_job_neither_reads_nor_stops, a_terminal_that_closes_ends_the_job,
             what_was_ignored_at_the_start_stays_ignored, an_ignored_sigchld_hides_no_end,
             an_ignored_sigchld_hides_no_end_of_an_ssh,
             nohup_keeps_the_job_when_its_terminal_closes, a_hvdrun_that_is_stopped_while_its_job_ends_knows_how_it_ended,
             a_hvdrun_that_is_stopped_while_its_job_starts_has_not_timed_out,
             a_hvdrun_that_is_killed_while_it_is_stopped_leaves_nobody,
             a_terminal_that_stops_who_writes_in_the_background_costs_no_verdict)
