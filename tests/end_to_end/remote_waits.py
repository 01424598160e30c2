"""Hosts that are slow, silent, missing or many at the start of a job: what hvdrun waits for, and what it says."""
import json
import os
import pty
import re
import signal
import subprocess
import time

import support
from remote_jobs import command, hosts, launcher, on_hosts, run, start, wait_until_empty
from support import expect, wait_for, wait_for_words

world = None


def no_agents(err):
    return [line for line in err.decode().splitlines() if line.startswith("hvdrun: no agent on ")]


def on_terminal(*words):
    """The exit status, and what was said, where standard error is a terminal."""
    ours, its = pty.openpty()
    job = subprocess.Popen(command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=its)
    os.close(its)
    said = b""
    try:
        while some := os.read(ours, 65536):
            said += some
    except OSError:  # the last one has closed the terminal
        pass
    os.close(ours)
    return job.wait(timeout=60), said


def a_slow_line_is_no_failure_and_one_that_stands_still_is():
    world.limit("h1", "8mbit")  # the agent takes 19 s
    begin = time.monotonic()
    seen = run("-H", "h1,h2", "--start-timeout", "8", "--wdir", "/", "--", "true")
    expect(seen.returncode, 0, seen.stderr)
    assert time.monotonic() - begin > 8, "it was not slow"
    for host in ("h1", "h2"):
        wait_until_empty(host)
    world.run("h1", "rm", "-r", hosts.home("root", ".cache"))
    job = start("-H", "h1,h2", "--start-timeout", "8", "--wdir", "/", "--", "true")
    wait_for(lambda: world.run("h1", "sh", "-c", "find /run/home -name 'hvdrun.*' -size +1000").stdout)
    world.cut("h1")
    _, err = job.communicate(timeout=60)
    last = err.decode().splitlines()[-1]
    expect(job.returncode, 125, err)
    assert re.match(r"hvdrun: no agent on h1: the agent was being copied to it, [\d.]+ MB of \d+ MB in \d+\.\d s, and it took no more: .*; try by hand: ssh ", last), err
    world.heal("h1")
    world.limit("h1", None)
    wait_until_empty("h1", limit_s=30)


def all_hosts_that_are_not_there_are_named():
    begin = time.monotonic()
    seen = run("-H", "bad1,bad2,bad3,h1", "--", "true")
    assert time.monotonic() - begin < 15, time.monotonic() - begin
    expect((seen.returncode, sorted(line.split()[4] for line in no_agents(seen.stderr))), (125, ["bad1:", "bad2:", "bad3:"]), seen.stderr)
    expect(seen.stderr.splitlines()[-1].decode(), [line for line in no_agents(seen.stderr)][-1])
    seen = run("-H", "h1:1,h2:1", "-p", "2223", "--wait-hosts", "2", "--", "true")
    expect(sorted(line.split()[4] for line in no_agents(seen.stderr)), ["h1:", "h2:"], seen.stderr)
    for host in ("h1", "h2"):
        world.cut(host)
    seen = run("-H", "h1,h2", "--start-timeout", "2", "--", "true")
    for host in ("h1", "h2"):
        world.heal(host)
    expect((seen.returncode, sorted(line.split()[4] for line in no_agents(seen.stderr))), (125, ["h1:", "h2:"]), seen.stderr)


def who_is_reached_has_no_longer_for_hosts_that_are_waited_for():
    world.path("h1", hosts.home("root", ".bashrc")).write_text("sleep 100\n")
    begin = time.monotonic()
    seen = run("-H", "h1", "--wait-hosts", "60", "--start-timeout", "3", "--", "true", limit=100)
    assert time.monotonic() - begin < 30, time.monotonic() - begin
    expect(seen.returncode, 125, seen.stderr)
    assert b"no agent on h1: there was no answer for " in seen.stderr.splitlines()[-1], seen.stderr
    world.path("h1", hosts.home("root", ".bashrc")).unlink()


def of_many_hosts_that_are_silent_few_have_a_line_and_none_that_was_not_tried():
    """A program in ssh's place, which is silent: three hundred hosts of hosts.py would need a machine of their own."""
    world.run("h0", "sh", "-c", "printf '#!/bin/sh\nexec sleep 1000\n' >/tmp/silent; chmod +x /tmp/silent")
    names = ",".join(f"node{i}" for i in range(300))
    status, said = on_terminal("-H", names, "--ssh-command", "/tmp/silent", "--start-timeout", "4", "--result-file", "/tmp/many.json", "--", "true")
    lines = said.decode().splitlines()
    expect(status, 125, lines[-3:])
    waiting = [line for line in lines if line.startswith("hvdrun: waiting for ")]
    expect((len(waiting), waiting[-1]), (11, "hvdrun: waiting for 290 more hosts: 54 connecting, 236 waiting for its turn"), waiting)
    failed = no_agents(said)
    assert len(failed) == 11 and failed[0].startswith("hvdrun: no agent on 54 more hosts: node10, "), failed
    expect([line.split()[4] for line in failed[1:]], [f"node{i}:" for i in range(9, -1, -1)])
    result = json.loads(world.path("h0", "/tmp/many.json").read_text())
    expect((result["cause"], "hvdrun: " + result["cause_text"], result["exit_code"]), ("not_started", failed[-1], 125))
    listed = result["hosts"]
    expect(["hvdrun: no agent on {host}: {why}".format(**one) for one in listed["not_started"]], failed[:0:-1])
    expect(listed["more_not_started"], 54)


