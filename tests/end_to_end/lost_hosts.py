"""Jobs over ssh whose hosts, connections, agents or launcher are lost: both sides end, and say why."""
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import support
from remote_jobs import LONELY, PAIR, SLEEP, beside_network, hosts, launcher, on_hosts, processes, start, wait_for_sleeps, wait_until_empty
from support import expect, wait_for

RESET_LIMIT_S = 3  # until nothing runs on any host once connections were reset or hvdrun killed
CUT_LIMIT_S = 12  # until both sides have ended once a host is silent

world = None


def asleep(*words, **more):
    """A job of PAIR whose ranks sleep."""
    job = start(*PAIR, *LONELY, *words, *SLEEP, **more)
    wait_for_sleeps("h1", "h2")
    return job


def send(signal_name, host, program):
    world.run(host, "kill", f"-{signal_name}", *world.run(host, "ps", "-C", program, "-o", "pid=").stdout.split())


def some_ssh(job):
    """The first of hvdrun's: h1's or h2's, either will do."""
    return next(pid for pid in support.children(launcher(job)) if support.read(pid, "comm") == "ssh")


def suspend(job):
    """As Ctrl-Z does; of a job that has a process group of its own, as from a shell: else nobody could continue it."""
    os.kill(launcher(job), signal.SIGTSTP)
    wait_for(lambda: support.state(launcher(job)) == "T")


def go_on(job):
    for pid in (launcher(job), job.pid):  # nsenter above it, which stops with it
        os.kill(pid, signal.SIGCONT)


def nobody_outlives_hvdrun():
    job = asleep()
    os.kill(launcher(job), signal.SIGKILL)
    wait_until_empty("h1", "h2", limit_s=RESET_LIMIT_S)
    job.communicate(timeout=30)


def a_lost_connection_ends_both_sides():
    job = asleep()
    world.reset("h2")
    begin = time.monotonic()
    wait_until_empty("h1", "h2", limit_s=RESET_LIMIT_S)
    gone = time.monotonic() - begin
    _, err = job.communicate(timeout=30)
    took = time.monotonic() - begin
    assert took < RESET_LIMIT_S, took
    expect(job.returncode, 125, err)
    # Whether ssh or its agent's stream notices first decides who tells of the connection.
    assert b"the agent on h2 was lost; its ranks end with it" in err.splitlines()[-1], err
    return f"gone after {gone:.2f} s, hvdrun after {took:.2f} s"


def where_another_job_lives_a_lost_one_is_waited_for():
    """Which of them an agent there belongs to, the host cannot say."""
    other = start("-np", "1", "-H", "h1:1", "--", "sleep", "300")
    wait_for_sleeps("h1", count=1)
    job = start("-np", "1", "-H", "h1:1", "--", "sleep", "301")
    wait_for_sleeps("h1", count=2)
    ssh = some_ssh(job)
    send("STOP", "h1", "hvd-agent")  # no word of its end comes
    begin = time.monotonic()
    os.kill(ssh, signal.SIGKILL)
    _, err = job.communicate(timeout=30)
    took = time.monotonic() - begin
    expect(job.returncode, 125, err)
    assert 8 < took < 2 * CUT_LIMIT_S and re.search(rb"waiting until what runs there has ended, up to 1[01] s\n", err), (took, err)
    other.kill()
    other.communicate(timeout=30)
    return f"after {took:.1f} s"


# hvdrun asks at the host once more what became of it, but once the agent has said it, that is enough.
def who_says_that_all_has_ended_is_not_asked_again():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        wrapper = pathlib.Path(folder, "ssh")
        wrapper.write_text(f"#!/bin/sh\n[ ! -e {folder}/lost ] || exec sleep 300\nexec ssh \"$@\"\n")
        wrapper.chmod(0o755)
        job = asleep("--ssh-command", str(wrapper))
        pathlib.Path(folder, "lost").touch()
        os.kill(some_ssh(job), signal.SIGKILL)
        _, err = job.communicate(timeout=30)
    expect(job.returncode, 125, err)
    assert b"is not known" not in err, err
    wait_until_empty("h1", "h2")


