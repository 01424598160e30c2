"""`hvdrun clean`: what jobs left is found and ended, living jobs and everybody else are left alone."""
import ctypes
import fcntl
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import support
from remote_jobs import hosts, launcher
from support import expect, wait_for

SLEEP = ["--wdir", "/", "--", "bash", "-c", "setsid sleep 300 & sleep 300"]
DAY_S = 24 * 3600

world = None  # hosts.on_hosts()


def start(*words):
    return subprocess.Popen(world.command("h0", support.options.hvdrun, *words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def clean(*words, code=0):
    seen = world.run("h0", support.options.hvdrun, "clean", *words, check=False)
    expect((seen.returncode, seen.stderr), (code, "")) if code == 0 else expect(seen.returncode, code)
    return seen


def lines(*words):
    return [re.sub(r"(agent|keeper) \d+", r"\1 N", line) for line in clean(*words).stdout.splitlines()]


def pids(host, name):
    listed = world.run(host, "ps", "-C", name, "-o", "pid=,stat=", check=False).stdout.splitlines()
    return [line.split()[0] for line in listed if "Z" not in line]


def agents(host):
    """Names of those that workers may reach: a process that was killed may still hold its sockets."""
    return set(re.findall(r"@hvd-(\w+)", world.run(host, "cat", "/proc/net/unix").stdout))


def stop_for_good(host, stuck):
    """Agents and keepers are continued when who started them dies, so that they can end: these are stopped again."""
    def all_stopped():
        world.run(host, "kill", "-STOP", *stuck)
        seen = [line.split() for line in world.run(host, "ps", "-o", "comm=,ppid=,stat=", "-p", ",".join(stuck)).stdout.splitlines()]
        return len(seen) == len(stuck) and all(words[2].startswith("T") for words in seen) and ["hvd-keeper", "1"] in [words[:2] for words in seen]
    wait_for(all_stopped)


def leave_behind(host, *words):
    """A job whose agent cannot end itself: it is stopped when hvdrun dies."""
    before = set(pids(host, "hvd-agent") + pids(host, "hvd-keeper"))
    job = start(*words, *SLEEP)
    wait_for(lambda: pids(host, "sleep"))
    stuck = set(pids(host, "hvd-agent") + pids(host, "hvd-keeper")) - before
    world.run(host, "kill", "-STOP", *stuck)
    os.kill(launcher(job), signal.SIGKILL)
    stop_for_good(host, stuck)
    job.communicate(timeout=30)


LEFT = "(agent N and 3 processes of its ranks)"


def what_a_job_left_is_ended_and_a_living_one_is_not():
    leave_behind("h1", "-H", "h1")
    alive = start("-H", "h1:1,h2:1", *SLEEP)
    wait_for(lambda: len(pids("h1", "sleep")) == 4 and len(pids("h2", "sleep")) == 2)
    spared = "left alone a job that lives " + LEFT + "; --all ends it, too"
    wanted = {f"h1: would end what a job had left {LEFT}", "h1: " + spared, "h2: " + spared}
    expect(set(lines("-H", "h1,h2", "--dry-run")), wanted)
    expect(len(pids("h1", "sleep")), 4)
    expect(set(lines("-H", "h1,h2")), {f"h1: ended what a job had left {LEFT}", "h1: " + spared, "h2: " + spared})
    expect((len(pids("h1", "sleep")), len(pids("h1", "hvd-agent")), alive.poll()), (2, 1, None))
    expect(set(lines("-H", "h2", "--all")), {f"h2: ended a job that lives {LEFT}"})
    _, err = alive.communicate(timeout=30)
    expect(alive.returncode, 125, err)
    wait_for(lambda: not pids("h1", "sleep") + pids("h2", "sleep") + pids("h1", "hvd-agent"))
    expect(set(lines("-H", "h1,h2")), {"h1: nothing was left", "h2: nothing was left"})


def this_machine_is_cleaned_without_ssh():
    job = start("-np", "1", *SLEEP)
    wait_for(lambda: pids("h0", "sleep"))
    stuck = pids("h0", "hvd-agent") + pids("h0", "hvd-keeper")
    expect(lines(), [f"localhost: left alone a job that lives {LEFT}; --all ends it, too"])
    world.run("h0", "kill", "-STOP", *stuck)
    os.kill(launcher(job), signal.SIGKILL)
    stop_for_good("h0", stuck)
    job.communicate(timeout=30)
    expect(lines("-H", "localhost"), [f"localhost: ended what a job had left {LEFT}"])
    expect(pids("h0", "sleep") + pids("h0", "hvd-keeper"), [])


def ranks_that_have_not_come_to_their_exec_are_left_alone():
    program = world.path("h0", "/tmp/program")
    shutil.copy("/bin/sleep", program)
    signal.signal(signal.SIGIO, lambda *_: None)  # the kernel asks for the lease back
    with open(program) as held:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # who executes the file waits until it is closed here
        job = start("-np", "1", "--wdir", "/", "--", "/tmp/program", "0")
        wait_for(lambda: len(pids("h0", "hvd-agent")) == 2)
        expect(lines(), ["localhost: left alone a job that lives (agent N and 1 process of its ranks); --all ends it, too"])
        expect(len(pids("h0", "hvd-agent")), 2)
    expect((job.wait(timeout=30), job.stderr.read()), (0, b""))


def a_job_of_process_1_is_left_alone():
    """Whatever its program is called by; and so is one that was brought into its namespace from outside."""
    hvdrun = support.options.hvdrun
    os.symlink(hvdrun, world.path("h0", "/tmp/horovodrun"))
    for program in hvdrun, "/tmp/horovodrun":
        job = subprocess.Popen(world.command("h0", "unshare", "--pid", "--kill-child", "--mount-proc", program, "-np", "1", *SLEEP),
                               stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: len(pids("h0", "sleep")) == 2)
        first = world.run("h0", "ps", "-o", "ppid=", "-p", pids("h0", "hvd-keeper")[0]).stdout.strip()
        within = ["nsenter", "-t", first, "-p", "-m"]
        brought = subprocess.Popen(world.command("h0", *within, hvdrun, "-np", "1", *SLEEP), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: len(pids("h0", "sleep")) == 4)
        seen = world.run("h0", *within, hvdrun, "clean", check=False)
        expect((seen.returncode, re.sub(r"agent \d+", "agent N", seen.stdout).splitlines()),
               (0, [f"localhost: left alone a job that lives {LEFT}; --all ends it, too"] * 2), seen)
        os.kill(next(p for p in support.descendants(job.pid) if support.read(p, "comm") == "unshare"), signal.SIGKILL)
        for one in job, brought:
            one.wait(timeout=30)
        wait_for(lambda: not pids("h0", "sleep"))


def who_cleans_inside_a_job_leaves_that_alone():
    alive = start("-H", "h1", *SLEEP)
    wait_for(lambda: len(pids("h1", "sleep")) == 2)
    hvdrun = support.options.hvdrun
    seen = world.run("h1", hvdrun, "-np", "1", "--no-tag-output", "--wdir", "/", "--", hvdrun, "clean", "--all", check=False)
    said = [re.sub(r"\d+", "N", line) for line in seen.stdout.splitlines()]
    expect((seen.returncode, set(said)), (0, {"localhost: left alone the job that this runs in (agent N and N process of its ranks)",
                                              "localhost: ended a job that lives (agent N and N processes of its ranks)"}), seen)
    expect((alive.wait(timeout=30), pids("h1", "sleep")), (125, []))


def impostors_and_other_users_are_left_alone():
    shutil.copy("/bin/sleep", world.path("h1", "/tmp/hvd-agent"))
    shutil.copy("/bin/sleep", world.path("h1", "/tmp/hvdrun"))
    script = ("cd /tmp; ./hvd-agent 300 & (exec -a hvd-agent ./hvdrun 300) & "
              "(exec -a hvd-keeper perl -e '$0 = q(hvd-keeper); sleep 300') & sleep 300")
    impostors = subprocess.Popen(world.command("h1", "bash", "-c", script), stdin=subprocess.DEVNULL)
    wait_for(lambda: pids("h1", "sleep"))
    before = {name: pids("h1", name) for name in ("hvd-agent", "hvdrun", "sleep", "perl", "hvd-keeper")}
    expect(lines("-H", "h1", "--all"), ["h1: nothing was left"])
    wait_for(lambda: {name: pids("h1", name) for name in before} == before)  # who looked for them is about to end there
    impostors.kill()
    for name in before:
        world.run("h1", "kill", "-KILL", *before[name], check=False)
    impostors.wait()
    leave_behind("h2", "-H", "bash@h2")
    expect(lines("-H", "h2", "--all"), ["h2: nothing was left"])
    expect(lines("-H", "bash@h2"), [f"bash@h2: ended what a job had left {LEFT}"])
    expect(set(lines("-H", "bash@h2,h2")), {"bash@h2: nothing was left", "h2: nothing was left"})


def kill_agent_and_keeper(host, but=()):
    """Together: neither sees the other's end. The agent first, since a stopped one goes on when its keeper dies."""
    both = [pid for pid in pids(host, "hvd-agent") + pids(host, "hvd-keeper") if pid not in but]
    expect(len(both), 2)
    world.run(host, "kill", "-STOP", *both)
    world.run(host, "kill", "-KILL", *both)


def what_ranks_started_goes_though_agent_and_keeper_were_killed_together():
    job = start("-H", "h1:2,h2:2", *SLEEP)
    wait_for(lambda: len(pids("h1", "sleep")) == 4 and len(pids("h2", "sleep")) == 4)
    world.run("h2", "sh", "-c", "setsid -f env HVD_AGENT=0123456789abcdef0123456789abcdef:0 TORCHELASTIC_RUN_ID=other sleep 301 >/dev/null 2>&1")
    kill_agent_and_keeper("h2")
    _, err = job.communicate(timeout=30)
    expect(job.returncode, 125, err)
    assert re.search(rb"^hvdrun: h2: ended what a job had left \(\d processes of its ranks\)$", err, re.MULTILINE), err
    assert b"the agent on h2 was lost" in err.splitlines()[-1], err
    expect(pids("h1", "sleep"), [])
    expect(world.run("h2", "ps", "-C", "sleep", "-o", "args=").stdout, "sleep 301\n")  # another job's
    expect(lines("-H", "h2"), ["h2: ended what a job had left (1 process of its ranks)"])
    expect(pids("h2", "sleep"), [])


def orphans_of_lost_agents_are_found_and_others_left_alone():
    job = start("-H", "h1:2", *SLEEP)
    wait_for(lambda: len(pids("h1", "sleep")) == 4)
    alone = pids("h1", "hvd-agent") + pids("h1", "hvd-keeper")
    doomed = agents("h1")
    alive = start("-H", "h1", *SLEEP)
    wait_for(lambda: len(pids("h1", "sleep")) == 6)
    nobody = "0" * 32
    # Orphans without an agent's name, of another user and with an agent that lives; and no orphan.
    world.run("h1", "sh", "-c", f"exec >/dev/null 2>&1; setsid -f sleep 301; setsid -f setpriv --reuid=47001 --clear-groups env HVD_AGENT={nobody}:0 sleep 302; "
              f"setsid -f sh -c 'HVD_AGENT={nobody}:0 sleep 303; :'")
    hvdrun = launcher(job)
    os.kill(hvdrun, signal.SIGSTOP)
    others = set(pids("h1", "hvd-agent") + pids("h1", "hvd-keeper")) - set(alone)
    kill_agent_and_keeper("h1", others)
    os.kill(hvdrun, signal.SIGKILL)
    os.kill(job.pid, signal.SIGCONT)  # nsenter above it, which stops with it
    job.communicate(timeout=30)
    wait_for(lambda: not agents("h1") & doomed)
    (lives,) = agents("h1")
    world.run("h1", "sh", "-c", f"setsid -f env HVD_AGENT={lives}:0 sleep 304 >/dev/null 2>&1")
    wait_for(lambda: len(pids("h1", "bash")) == 1)  # of the ranks, each ends with its agent
    spared = "h1: left alone a job that lives (agent N and 3 processes of its ranks); --all ends it, too"
    expect(set(lines("-H", "h1", "--dry-run")), {"h1: would end what a job had left (4 processes of its ranks)", spared})
    expect(len(pids("h1", "sleep")), 10)
    expect(set(lines("-H", "h1")), {"h1: ended what a job had left (4 processes of its ranks)", spared})
    left = world.run("h1", "ps", "-C", "sleep", "-o", "args=").stdout.split("\n")
    expect(sorted(line for line in left if line), ["sleep 300", "sleep 300", "sleep 301", "sleep 302", "sleep 303", "sleep 304"])
    expect(set(lines("-H", "h1", "--all")), {"h1: ended a job that lives (agent N and 3 processes of its ranks)",
                                             "h1: ended what a job had left (1 process of its ranks)"})  # that has lost its agent now
    alive.communicate(timeout=30)


def who_runs_on_without_his_first_thread_is_found():
    """As an agent does that was killed, and one of whose threads a hung file system holds."""
    shutil.copy(sys.executable, world.path("h1", "/tmp/hvdrun"))
    program = ("import ctypes, subprocess, threading; subprocess.Popen(['sleep', '300']); ctypes.CDLL(None).prctl(15, b'hvd-agent'); "
               "threading.Thread(target=threading.Event().wait).start(); ctypes.CDLL(None).pthread_exit(None)")
    half = subprocess.Popen(world.command("h1", "env", f"PYTHONHOME={sys.base_prefix}", "bash", "-c", "exec -a hvd-agent /tmp/hvdrun"), stdin=subprocess.PIPE)
    half.stdin.write(program.encode())
    half.stdin.close()
    wait_for(lambda: world.run("h1", "ps", "-C", "hvd-agent", "-o", "stat=", check=False).stdout.startswith("Z"))
    expect(lines("-H", "h1"), ["h1: ended what a job had left (agent N and 1 process of its ranks)"])
    half.kill()  # nsenter above it, which stopped with it
    half.wait()
    expect(pids("h1", "hvd-agent") + pids("h1", "sleep"), [])
    expect(lines("-H", "h1"), ["h1: nothing was left"])


class HeldAtItsEnd(support.Tracer):
    """Who is killed lives on until it is let go, as in an uninterruptible wait."""
    TRACE_EXIT = 0x40

    def request(self, what):
        if self.libc.ptrace(what, self.pid, None, self.TRACE_EXIT if what == self.SEIZE else None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace request {what} on {self.pid}")


def what_cannot_be_ended_is_told_before_a_lost_host_is_given_up():
    """Also where another job lives, so that what still ends there is waited for as well."""
    job = start("-H", "h2", *SLEEP)
    left, = wait_for(lambda: [p for p in support.descendants(world.first["h2"]) if support.read(p, "comm") == "sleep" and os.getsid(p) == p])
    doomed = set(pids("h2", "hvd-agent") + pids("h2", "hvd-keeper"))
    alive = start("-H", "h2", *SLEEP)
    wait_for(lambda: len(pids("h2", "sleep")) == 4)
    held = support.take_hold(job, left, HeldAtItsEnd)
    if held:
        try:
            kill_agent_and_keeper("h2", set(pids("h2", "hvd-agent") + pids("h2", "hvd-keeper")) - doomed)
            _, err = job.communicate(timeout=30)
        finally:  # else its host could not end
            os.kill(left, signal.SIGKILL)
            wait_for(lambda: support.state(left) == "t")
            held.request(held.DETACH)
    os.kill(launcher(alive), signal.SIGTERM)
    alive.communicate(timeout=30)
    if not held:
        return support.NO_TRACING
    said = re.findall(rb"^hvdrun: h2: (.*)$", err, re.MULTILINE)
    expect([re.sub(rb"\(.*\)", b"(N)", line) for line in said], [b"ended what a job had left (N); 1 process cannot be ended"], err)
    assert b"whether anything still runs" not in err, err
    expect(job.returncode, 125, err)
    wait_for(lambda: not pids("h2", "sleep"))


def make_scrap(folder, last, age):
    """What a copy leaves that a power failure broke off."""
    scrap = folder / ("hvdrun.0123456789abcde" + last)
    scrap.write_bytes(b"part of a program")
    os.utime(scrap, (age, age))
    return scrap


def old_copies_go_that_nobody_uses():
    cache = world.path("h1", hosts.home("root", ".cache/hvdrun"))
    old = time.time() - 31 * DAY_S
    clean("-H", "h1")
    own = next(cache.iterdir())
    for name, age in (("0123abcd_39000000", old), ("4567abcd", time.time() - 29 * DAY_S), ("89ababcd", old), ("torch-2.11.0", old)):
        (cache / name).mkdir()
        shutil.copy(support.options.hvdrun, cache / name / "hvdrun")
        os.utime(cache / name / "hvdrun", (age, age))
    os.utime(own / "hvdrun", (old, old))
    scrap = world.path("h1", "/tmp/hvdrun.0123456789abcdef")
    scrap.mkdir()
    os.utime(scrap, (old, old))
    world.path("h1", "/tmp/hvdrun.notes").mkdir()
    (cache / "cdef0123").mkdir()  # where even the first copy broke off
    (cache / "00ff00ff").mkdir()
    day_ago, hour_ago = time.time() - DAY_S - 3600, time.time() - 3600
    gone = [make_scrap(own, "0", day_ago), make_scrap(cache / "4567abcd", "0", day_ago), make_scrap(cache / "cdef0123", "0", day_ago)]
    kept = [make_scrap(own, "1", hour_ago), make_scrap(cache / "00ff00ff", "1", hour_ago), make_scrap(cache / "torch-2.11.0", "0", day_ago),
            make_scrap(own, "0.notes", day_ago)]
    running = subprocess.Popen(world.command("h1", hosts.home("root", ".cache/hvdrun/89ababcd/hvdrun"), "-np", "1", "sleep", "300"), stdin=subprocess.DEVNULL)
    wait_for(lambda: pids("h1", "sleep"))
    told = lines("-H", "h1", "--dry-run")
    assert re.fullmatch(r"h1: would remove 5 old copies of hvdrun, \d+ MiB", told[-1]), told
    expect((len(list(cache.iterdir())), all(path.exists() for path in gone)), (7, True))
    told = lines("-H", "h1")
    assert re.fullmatch(r"h1: removed 5 old copies of hvdrun, \d+ MiB", told[-1]), told
    expect({path.name for path in cache.iterdir()}, {own.name, "4567abcd", "89ababcd", "torch-2.11.0", "00ff00ff"})
    expect(([path.exists() for path in gone], [path.exists() for path in kept]), ([False] * len(gone), [True] * len(kept)))
    expect([(folder / "hvdrun").exists() for folder in (own, cache / "4567abcd")], [True, True])
    expect((scrap.exists(), world.path("h1", "/tmp/hvdrun.notes").exists()), (False, True))
    assert time.time() - (own / "hvdrun").stat().st_mtime < DAY_S  # it was used
    running.kill()
    running.wait()


def old_copies_stay_where_other_hosts_may_run_them():
    cache = hosts.home("root", ".cache")
    world.run("h1", "mkdir", cache)
    world.run("h1", "mount", "-n", "-t", "ramfs", "-o", "mode=700", "none", cache)  # a kind that hvdrun knows nothing of
    copy = world.path("h1", f"{cache}/hvdrun/0123abcd/hvdrun")
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"program")
    os.utime(copy, (0, time.time() - 31 * DAY_S))
    scrap = make_scrap(copy.parent, "0", time.time() - 31 * DAY_S)
    expect(lines("-H", "h1"), ["h1: left alone 2 old copies of hvdrun in ~/.cache/hvdrun: its file system may be other hosts' too, whose jobs cannot be seen from here; "
                               "remove it when none of them has one"])
    expect((copy.read_bytes(), scrap.exists()), (b"program", True))


def a_store_in_use_is_said_and_no_folder_counts_twice():
    store = world.path("h0", "/tmp/hvdrun-0/shipped")
    for folder in ("files", "trees"):
        (store / folder).mkdir(parents=True)
    scrap = world.path("h0", "/tmp/hvdrun.0123456789abcdef")
    scrap.mkdir()
    os.utime(scrap, (0, time.time() - 2 * DAY_S))
    for path in (store.parent, store, store / "files", store / "trees"):
        path.chmod(0o700)
    lock = os.open(store, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    for place in ("/tmp", "/tmp/."):
        seen = world.run("h0", "env", f"TMPDIR={place}", support.options.hvdrun, "clean", "--dry-run")
        expect(seen.stdout.splitlines(), ["localhost: would remove 1 old copy of hvdrun, 0 MiB",
                                          f'localhost: did not look at "{place}/hvdrun-0/shipped": a job takes what is shipped from there; try again when it runs'])
    os.close(lock)
    expect(lines(), ["localhost: removed 1 old copy of hvdrun, 0 MiB"])
    expect(lines(), ["localhost: nothing was left"])
    store.parent.chmod(0o777)
    expect(lines(), ['localhost: did not look at "/tmp/hvdrun-0/shipped": others may write to it, or put another in its place'])


def a_store_that_cannot_be_locked_is_said():
    store = hosts.home("bash", ".cache/hvdrun/shipped")
    world.run("h1", "sh", "-c", f"mkdir -p {store}/files {store}/trees; chown -R 47000:47000 {hosts.home('bash', '.cache')}; "
                                f"chmod -R 700 {hosts.home('bash', '.cache')}; chmod 300 {store}")  # as a file system without locks does
    told = lines("-H", "bash@h1")
    expect([line.split(": ", 1)[1] for line in told], [f'did not look at "{store}": it cannot be locked, so who uses it cannot be seen; remove it when no job does'])


def who_is_interrupted_leaves_nothing_of_sshs():
    """A proxy of ssh's outlives it: it ignores what ends hvdrun. What was ignored when that started does not interrupt it."""
    silent = [support.options.hvdrun, "clean", "-H", "h1", "--ssh-arg=-oProxyCommand=tail -f /dev/null >/dev/null & wait"]
    for ends_it in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        ignored = signal.SIGTERM if ends_it == signal.SIGINT else signal.SIGINT
        job = subprocess.Popen(world.command("h0", "sh", "-c", f'trap "" {ignored:d}; exec "$@"', "sh", *silent), stdin=subprocess.DEVNULL)
        wait_for(lambda: pids("h0", "tail"))
        hvdrun = launcher(job)
        os.kill(hvdrun, ignored)
        wait_for(lambda: support.is_taken(hvdrun))
        os.kill(hvdrun, ends_it)
        expect(job.wait(timeout=30), -ends_it)
        wait_for(lambda: not pids("h0", "tail"))


def who_cannot_be_told_is_no_success_and_hosts_are_cleaned():
    def told_to(place, *words):
        command = world.command("h0", "sh", "-c", f'exec "$@" {place}', "sh", support.options.hvdrun, "clean", *words)
        reader, writer = os.pipe()
        os.close(reader)
        try:
            return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE, timeout=60)
        finally:
            os.close(writer)

    for place, why in ((">/dev/full", b"No space left on device"), (">&-", b"Bad file descriptor")):
        for words in ([], ["-H", "h1,h2"], ["--help"]):
            seen = told_to(place, *words)
            expect((seen.returncode, seen.stderr), (125, b"hvdrun: cannot write to standard output: " + why + b"; send it somewhere else\n"))
    for words in ([], ["-H", "h1"], ["--help"]):
        expect(told_to("", *words).returncode, -signal.SIGPIPE)
    leave_behind("h1", "-H", "h1")
    expect(told_to("", "-H", "localhost,h1").returncode, -signal.SIGPIPE)
    expect(pids("h1", "sleep"), [])


def hosts_that_cannot_be_reached_and_wrong_words_are_named():
    seen = clean("-H", "h1,nowhere", code=125)
    expect(seen.stdout, "h1: nothing was left\n")
    assert "hvdrun: nowhere: cannot be cleaned: its name is not known here" in seen.stderr, seen.stderr
    for words, text in ((["-np", "2"], "-np means nothing to hvdrun clean, which takes -H"), (["-H", "h1", "./train"], "hvdrun clean takes no command")):
        seen = clean(*words, code=2)
        assert text in seen.stderr, seen.stderr
    seen = world.run("h0", support.options.hvdrun, "--all", "-np", "1", "true", check=False)
    assert "--all goes with hvdrun clean" in seen.stderr, seen.stderr


support.parse_options()
cases = [what_a_job_left_is_ended_and_a_living_one_is_not, this_machine_is_cleaned_without_ssh,
         ranks_that_have_not_come_to_their_exec_are_left_alone, a_job_of_process_1_is_left_alone, who_cleans_inside_a_job_leaves_that_alone,
         impostors_and_other_users_are_left_alone,
         what_ranks_started_goes_though_agent_and_keeper_were_killed_together, orphans_of_lost_agents_are_found_and_others_left_alone,
         who_runs_on_without_his_first_thread_is_found, what_cannot_be_ended_is_told_before_a_lost_host_is_given_up,
         old_copies_go_that_nobody_uses, old_copies_stay_where_other_hosts_may_run_them, a_store_in_use_is_said_and_no_folder_counts_twice,
         a_store_that_cannot_be_locked_is_said, who_is_interrupted_leaves_nothing_of_sshs,
         who_cannot_be_told_is_no_success_and_hosts_are_cleaned, hosts_that_cannot_be_reached_and_wrong_words_are_named]
support.main(*map(hosts.on_hosts, cases), why_not=hosts.why_not())