def a_directory_is_looked_for_by_the_name_that_the_user_went_by():
    def directories():
        script = f"cd /tmp/home_me; exec '{support.options.hvdrun}' -H h1 --no-tag-output -- sh -c 'pwd -P; pwd'"
        seen = subprocess.run(world.command("h0", "sh", "-c", script), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        expect(seen.returncode, 0, seen.stderr)
        return seen.stdout.split()

    for host, disk in (("h0", "data1"), ("h1", "data2")):
        world.run(host, "sh", "-c", f"mkdir -p /tmp/{disk}/me; ln -s /tmp/{disk}/me /tmp/home_me")
    expect(directories(), ["/tmp/data2/me", "/tmp/home_me"])
    world.run("h1", "sh", "-c", "rm /tmp/home_me; mkdir -p /tmp/data1/me")
    expect(directories(), ["/tmp/data1/me", "/tmp/data1/me"], "else without links")


def a_start_that_is_ended_names_the_hosts_that_are_not_there_and_their_step():
    ends = ((None, 124, ["hvdrun: time limit of 3 s reached (--timeout)"], []),
            (signal.SIGINT, -signal.SIGINT, ["hvdrun: interrupted (SIGINT)"], ["hvdrun: interrupted before all hosts were there; no rank has started"]),
            (signal.SIGTERM, -signal.SIGTERM, ["hvdrun: ended by SIGTERM"], []))

    def ends_with(hosts_late, step, words, of_ends=ends):
        for number, status, last, first in of_ends:
            job = start("-H", "h1,h2", "--wdir", "/", "--result-file", "/tmp/late.json", "--verbose", *([] if number else ["--timeout", "3"]), "--", "true")
            awaited = set(words if number else [])
            while awaited:
                line = wait_for_words(job, b" agent on ")
                awaited -= {one for one in awaited if one in line}
            if number:
                os.kill(launcher(job), number)
            _, err = job.communicate(timeout=60)
            lines = [line for line in err.decode().splitlines() if not re.match(r"hvdrun: [\d:.]+ ", line)]
            expect((job.returncode, lines[:len(first)], lines[-1:]), (status, first, last))
            said = [re.fullmatch(rf"hvdrun: was still waiting for (h\d): ({step}, for \d+\.\d s)", line) for line in lines[len(first):-1]]
            assert all(said), lines
            expect(sorted(one[1] for one in said), hosts_late, lines)
            listed = json.loads(world.path("h0", "/tmp/late.json").read_text())["hosts"]
            expect(listed, {"not_started": [{"host": one[1], "why": one[2]} for one in said], "more_not_started": 0, "lost": []})

    first = start("-H", "h2", "--wdir", "/", "--", "true")  # so that it has hvdrun already
    _, err = first.communicate(timeout=60)
    expect(first.returncode, 0, err)
    world.limit("h1", "2mbit")
    ends_with(["h1"], r"copying hvdrun, \d+ of \d+ MB(, \d+ s left)?", [], ends[:1])
    world.limit("h1", None)
    wait_until_empty("h1", limit_s=30)  # what was under way has come
    world.cut("h1")
    ends_with(["h1"], "connecting", [b"agent on h2 is up"])
    world.heal("h1")
    wait_until_empty("h1", "h2", limit_s=30)
    expect(run("-H", "h1,h2", "--wdir", "/", "--", "true").returncode, 0)  # the agent is there
    world.cut_between("h1", "h2")
    ends_with(["h1", "h2"], "proving network", [b"h1 listens for links", b"h2 listens for links"])
    world.heal_between("h1")
    wait_until_empty("h1", "h2", limit_s=30)


def who_cannot_reach_hvdrun_tells_so_in_one_line():
    # What h1 sends to h0 is lost, but for what its sshd sends; by TCP's number, as not each system has /etc/protocols.
    for family, network in (("-4", "10.77.0."), ("-6", "fd77::")):
        world.run("h1", "ip", "neigh", "replace", f"{network}200", "lladdr", "02:00:00:00:00:01", "nud", "permanent", "dev", "eth0")
        world.run("h1", "ip", family, "route", "add", f"{network}254", "via", f"{network}200", "table", "7")
        world.run("h1", "ip", family, "rule", "add", "pref", "10", "ipproto", "6", "sport", "22", "lookup", "main")
        world.run("h1", "ip", family, "rule", "add", "pref", "20", "to", f"{network}254", "lookup", "7")
    words = ["-H", "h1,h2", "--start-timeout", "4", "--wdir", "/", "--", "true"]
    seen = run(*words)
    told, last = seen.stderr.decode().splitlines()
    assert re.fullmatch(r"hvdrun: h1: agent: cannot reach hvdrun within 4 s; where a .* \(--network-interface\); \S+: no answer", told), told
    expect((seen.returncode, last), (125, "hvdrun: no agent reported from h1 within 4 s (--start-timeout)"))
    wait_until_empty("h1", "h2")
    job = start(*words)  # and where the agent says nothing
    wait_for(lambda: "rendezvous" in world.run("h1", "ps", "-eLo", "comm=").stdout)
    os.kill(next(p for p in support.descendants(world.first["h1"]) if support.read(p, "comm") == "hvd-agent"), signal.SIGSTOP)
    told, *_, last = job.communicate(timeout=60)[1].decode().splitlines()
    assert re.fullmatch(r"hvdrun: h1: its agent runs there and has not reached hvdrun for \d+\.\d s; where a .*; hvdrun listens at \S+", told), told
    expect((job.returncode, last), (125, "hvdrun: no agent reported from h1 within 4 s (--start-timeout)"))
    wait_until_empty("h1", "h2")
    job = start("-H", "h1", "--result-file", "/tmp/late.json", "--wdir", "/", "--", "true")  # and where that is not waited for
    wait_for(lambda: "rendezvous" in world.run("h1", "ps", "-eLo", "comm=").stdout)
    os.kill(launcher(job), signal.SIGTERM)
    late, last = job.communicate(timeout=60)[1].decode().splitlines()
    assert late.startswith("hvdrun: was still waiting for h1: its agent runs there and has not reached hvdrun for "), late
    expect((job.returncode, last), (-signal.SIGTERM, "hvdrun: ended by SIGTERM"))
    listed = json.loads(world.path("h0", "/tmp/late.json").read_text())["hosts"]
    expect(([one["host"] for one in listed["not_started"]], listed["lost"]), (["h1"], []))
    wait_until_empty("h1", "h2")


class SlowFolder:
    """A folder on both hosts, which on h2 does not answer until it is told to."""

    def __init__(self, name):
        self.path = hosts.home("root", name)
        self.said = f'hvdrun: h2: "{self.path}" does not answer; its ranks are started once it does\n'.encode()
        world.run("h1", "mkdir", self.path)
        self.server = subprocess.Popen(world.command("h2", "python3", f"{hosts.TREE}/tests/support/slow_folder.py", self.path),
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        expect(self.server.stdout.readline(), b"mounted\n")

    def answer(self):
        self.server.stdin.write(b"now\n")
        self.server.stdin.flush()


def a_directory_that_does_not_answer_is_named_and_waited_for():
    """It is looked at beside the agent's work: a host whose agent is silent is lost after 6 s."""
    folder = SlowFolder("slow")
    job = start("-H", "h1,h2", "--start-timeout", "60", "--wdir", folder.path, "--", "pwd")
    begin = time.monotonic()
    wait_for_words(job, folder.said)
    wait_for(lambda: time.monotonic() - begin > 8)
    folder.answer()
    out, err = job.communicate(timeout=60)
    expect((job.returncode, sorted(out.splitlines())), (0, [f"[{rank}]<stdout>:{folder.path}".encode() for rank in (0, 1)]), err)
    never = SlowFolder("never")
    seen = run("-H", "h1,h2", "--start-timeout", "10", "--wdir", never.path, "--", "pwd")
    expect(seen.returncode, 125, seen.stderr)
    assert never.said in seen.stderr, seen.stderr
    assert b"rank 1 (h2) could not be started within 10 s (--start-timeout)" in seen.stderr.splitlines()[-1], seen.stderr
    never.answer()  # until then the kernel lets nobody go who asked
    wait_until_empty("h1", "h2")
    for one in (folder, never):
        one.server.kill()
        one.server.communicate()


def every_step_of_a_start_is_logged_with_its_host():
    for copies in (["copying"], []):
        seen = run("-H", "h1,h2", "--verbose", "--wdir", "/", "--", "true")
        expect(seen.returncode, 0, seen.stderr)
        for host in ("h1", "h2"):
            steps = re.findall(rf"^hvdrun: [\d:.]+ debug: {host}: (.*)$", seen.stderr.decode(), re.M)
            expect([step for step in steps if step != "starting"], ["connecting", *copies, "ready"])
            for words in ("agent on {} is up", "agent on {} listens for links", r"started rank \d \(pid \d+\) on {}\n", "the last word of the agent on {}:"):
                assert re.search(words.format(host), seen.stderr.decode()), seen.stderr


if __name__ == "__main__":
    support.parse_options()
    cases = [a_slow_line_is_no_failure_and_one_that_stands_still_is, all_hosts_that_are_not_there_are_named,
             who_is_reached_has_no_longer_for_hosts_that_are_waited_for, of_many_hosts_that_are_silent_few_have_a_line_and_none_that_was_not_tried,
             a_directory_is_looked_for_by_the_name_that_the_user_went_by, a_start_that_is_ended_names_the_hosts_that_are_not_there_and_their_step,
             a_directory_that_does_not_answer_is_named_and_waited_for, who_cannot_reach_hvdrun_tells_so_in_one_line, every_step_of_a_start_is_logged_with_its_host]
    support.main(*[on_hosts(case) for case in cases], why_not=hosts.why_not())