def a_host_that_is_cut_off_ends_what_it_runs():
    job = start("-np", "4", "-H", "h1:2,bash@h2:2", *LONELY, "-p", "22", "--ssh-arg=-oCompression=no", "--ssh-arg=-p", "--ssh-arg=22", *SLEEP)
    wait_for_sleeps("h1", "h2")
    world.cut("h2")
    begin = time.monotonic()
    try:
        _, err = job.communicate(timeout=40)
        took = time.monotonic() - begin
        assert 10 < took < CUT_LIMIT_S, took
        expect(processes("h1") + processes("h2"), [])
    finally:
        world.heal("h2")
    expect(job.returncode, 125, err)
    assert b"the agent on h2 has not answered for 3 s" in err and b"the agent on h2 did not answer for 6 s" in err, err
    assert re.search(rb"the connection to h2 is lost; waiting until what runs there has ended(, up to [123] s)?\n", err), err  # of 11
    # What it advises works as it stands.
    advice = re.search(rb"whether anything still runs on h2 is not known; once it is back, (hvdrun clean .*) tells and ends it", err)[1].decode()
    expect(advice, "hvdrun clean -H bash@h2 -p 22 --ssh-arg=-oCompression=no --ssh-arg=-p --ssh-arg=22")
    folder = os.path.dirname(os.path.realpath(support.options.hvdrun))
    seen = world.run("h0", "sh", "-c", f"PATH='{folder}':$PATH; {advice}")
    assert re.search("h2: nothing was left", seen.stdout), seen
    return f"after {took:.1f} s"


def who_failed_before_a_host_was_cut_off_stays_the_first():
    world.run("h1", "mkfifo", "/tmp/go_on")
    script = "[ $RANK = 0 ] && read -r x </tmp/go_on && exit 7; trap '' TERM; echo ready; tail -f /dev/null & wait"
    job = start("-np", "2", "-H", "h1,h2", *LONELY, "--log-level", "debug", "--no-tag-output", "--stop-grace", "30", "--", "bash", "-c", script)
    expect(job.stdout.readline(), b"ready\n")
    world.run("h1", "sh", "-c", "echo >/tmp/go_on")
    support.wait_for_words(job, b"the agent on h2 has heard that the job ends")
    world.cut("h2")
    try:
        _, err = job.communicate(timeout=40)
        expect(processes("h1") + processes("h2"), [])
    finally:
        world.heal("h2")
    expect(job.returncode, 7, err)
    assert b"hvdrun: fallout, too: the agent on h2 was lost; its ranks end with it\n" in err, err
    assert re.match(rb"hvdrun: first failure: rank 0 \(pid \d+\) on h1 exited with code 7 after", err.splitlines()[-1]), err


def where_all_hosts_fall_silent_together_none_of_them_is_blamed():
    job = asleep()
    world.cut("h0")
    try:
        _, err = job.communicate(timeout=40)
        wait_until_empty("h1", "h2", limit_s=CUT_LIMIT_S)
    finally:
        world.heal("h0")
    expect(job.returncode, 125, err)
    said = err.decode().splitlines()
    expect(said[-1], "hvdrun: no other host has answered for 6 s; all fell silent together: look at this machine's network first", said)
    assert "did not answer for" not in err.decode() and "its keeper ends" not in err.decode(), said
    assert any(re.fullmatch("hvdrun: the agent on h[12] does not answer; if its keeper lives, it ends what runs there", line) for line in said), said


def write_carrier(folder):
    """A program around ssh that ends with a code of its own."""
    carrier = pathlib.Path(folder, "carrier")
    carrier.write_text('#!/bin/sh\nssh "$@" || exit 1\n')
    carrier.chmod(0o755)
    return str(carrier)


def a_carrier_that_ends_with_its_own_code_does_not_hide_that_a_host_is_cut_off():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        job = asleep("--ssh-command", write_carrier(folder))
        world.cut("h2")
        try:
            pids = [pid for pid in support.descendants(launcher(job)) if support.read(pid, "comm") == "ssh"]
            os.kill(next(pid for pid in pids if "h2" in support.read(pid, "cmdline").split()), signal.SIGKILL)
            _, err = job.communicate(timeout=40)
            expect(processes("h1") + processes("h2"), [])
        finally:
            world.heal("h2")
    expect(job.returncode, 125, err)
    assert re.search(rb"the connection to h2 is lost; waiting until what runs there has ended, up to 1[01] s\n", err), err


