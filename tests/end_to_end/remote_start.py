"""Agents by ssh on hosts that have nothing: every login shell, folders that take nothing, hosts that fail."""

import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

import support

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import hosts

LIMIT_S = 20
EM_AARCH64 = 183  # of an ELF header, in its bytes 18 and 19


class Seen:
    """What start_remote said, by host."""

    def __init__(self, text):
        lines = [line.split(" ", 2) for line in text.splitlines()]
        self.started = {words[1]: words[2] for words in lines if words[0] == "started"}
        self.failed = {words[1]: words[2] for words in lines if words[0] == "failed"}
        self.words = {words[1]: words[2] for words in lines if words[0] == "words"}  # the last ones
        self.ended = {words[1]: words[2] for words in lines if words[0] == "ended"}
        self.phases = [(words[1], words[2]) for words in lines if words[0] == "phase"]

    def went_through(self, phase):
        return {host for host, words in self.phases if words.startswith(phase + " ")}

    def attempts(self, host):
        return max(int(words.split()[1]) for name, words in self.phases if name == host)


def command(world, *words, agent=None, limit_s=LIMIT_S):
    return world.command("h0", support.options.start_remote, str(agent or support.options.hvdrun), str(int(limit_s * 1000)), *words)


def start(world, *words, **more):
    done = subprocess.run(command(world, *words, **more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=60, check=False)
    support.expect((done.returncode, done.stderr), (0, ""))
    return Seen(done.stdout)


@contextlib.contextmanager
def started(world, *words):
    """Agents that stay, and the process that keeps them."""
    job = subprocess.Popen(command(world, *words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        for line in job.stdout:
            assert not line.startswith("failed"), line
            if line == "all\n":
                break
        yield job
    finally:
        job.stdin.close()
        job.wait(timeout=30)
        job.stdout.close()


def expect_started(seen, *names):
    support.expect((sorted(seen.started), seen.failed), (sorted(names), {}))
    support.expect(set(seen.ended.values()), {"0"})
    assert all(words.endswith(" request") for words in seen.started.values()), seen.started


def expect_failure(seen, host, pattern):
    assert re.search(pattern, seen.failed.get(host, "")), f"{host}: wanted {pattern!r}, saw {seen.failed} {seen.started}"


def agents(world, host):
    return world.run(host, "ps", "-eo", "comm").stdout.split().count("hvd-agent")


def copies(world, host):
    """Files of the agent's size or part of it, and folders that were made for one."""
    found = world.run(host, "sh", "-c", f"find /run/home /tmp /var/tmp /dev/shm -name 'hvdrun*' -not -path '*/.cache/hvdrun' -not -path '{hosts.TREE}/*'").stdout
    return sorted(found.split())


def write(world, host, path, text):
    file = world.path(host, path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def every_shell_and_a_bare_host_get_the_agent_once():
    names = ["root@h1", "bash@h1", "dash@h1", "fish@h1", "csh@h1", "b1"]
    with hosts.Hosts(1, bare=1) as world:
        seen = start(world, *names)
        expect_started(seen, *names)
        support.expect(seen.went_through("copying"), set(names))
        seen = start(world, *names)
        expect_started(seen, *names)
        support.expect(seen.went_through("copying"), set())
        support.wait_for(lambda: agents(world, "h1") + agents(world, "b1") == 0)
        cached = copies(world, "h1")
        support.expect([len(cached), all(path.endswith("/hvdrun") for path in cached)], [5, True], cached)
        # An empty file, as a host leaves that lost power, is no agent.
        world.path("h1", cached[0]).write_bytes(b"")
        expect_started(start(world, *names), *names)


def a_copy_that_is_damaged_is_replaced():
    with hosts.Hosts(1, bare=1) as world:
        names = ["bash@h1", "b1"]
        expect_started(start(world, *names), *names)
        kept = [(host, world.path(host, world.run(host, "find", "/run/home", "-name", "hvdrun", "-type", "f").stdout.strip())) for host in ("h1", "b1")]
        whole = pathlib.Path(support.options.hvdrun).read_bytes()
        # Cut off, in its first page, before its code ends, and where it runs all the same; with other bytes in its header.
        for damaged in (whole[:100], whole[:300_000], whole[:-1], whole[:18] + EM_AARCH64.to_bytes(2, "little") + whole[20:]):
            for host, path in kept:
                support.wait_for(lambda host=host: agents(world, host) == 0)
                path.write_bytes(damaged)
            seen = start(world, *names)
            expect_started(seen, *names)
            support.expect((seen.went_through("copying"), [path.read_bytes() == whole for _, path in kept]), (set(names), [True, True]))
        seen = start(world, *names)
        expect_started(seen, *names)
        support.expect(seen.went_through("copying"), set())
        # What somebody has put there that no file can replace is kept beside it.
        support.wait_for(lambda: agents(world, "h1") == 0)
        kept[0][1].unlink()
        (kept[0][1] / "theirs").mkdir(parents=True)
        expect_started(start(world, names[0]), names[0])
        support.expect((kept[0][1].read_bytes() == whole, [one.joinpath("theirs").is_dir() for one in kept[0][1].parent.glob("hvdrun.aside.*")]), (True, [True]))


def programs_that_are_on_the_users_path_alone_will_do():
    with hosts.Hosts(1, sshd_options={"h1": "SetEnv PATH=/nowhere:/tmp/tools"}) as world:
        world.run("h1", "sh", "-c", "mkdir /tmp/tools && cp $(command -v ls) /tmp/tools && mount -n --bind /dev/null $(command -v ls)")
        expect_started(start(world, "h1", "bash@h1"), "h1", "bash@h1")


def mount(world, where, options, kind="tmpfs"):
    world.run("h1", "mount", "-n", "-t", kind, "-o", options, "none", where)


def folders_that_cannot_take_it_are_passed_over():
    with hosts.Hosts(1) as world:
        mount(world, hosts.home("bash"), "size=1m,uid=47000")
        mount(world, hosts.home("dash"), "ro")
        mount(world, hosts.home("fish"), "noexec,uid=47002")
        shutil.rmtree(world.path("h1", hosts.home("csh")))
        names = ["bash@h1", "dash@h1", "fish@h1", "csh@h1"]
        seen = start(world, *names)
        expect_started(seen, *names)
        support.expect(seen.went_through("copying"), set(names))
        support.expect(copies(world, "h1"), [], "what was copied for one start is removed by it")
        for folder in ("/tmp", "/dev/shm", "/var/tmp"):
            mount(world, folder, {"/tmp": "noexec,mode=1777", "/dev/shm": "size=8k,mode=1777", "/var/tmp": "ro"}[folder])
        seen = start(world, *names)
        for name, reason in (("bash@h1", "No space left on device, Read-only file system, Permission denied"), ("csh@h1", "No space left")):
            expect_failure(seen, name, rf"no folder there takes the agent, \d+ MiB, and lets it run: .* \({reason}")
        support.expect(seen.started, {})
        # Where others may write, they might put something in its stead, unless it is sticky, and not a stranger's.
        for mode, places in (("mode=777", {}), ("mode=775,uid=47000", {}), ("mode=1777,uid=47001", {}), ("mode=755,uid=47001", {}),
                             ("mode=755,uid=47000", {"bash@h1"}), ("mode=1777,uid=47000", {"bash@h1"}), ("mode=1777", {"bash@h1"})):
            mount(world, "/tmp", mode)
            support.expect(set(start(world, "bash@h1").started), set(places), mode)
        left = [path for path in copies(world, "h1") if not path.endswith(".cache/hvdrun")]
        support.expect([path for path in left if world.path("h1", path).is_file()], [])


def seen_copying(world):
    seen = start(world, "bash@h1")
    expect_started(seen, "bash@h1")
    support.wait_for(lambda: agents(world, "h1") == 0)
    return set(seen.went_through("copying"))


def a_home_that_others_may_change_is_not_used():
    cache = hosts.home("bash", ".cache")
    with hosts.Hosts(1) as world:
        def changed(mode, path, owner=None):
            if owner:
                world.run("h1", "chown", owner, path)
            world.run("h1", "chmod", mode, path)

        expect_started(start(world, "bash@h1"), "bash@h1")
        support.expect(seen_copying(world), set(), "the one that is there is started")
        # The same copy is not trusted once others may write it, or may have put another in its place.
        agent = f"{cache}/hvdrun/{world.run('h1', 'ls', f'{cache}/hvdrun').stdout.strip()}/hvdrun"
        for mode in ("0770", "0702"):
            changed(mode, agent)
            support.expect(seen_copying(world), {"bash@h1"}, mode)
            support.expect(seen_copying(world), set(), "a new one is there")
        for mode, path in (("0777", hosts.home("bash")), ("0775", cache), ("0777", "/run/home"), ("0775", f"{cache}/hvdrun")):
            changed(mode, path)
            support.expect(seen_copying(world), {"bash@h1"}, path)
            changed("0755", path)
            support.expect(seen_copying(world), set(), path)
        changed("1777", cache, "47001:47001")
        support.expect(seen_copying(world), {"bash@h1"}, "a sticky folder of somebody else's")
        changed("0775", cache, "47000:47000")
        support.expect(seen_copying(world), {"bash@h1"}, "a group that nobody knows")
        write(world, "h1", "/tmp/group", "root:x:0:\nbash:x:47000:\n")
        world.run("h1", "mount", "-n", "--bind", "/tmp/group", "/etc/group")
        support.expect(seen_copying(world), set(), "this user's own group")
        # Its access list lets user 47001 write: version 2; owner, that user, group and mask may do all, others nothing.
        entries = (1, 7, 2**32 - 1), (2, 7, 47001), (4, 7, 2**32 - 1), (16, 7, 2**32 - 1), (32, 0, 2**32 - 1)
        os.setxattr(world.path("h1", cache), "system.posix_acl_access", struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in entries))
        support.expect(seen_copying(world), {"bash@h1"}, "an access list")
        os.removexattr(world.path("h1", cache), "system.posix_acl_access")
        world.path("h1", "/tmp/group").write_text("bash:x:47000:dash\n")
        support.expect(seen_copying(world), {"bash@h1"}, "with a second member")


def what_another_puts_where_a_folder_was_missing_is_not_used():
    """The second look of a script at a folder comes after somebody else has made what was missing at the first."""
    scratch, race = "/tmp/scratch", "/tmp/race"
    with hosts.Hosts(1) as world:
        expect_started(start(world, "bash@h1"), "bash@h1")
        support.wait_for(lambda: agents(world, "h1") == 0)
        name = copies(world, "h1")[0].split("/")[-2]
        folder = f"{scratch}/hvdrun/{name}"
        world.run("h1", "sh", "-c", f"mkdir -m 1777 {scratch}; mkdir -m 777 {race}; mkfifo -m 666 {race}/ask {race}/answer; "
                                    f"rm -r {hosts.home('bash', '.cache')}; ln -s {scratch} {hosts.home('bash', '.cache')}; cp $(command -v ls) {race}/ls")
        write(world, "h1", f"{race}/looks", f"#!/bin/sh\nmkdir {race}/asked 2>/dev/null && echo >{race}/ask && read x <{race}/answer\nexec {race}/ls \"$@\"\n")
        write(world, "h1", f"{race}/program", f"#!/bin/sh\ntrue >{race}/ran\n")
        world.run("h1", "sh", "-c", f"chmod 755 {race}/looks {race}/program; mount -n --bind {race}/looks $(command -v ls)")
        for planted in (f"cp {race}/program {folder}/hvdrun", "true"):
            stranger = subprocess.Popen(world.command("h1", "sh", "-c", f"read x <{race}/ask; mkdir -p {folder}; {planted}; chmod -R 777 {scratch}/hvdrun; "
                                                                        f"chown -R 47001 {scratch}/hvdrun; echo >{race}/answer"), start_new_session=True)
            try:
                support.expect(seen_copying(world), {"bash@h1"}, planted)
                support.expect(stranger.wait(timeout=20), 0)
            finally:
                stranger.kill()
                stranger.wait()
            assert not world.path("h1", f"{race}/ran").exists(), "what a stranger had put there was run"
            support.expect([path.name for path in world.path("h1", folder).iterdir()], [] if planted == "true" else ["hvdrun"])
            world.run("h1", "rm", "-r", f"{scratch}/hvdrun", f"{race}/asked")


def many_that_race_for_one_folder_all_start():
    with hosts.Hosts(1) as world:
        for _ in range(2):
            jobs = [subprocess.Popen(command(world, "bash@h1", "10.77.0.1"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
                    for _ in range(4)]
            for job in jobs:
                expect_started(Seen(job.communicate(timeout=60)[0]), "bash@h1", "10.77.0.1")
            support.expect(len(copies(world, "h1")), 2)
            world.run("h1", "rm", "-rf", hosts.home("bash", ".cache"), hosts.home("root", ".cache"))


# It may run on other hosts that share the folder, whose kernels would lose its pages.
def a_good_copy_is_not_replaced():
    sum_of_bytes = hashlib.sha256(pathlib.Path(support.options.hvdrun).read_bytes()).hexdigest()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        new, kept = pathlib.Path(folder, "new"), pathlib.Path(folder, "hvdrun")

        def install():
            shutil.copy(support.options.hvdrun, new)
            inode = new.stat().st_ino
            subprocess.run([new, "agent", "--install", sum_of_bytes, kept], stdin=subprocess.DEVNULL, check=True, timeout=60)
            support.expect((new.exists(), os.listdir(folder)), (False, ["hvdrun"]))
            return kept.stat().st_ino == inode

        support.expect([install(), install()], [True, False])
        kept.chmod(0o600)
        support.expect([install(), install()], [True, False])
        with kept.open("r+b") as file:
            file.write(b"no ELF file")
        support.expect([install(), install()], [True, False])


def a_host_of_another_kind_is_named():
    with hosts.Hosts(2) as world:
        foreign = world.files / "foreign"
        shutil.copy(support.options.hvdrun, foreign)
        with foreign.open("r+b") as file:
            file.seek(18)
            file.write(EM_AARCH64.to_bytes(2, "little"))
        machine = os.uname().machine
        seen = start(world, "h1", agent=f"{hosts.FILES}/foreign")
        expect_failure(seen, "h1", f'its processor is "{machine}" and this hvdrun is for aarch64')
        support.expect(seen.went_through("copying"), set())
        write(world, "h2", "/tmp/uname", "#!/bin/sh\necho aarch64\n")
        write(world, "h2", "/tmp/arch", "aarch64\n")
        world.run("h2", "sh", "-c", "chmod +x /tmp/uname; mount -n --bind /tmp/uname $(command -v uname); "
                  "[ ! -e /proc/sys/kernel/arch ] || mount -n --bind /tmp/arch /proc/sys/kernel/arch")
        expect_failure(start(world, "h2"), "h2", f'its processor is "aarch64" and this hvdrun is for {machine}')
        expect_failure(start(world, "h2", agent=f"{hosts.FILES}/foreign"), "h2", "arrived damaged, or cannot be run")
        support.expect(copies(world, "h2"), [])


def a_clock_that_is_off_is_told():
    with hosts.Hosts(1) as world:
        for ahead_s, clock in ((3610, r"60 min \d+ s behind"), (-3 * 366 * 86400, r"\d+ days ahead of")):
            seen = start(world, "h1", "--clock", str(ahead_s))
            words = seen.words.get("h1", "")
            assert re.fullmatch(f"agent: the clock of this host is {clock} hvdrun's, and the job's certificates .*; set it .*", words), seen.words
            support.expect(seen.ended, {"h1": "125"})
        # One that is a day ahead does no harm: what is missing next is the rest of the bootstrap.
        seen = start(world, "h1", "--clock", "-86400")
        support.expect(seen.words, {"h1": "agent: what hvdrun sent as its authority is no certificate"})


def what_ssh_cannot_reach_is_named_at_once():
    with hosts.Hosts(2) as world:
        expect_started(start(world, "h1"), "h1")  # keeps its key
        key = (world.files / "h2/host_key.pub").read_text().split()[1]
        write(world, "h0", hosts.home("root", ".ssh/known_hosts"), f"h1 ssh-ed25519 {key}\n")
        wanted = {"nohost": "its name is not known", "192.0.2.1": "no way to it", "stranger@h2": "none of your keys",
                  "secret@h2": "asks for a password", "h1": "its host key is not the one"}
        seen = start(world, *wanted)
        for host, pattern in wanted.items():
            expect_failure(seen, host, pattern)
            support.expect(seen.attempts(host), 1)
        seen = start(world, "h2", "--ssh", "-p2")
        expect_failure(seen, "h2", "nothing listens on its ssh port.*Connection refused")
        support.expect(seen.attempts("h2"), 1)
        for line, reason, words in (("Port", "does not understand its configuration", "config line 1: "), ("Compression perhaps", "does not understand its configuration", "line 1: "),
                                    ("BindAddress 203.0.113.1", "cannot begin a connection", "bind 203.0.113.1: ")):
            write(world, "h0", hosts.home("root", ".ssh/config"), line + "\n")
            seen = start(world, "h2")
            expect_failure(seen, "h2", f'{reason}.*the words were "[^;]*{words}')


NAME_SERVER = "import socket, time; one = socket.socket(type=socket.SOCK_DGRAM); one.bind(('', 53)); print(flush=True); time.sleep(1000)"
LISTENER = "import socket, time; listener = socket.create_server(('', 99)); print(flush=True); time.sleep(1000)"


def a_name_server_that_never_answers_is_named_in_time():
    with hosts.Hosts(1) as world:
        server = subprocess.Popen(world.command("h1", "python3", "-c", NAME_SERVER), stdout=subprocess.PIPE, start_new_session=True)
        with contextlib.closing(server.stdout):
            server.stdout.readline()
            for file, text in (("nsswitch.conf", "hosts: files dns\n"), ("resolv.conf", "nameserver 10.77.0.1\n")):
                write(world, "h0", f"/tmp/{file}", text)
                world.run("h0", "mount", "-n", "--bind", f"/tmp/{file}", f"/etc/{file}")
            seen = start(world, "far.test", "h1", limit_s=2)
        support.expect((list(seen.started), [words for name, words in seen.phases if name == "far.test"][-1]), (["h1"], "resolving 1"))
        expect_failure(seen, "far.test", r"its name was still being looked up after 2\.\d s: does the name server answer\?; try by hand: ssh ")


def an_sshd_that_never_answers_is_named_in_time():
    with hosts.Hosts(2) as world:
        listener = subprocess.Popen(world.command("h1", "python3", "-c", LISTENER), stdout=subprocess.PIPE, start_new_session=True)
        with contextlib.closing(listener.stdout):
            listener.stdout.readline()
            seen = start(world, "h1", "--ssh", "-p99", limit_s=1.5)
        expect_failure(seen, "h1", r"there was no answer for 1\.[5-9] s")
        seen = start(world, "h1", "h2", limit_s=10)  # nor does it hold others up
        expect_started(seen, "h1", "h2")
        world.cut("h1")
        seen = start(world, "h1", "h2", limit_s=2)
        expect_failure(seen, "h1", r"there was no answer for 2\.\d s")
        support.expect(list(seen.started), ["h2"])


def a_busy_sshd_is_tried_again():
    names = [f"{user}@{host}" for user in ("root", "bash", "dash", "csh") for host in ("h1", "10.77.0.1")]
    with hosts.Hosts(1, sshd_options={"h1": "MaxStartups 2:100:2"}) as world:
        seen = start(world, *names)
        expect_started(seen, *names)
        assert max(seen.attempts(name) for name in names) > 1, seen.phases


def an_ssh_that_still_connects_ends_with_the_launcher():
    def no_ssh():
        return "ssh" not in world.run("h0", "ps", "-eo", "comm").stdout.split()

    with hosts.Hosts(1) as world:
        world.cut("h1")
        job = subprocess.Popen(command(world, "h1"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
        support.wait_for(lambda: not no_ssh())
        os.kill(below(job, "e2e_start_remot"), signal.SIGKILL)
        support.wait_for(no_ssh, limit_s=1)
        job.communicate(timeout=20)


def below(job, program):
    return support.wait_for(lambda: next((pid for pid in support.descendants(job.pid) if support.read(pid, "comm") == program), None))


def nothing_starts(world):
    running = set(world.run("h1", "ps", "-eo", "comm").stdout.split()) - {"COMMAND", "sshd", "ps"}
    return not running and not [path for path in copies(world, "h1") if "/hvdrun." in path]


def a_copy_that_is_broken_off_leaves_nothing():
    with hosts.Hosts(1) as world:
        world.limit("h1", "50mbit")  # the copy takes long enough to be met
        mount(world, hosts.home("bash"), "ro")  # so the one for bash goes to /tmp
        for host in ("h1", "bash@h1"):
            for program in ("e2e_start_remot", "ssh"):
                job = subprocess.Popen(command(world, host), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                       start_new_session=True)
                support.wait_for(lambda: job.stdout.readline().split()[2] == "copying")
                if host != "h1":
                    support.wait_for(lambda: any("/tmp/hvdrun." in path for path in copies(world, "h1")))
                os.kill(below(job, program), signal.SIGKILL)
                support.wait_for(lambda: nothing_starts(world), limit_s=10)
                job.communicate(timeout=20)


def who_is_cut_off_before_its_bootstrap_ends_after_the_heal():
    """h0 forgets the connection while h1 is cut off: no word of its end ever reaches h1."""
    with hosts.Hosts(1) as world:
        job = subprocess.Popen(command(world, "h1"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        with contextlib.closing(job.stdout), contextlib.closing(job.stdin):
            support.wait_for(lambda: job.stdout.readline().startswith("all"))
            assert not nothing_starts(world)
            world.cut("h1")
            os.kill(below(job, "e2e_start_remot"), signal.SIGKILL)
            support.wait_for(lambda: "ssh" not in world.run("h0", "ps", "-eo", "comm").stdout.split())
            world.reset("h0")
            world.heal("h1")
            support.wait_for(lambda: nothing_starts(world), limit_s=30)
            job.wait(timeout=20)


def agents_end_with_whoever_keeps_them():
    def gone():
        return agents(world, "h1") == 0

    with hosts.Hosts(1) as world:
        for way in ("launcher", "connection"):
            with started(world, "root@h1", "bash@h1") as job:
                support.expect(agents(world, "h1"), 2)
                if way == "launcher":
                    os.kill(below(job, "e2e_start_remot"), signal.SIGKILL)
                else:
                    world.reset("h1")
                support.wait_for(gone, limit_s=3)


if __name__ == "__main__":
    support.parse_options("start_remote")
    cases = [every_shell_and_a_bare_host_get_the_agent_once, a_copy_that_is_damaged_is_replaced,
             programs_that_are_on_the_users_path_alone_will_do, folders_that_cannot_take_it_are_passed_over,
             a_home_that_others_may_change_is_not_used, what_another_puts_where_a_folder_was_missing_is_not_used, many_that_race_for_one_folder_all_start,
             a_good_copy_is_not_replaced, a_host_of_another_kind_is_named, a_clock_that_is_off_is_told, what_ssh_cannot_reach_is_named_at_once, an_sshd_that_never_answers_is_named_in_time,
             a_name_server_that_never_answers_is_named_in_time, a_busy_sshd_is_tried_again, an_ssh_that_still_connects_ends_with_the_launcher,
             a_copy_that_is_broken_off_leaves_nothing, who_is_cut_off_before_its_bootstrap_ends_after_the_heal,
             agents_end_with_whoever_keeps_them]
    support.main(*cases, why_not=hosts.why_not())