# Its keeper has ended all that it left, and says so: nobody has to wait until that is sure.
def a_carrier_that_ends_with_its_own_code_tells_of_a_killed_agent():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        job = asleep("--ssh-command", write_carrier(folder))
        begin = time.monotonic()
        send("KILL", "h2", "hvd-agent")
        _, err = job.communicate(timeout=30)
        took = time.monotonic() - begin
    expect(job.returncode, 125, err)
    assert b"is lost; waiting" not in err and took < 6, (took, err)
    assert b"the agent on h2 was lost (it was killed by SIGKILL); its ranks end with it" in err.splitlines()[-1], err
    wait_until_empty("h1", "h2")


# Healed as soon as it is noticed: the next word is due within two seconds, and has to come within three.
def a_short_cut_that_heals_costs_nothing():
    job = start(*PAIR, *LONELY, "--", "sh", "-c", "echo going; until [ -e /tmp/go_on ]; do sleep 0.1; done")
    for _ in range(4):
        assert b"going" in job.stdout.readline()
    world.cut("h2")
    try:
        support.wait_for_words(job, b"hvdrun: the agent on h2 has not answered for 3 s\n")
    finally:
        world.heal("h2")
    for host in ("h1", "h2"):
        world.path(host, "/tmp/go_on").touch()
    _, err = job.communicate(timeout=30)
    expect((job.returncode, beside_network(err)), (0, []))


def end_where_words_are_lost(sender, receiver):
    job = asleep()
    world.cut_between(sender, receiver)
    begin = time.monotonic()
    try:
        _, err = job.communicate(timeout=40)
        took = time.monotonic() - begin
        assert took < CUT_LIMIT_S, (took, err)
        expect(processes("h1") + processes("h2"), [])
    finally:
        world.heal_between(sender)
    expect(job.returncode, 125, err)
    assert b"the agent on h2 did not answer for 6 s" in err, err
    return f"after {took:.1f} s"


def a_host_that_hears_but_is_not_heard_ends_what_it_runs():
    return end_where_words_are_lost("h2", "h0")


def a_host_that_is_heard_but_hears_nothing_ends_what_it_runs():
    return end_where_words_are_lost("h0", "h2")


# hvdrun is stopped and can say nothing, so who hears nothing of it is not cut off; who hears nothing of its host is.
def a_host_that_is_cut_off_while_the_job_is_suspended_ends_what_it_runs():
    job = asleep(process_group=0)
    suspend(job)
    wait_for_sleeps("h1", "h2")
    world.cut("h2")
    wait_until_empty("h2", limit_s=30)
    wait_for_sleeps("h1")
    world.heal("h2")
    go_on(job)
    _, err = job.communicate(timeout=40)
    expect(job.returncode, 125, err)
    wait_until_empty("h1", "h2")


# Its processes go without a word: the network is cut first. Nothing tells this from a cut that may heal.
def a_host_that_loses_its_power_ends_the_job():
    job = asleep()
    world.off("h2")
    begin = time.monotonic()
    _, err = job.communicate(timeout=40)
    took = time.monotonic() - begin
    assert took < CUT_LIMIT_S, (took, err)
    expect((job.returncode, processes("h1")), (125, []), err)
    assert b"the agent on h2 has not answered for 3 s" in err and b"the agent on h2 did not answer for 6 s" in err, err
    assert b"whether anything still runs on h2 is not known; once it is back, hvdrun clean -H h2 tells and ends it" in err, err
    return f"after {took:.1f} s"


# h2 forgets its connections while no word comes from it: h0 has them half open when the network is back.
def connections_that_only_one_side_has_end_the_job():
    job = asleep()
    world.cut("h2")
    world.reset("h2")
    begin = time.monotonic()
    world.heal("h2")
    wait_until_empty("h2", limit_s=RESET_LIMIT_S)
    _, err = job.communicate(timeout=30)
    took = time.monotonic() - begin
    assert took < CUT_LIMIT_S, (took, err)
    expect(job.returncode, 125, err)
    wait_until_empty("h1", "h2")  # who asked there what is left may be about to end
    assert b"h2" in err.splitlines()[-1] and b"rank " not in err.splitlines()[-1], err
    return f"after {took:.1f} s"


def a_stopped_agent_is_given_up_and_its_keeper_ends_all():
    job = asleep()
    send("STOP", "h2", "hvd-agent")
    begin = time.monotonic()
    _, err = job.communicate(timeout=40)
    took = time.monotonic() - begin
    assert took < CUT_LIMIT_S, (took, err)
    expect((job.returncode, processes("h1") + processes("h2")), (125, []), err)
    assert b"the agent on h2 has not answered for 3 s" in err and b"the agent on h2 did not answer for 6 s" in err, err
    return f"after {took:.1f} s"


def a_killed_keeper_is_the_end_of_what_it_kept():
    job = asleep()
    send("KILL", "h2", "hvd-keeper")
    begin = time.monotonic()
    wait_until_empty("h1", "h2", limit_s=RESET_LIMIT_S)
    gone = time.monotonic() - begin
    _, err = job.communicate(timeout=30)
    expect(job.returncode, 125, err)
    assert b"h2" in err.splitlines()[-1], err
    return f"gone after {gone:.2f} s; {err.splitlines()[-1]}"


def a_killed_agent_is_a_lost_host():
    job = asleep()
    send("KILL", "h2", "hvd-agent")
    _, err = job.communicate(timeout=30)
    expect(job.returncode, 125, err)
    assert b"the agent on h2 was lost (it was killed by SIGKILL); its ranks end with it" in err.splitlines()[-1], err
    wait_until_empty("h1", "h2")


def a_lost_ssh_ends_the_job_though_its_agent_still_speaks():
    job = asleep()
    os.kill(some_ssh(job), signal.SIGKILL)  # its sshd there is not told
    _, err = job.communicate(timeout=30)
    expect(job.returncode, 125, err)
    # Its agent may have told of the end of its lease before that of ssh is seen.
    assert re.search(rb"the connection to h[12] is lost|ssh to h[12] was killed by SIGKILL; the job is ended", err), err
    wait_until_empty("h1", "h2")


def a_hvdrun_that_was_stopped_too_long_says_so():
    job = asleep()
    os.kill(launcher(job), signal.SIGSTOP)
    wait_until_empty("h1", "h2", limit_s=20)
    go_on(job)
    _, err = job.communicate(timeout=30)
    expect(job.returncode, 125, err)
    assert b"nothing was heard of hvdrun for 8 s: it was stopped, or this host cut off" in err, err


def start_sums(what):
    """A job whose ranks 0 and 1, on h1 and h2, are in the middle of sums; see worker.cc."""
    job = start("-np", "2", "-H", "h1,h2", *LONELY, "--no-tag-output", "--", support.options.worker, what, "1")
    for _ in range(2):
        expect(job.stdout.readline(), b"going\n")
    return job


# In the first job a rank waits for one that computes, in the second for the word of the order; on the links of the third
# there is always something under way, of which older kernels say nothing for minutes (cut_link.h).
def hosts_that_reach_hvdrun_but_not_each_other_end_the_job():
    answers_when_full = [int(part) for part in re.findall(r"\d+", os.uname().release)[:2]] >= [6, 6]
    kinds = ["idle", "wait:x"] + ["bulk"] * answers_when_full
    for ways in ([("h1", "h2"), ("h2", "h1")], [("h1", "h2")]):
        jobs = [start_sums(what) for what in kinds]
        for sender, receiver in ways:
            world.cut_between(sender, receiver)
        begin = time.monotonic()
        seen = [job.communicate(timeout=60)[1] for job in jobs]
        took = time.monotonic() - begin
        for job, err in zip(jobs, seen):
            expect(job.returncode, 3, err)
            words = rb"hvdrun: rank (0 on h1 lost its link to rank 1 on h2|1 on h2 lost its link to rank 0 on h1) \(Connection (timed out|reset by peer)\), and nobody"
            assert re.match(words, err.splitlines()[-1]) and b"first failure" not in err, err
        assert took < 18, (took, seen)
        world.heal_between("h1", "h2")
        wait_until_empty("h1", "h2")
    return "" if answers_when_full else "left out: links that are full: its kernel is older than Linux 6.6"


RECEIVE_ROOM = "/proc/sys/net/ipv4/tcp_rmem"


def has_full_window():
    """Somebody reads nothing of what h1 sends."""
    return "timer:(persist," in world.run("h1", "ss", "-tnoH", "state", "established").stdout


# Its host's kernel goes on to answer that there is no room, which is asked ever less often.
def a_rank_that_is_stopped_while_its_links_are_full_is_not_cut_off():
    room = world.run("h2", "cat", RECEIVE_ROOM).stdout
    world.run("h2", "sh", "-c", f"echo 4096 65536 65536 >{RECEIVE_ROOM}")  # less than is on its way
    try:
        stop_while_links_are_full()
    finally:
        world.run("h2", "sh", "-c", f"echo {room.strip()} >{RECEIVE_ROOM}")


def stop_while_links_are_full():
    job = start_sums("bulk")
    pid = world.run("h2", "ps", "-C", "e2e_worker", "-o", "pid=").stdout.strip()

    def stop_while_it_receives():
        world.run("h2", "kill", "-STOP", pid)
        begin = time.monotonic()
        while time.monotonic() - begin < 2:
            if has_full_window():
                return True
        world.run("h2", "kill", "-CONT", pid)
        return False

    def lives_for(seconds):
        try:
            job.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return
        raise AssertionError(job.communicate())

    wait_for(stop_while_it_receives, limit_s=60)
    lives_for(4)
    world.cut_between("h1", "h2")
    world.cut_between("h2", "h1")
    lives_for(4)  # nor if what it is asked is lost meanwhile
    world.heal_between("h1", "h2")
    lives_for(8)
    assert has_full_window()
    world.run("h2", "kill", "-CONT", pid)
    wait_for(lambda: not has_full_window())
    os.kill(launcher(job), signal.SIGTERM)
    _, err = job.communicate(timeout=30)
    expect(job.returncode, -signal.SIGTERM, err)
    assert b"lost its link" not in err, err


def suspend_with_much_unread():
    """A job whose hvdrun is stopped as by Ctrl-Z, while h1 has more to tell it than its kernel has room for."""
    job = start("-np", "9", "-H", "h1:8,h2:1", *LONELY, "--", support.options.bare_worker, "much", "0", "8", process_group=0)
    for _ in range(9):
        assert b"going" in job.stdout.readline()
    send("STOP", "h1", "hvd-agent")
    for host in ("h1", "h2"):
        world.path(host, "/tmp/go_on").touch()

    def unread():
        return sum(int(line.split()[2]) for line in world.run("h1", "ss", "-xnH", "state", "connected").stdout.splitlines())

    wait_for(lambda: unread() >= 8 * 60_000)
    suspend(job)  # which waits a second for the agent to have stopped its ranks
    send("CONT", "h1", "hvd-agent")
    wait_for(has_full_window)
    return job


def a_suspended_hvdrun_that_has_much_unread_loses_nobody():
    job = suspend_with_much_unread()
    support.wait_until_still(has_full_window, still_s=12)
    assert has_full_window()
    go_on(job)
    _, err = job.communicate(timeout=40)
    expect((job.returncode, beside_network(err)), (0, []))


def who_is_cut_off_from_a_suspended_hvdrun_that_has_much_unread_ends_what_it_runs():
    job = suspend_with_much_unread()
    world.cut("h1")
    wait_until_empty("h1", limit_s=30)
    go_on(job)
    _, err = job.communicate(timeout=40)
    expect(job.returncode, 125, err)


support.parse_options("worker", "bare_worker")
cases = [nobody_outlives_hvdrun, a_lost_connection_ends_both_sides, where_another_job_lives_a_lost_one_is_waited_for,
         who_says_that_all_has_ended_is_not_asked_again,
         a_host_that_is_cut_off_ends_what_it_runs, who_failed_before_a_host_was_cut_off_stays_the_first,
         where_all_hosts_fall_silent_together_none_of_them_is_blamed, a_carrier_that_ends_with_its_own_code_does_not_hide_that_a_host_is_cut_off,
         a_carrier_that_ends_with_its_own_code_tells_of_a_killed_agent, a_short_cut_that_heals_costs_nothing, a_host_that_hears_but_is_not_heard_ends_what_it_runs,
         a_host_that_is_heard_but_hears_nothing_ends_what_it_runs, a_host_that_is_cut_off_while_the_job_is_suspended_ends_what_it_runs,
         a_host_that_loses_its_power_ends_the_job, connections_that_only_one_side_has_end_the_job,
         a_stopped_agent_is_given_up_and_its_keeper_ends_all, a_killed_keeper_is_the_end_of_what_it_kept,
         a_killed_agent_is_a_lost_host, a_lost_ssh_ends_the_job_though_its_agent_still_speaks, a_hvdrun_that_was_stopped_too_long_says_so,
         a_suspended_hvdrun_that_has_much_unread_loses_nobody, who_is_cut_off_from_a_suspended_hvdrun_that_has_much_unread_ends_what_it_runs,
         hosts_that_reach_hvdrun_but_not_each_other_end_the_job,
         a_rank_that_is_stopped_while_its_links_are_full_is_not_cut_off]
support.main(*map(on_hosts, cases), why_not=hosts.why_not())
