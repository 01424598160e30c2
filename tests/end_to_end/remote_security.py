"""What SECURITY.md claims of a running job on other hosts: a secret variable is its ranks' alone, and who listens and talks where."""
import ipaddress
import json
import os
import pathlib
import signal
import subprocess
import sys

import support
from support import expect, wait_for

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import hosts

NAMES = ("h0", "h1", "h2")
PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run/home")
FLOOD_LINES, GROWTH_KIB = 40_000, 16 << 10  # a line has a thousand bytes
ENDED = ["hvdrun", "hvd-keeper", "hvd-agent", "e2e_worker"]

# All processes of a host, with what root sees of them. The secret comes on standard input: it must not be on a command line.
AUDIT = r"""
import ipaddress, json, os, sys
secret = sys.stdin.readline().strip().encode()

def address(text):
    host, port = text.split(":")
    words = bytes.fromhex(host)
    one = ipaddress.ip_address(b"".join(words[i:i + 4][::-1] for i in range(0, len(words), 4)))
    return str(getattr(one, "ipv4_mapped", None) or one), int(port, 16)

sockets = {}
for kind in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
    if os.path.exists("/proc/net/" + kind):
        for row in open("/proc/net/" + kind).read().splitlines()[1:]:
            words = row.split()
            sockets["socket:[" + words[9] + "]"] = (kind, address(words[1]), address(words[2]), words[3])

def look(pid):
    def read(name):
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    open_files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    return {"name": read("comm").decode().strip(), "on its command line": secret in read("cmdline"),
            "in its environment": secret in read("environ"),
            "core": next(line.split()[4] for line in read("limits").decode().splitlines() if line.startswith("Max core file size")),
            "sockets": [sockets[one] for one in open_files if one in sockets]}

found = []
for pid in os.listdir("/proc"):
    if pid.isdigit() and int(pid) != os.getpid():
        try:
            found.append(look(pid))
        except OSError:
            pass  # it ended meanwhile
print(json.dumps(found))
"""

# Files below places that hold the secret, but for those below folders to be passed over.
SEARCH = r"""
import json, os, stat, sys
secret = sys.stdin.readline().strip().encode()
places, passed_over = json.loads(sys.argv[1])

def holds_it(path):
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        with open(path, "rb") as file:
            end = b""
            while piece := file.read(1 << 20):
                if secret in end + piece:
                    return True
                end = piece[-len(secret):]
    except FileNotFoundError:
        pass  # it was removed meanwhile
    return False

found = []
for place in places:
    for folder, below, files in os.walk(place):
        below[:] = [name for name in below if os.path.join(folder, name) not in passed_over]
        found += [path for path in (os.path.join(folder, name) for name in files) if holds_it(path)]
print(json.dumps(found))
"""

world = None


class Job:
    """Ranks of two hosts that sum without end, and a secret that comes on no command line but, by `begin`, on hvdrun's: else in its environment."""

    def __init__(self, *words, secret=None, going=True, begin='export CANARY; exec "$0"'):
        self.secret = secret or os.urandom(16).hex()
        command = ["sh", "-c", f'read CANARY; {begin} "$@"', support.options.hvdrun, "-np", "4", "-H", "h1:2,h2:2", *words,
                   "--", support.options.worker, "loop", "0"]
        self.process = subprocess.Popen(world.command("h0", *command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.process.stdin.write(f"{self.secret}\n".encode())
        self.process.stdin.flush()
        for _ in range(4 * going):
            assert b"going" in self.process.stdout.readline()

    def seen(self):
        """By host: what is known of its processes."""
        return {name: json.loads(world.run(name, "python3", "-c", AUDIT, input=f"{self.secret}\n", stdin=None).stdout) for name in NAMES}

    def end(self):
        launcher = next(p for p in [self.process.pid] + support.descendants(self.process.pid) if support.read(p, "comm") == "hvdrun")
        os.kill(launcher, signal.SIGTERM)
        return b"".join(self.process.communicate(timeout=30)).decode()


def with_name(processes, name):
    return [one for one in processes if one["name"] == name]


def files_with(secret, passed_over=None):
    """Paths of files that hold it, on all hosts. The tree that is tested and its build lie below /tmp maybe, and no job writes to them."""
    trees = [hosts.TREE, str(pathlib.Path(support.options.hvdrun).resolve().parents[1])] if passed_over is None else passed_over
    words = json.dumps([PLACES, trees])
    return [f"{host}:{path}" for host in NAMES
            for path in json.loads(world.run(host, "python3", "-c", SEARCH, words, input=f"{secret}\n", stdin=None).stdout)]


def a_secret_in_a_file_is_found_but_in_folders_that_are_passed_over():
    secret = os.urandom(16).hex()
    for path in ("/tmp/kept/tree/one", "/tmp/tree/two", "/dev/shm/three"):
        file = world.path("h1", path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes((1 << 20) - 5) + secret.encode())  # across what is read at once
    expect(sorted(files_with(secret, ["/tmp/tree"])), ["h1:/dev/shm/three", "h1:/tmp/kept/tree/one"])
    expect(len(files_with(secret, [])), 3)


def a_secret_variable_is_its_ranks_and_nobody_elses():
    job = Job("--verbose", "--log-level", "trace")
    seen = job.seen()
    for host, ranks in (("h0", 0), ("h1", 2), ("h2", 2)):
        expect(len(with_name(seen[host], "e2e_worker")), ranks, seen[host])
        for one in seen[host]:
            expect(one["on its command line"], False, one)
            # hvdrun has it from its user, and so has the ssh that it starts here.
            has = one["name"] == "e2e_worker" or (host == "h0" and one["name"] in ("hvdrun", "ssh"))
            expect(one["in its environment"], has, one)
            if one["name"] in ("hvdrun", "hvd-keeper", "hvd-agent"):
                expect(one["core"], "1", one)
    expect(files_with(job.secret), [])
    for host in NAMES:
        assert job.secret not in (world.files / host / "sshd.log").read_text(), host
    said = job.end()
    assert job.secret not in said and "rank 0" in said, said


# Nobody looks before: there is a moment in which it stands on hvdrun's, as SECURITY.md says.
def a_secret_of_hvdruns_command_line_is_on_none_once_the_job_runs():
    job = Job(begin='exec "$0" -x "ONE=$CANARY" --env="OTHER=$CANARY" -x@0,3 "THIRD=$CANARY"')
    seen = job.seen()
    for host in NAMES:
        for one in seen[host]:
            expect((one["on its command line"], one["in its environment"]), (False, one["name"] == "e2e_worker"), one)
    expect([len(with_name(seen[host], "e2e_worker")) for host in NAMES], [0, 2, 2])
    assert job.secret not in job.end()


def audits_until(job, over):
    """What was seen of all hosts' processes, and of files with the secret, over and over until `over` holds of the last."""
    seen = []
    wait_for(lambda: seen.append((job.seen(), files_with(job.secret))) or over(seen[-1][0]), limit_s=60)
    return seen


def a_secret_of_a_file_or_a_variable_is_nowhere_while_the_job_starts():
    """Not even while the agents are sent: they get it over their own channel, once they are there."""
    for host in ("h1", "h2"):
        world.run(host, "rm", "-rf", hosts.home("root", ".cache/hvdrun"))
        world.limit(host, "100mbit")  # of forty megabytes
    secret = os.urandom(16).hex()
    kept, file = hosts.home("root", "kept"), hosts.home("root", "kept/job.env")
    world.run("h0", "mkdir", "-m", "700", kept)
    secrets = world.path("h0", file)
    secrets.write_text(f"FROM_FILE={secret}\n")
    job = Job("--env-file", file, "-x", "CANARY", "--verbose", "--log-level", "trace", secret=secret, going=False)
    seen = audits_until(job, lambda now: all(len(with_name(now[host], "e2e_worker")) == 2 for host in ("h1", "h2")))
    assert any(with_name(now["h0"], "ssh") and not with_name(now["h1"], "hvd-agent") for now, _ in seen), "not seen while it starts"
    for now, files in seen:
        expect(files, [f"h0:{file}"])
        for host in NAMES:
            for one in now[host]:
                expect(one["on its command line"], False, one)
                may = one["name"] == "e2e_worker" or (host == "h0" and one["name"] in ("sh", "hvdrun", "ssh"))
                assert may or not one["in its environment"], one
    said = job.end()
    assert secret not in said, said


def no_rank_and_nothing_before_it_has_a_terminal_there():
    """However much the user's configuration wants one, and hvdrun has one itself."""
    config = world.path("h0", hosts.home("root", ".ssh/config"))
    config.write_text("RequestTTY force\n")
    world.path("h1", hosts.home("root", ".bashrc")).write_text("tty >/tmp/tty.start; ps -eo tty= | sort -u >>/tmp/tty.start\n")
    script = "tty; (true </dev/tty) 2>/dev/null && echo has one; ps -eo tty= | sort -u"
    line = world.command("h0", "script", "-qec", f"{support.options.hvdrun} -H h1:1 --no-tag-output -- sh -c '{script}'", "/dev/null")
    seen = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    lines = [line for line in seen.stdout.decode().splitlines() if not line.startswith("hvdrun: ")]
    expect((seen.returncode, lines), (0, ["not a tty", "?"]), seen)
    expect(world.path("h1", "/tmp/tty.start").read_text(), "not a tty\n?\n")


def an_agent_of_another_build_is_refused_with_both_named():
    """It lies under this one's name and is as long, as nothing but a meddler or a failing disk leaves it, and it speaks."""
    words = ["-H", "h1:1", "--wdir", "/", "--", "true"]

    def run():
        return subprocess.run(world.command("h0", support.options.hvdrun, *words), stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)

    expect(run().returncode, 0)
    kept, = world.path("h1", hosts.home("root", ".cache/hvdrun")).glob("*/hvdrun")
    build = kept.parent.name.split("_")[0]
    whole = kept.read_bytes()
    other = bytes.fromhex(build)[::-1]
    expect(whole.count(bytes.fromhex(build)), 1)
    kept.write_bytes(whole.replace(bytes.fromhex(build), other))
    seen = run()
    expect((seen.returncode, seen.stdout), (125, b""), seen.stderr)
    said = seen.stderr.decode().splitlines()[-1]
    assert all(word in said for word in ("no agent on h1: its agent is of hvdrun ", other.hex(), " and this is hvdrun ", build, f"remove ~/.cache/hvdrun/{kept.parent.name} there")), said
    wait_for(lambda: not [one for one in world.run("h1", "ps", "-eo", "comm=").stdout.split() if one in ENDED])
    world.run("h1", "rm", "-r", hosts.home("root", f".cache/hvdrun/{kept.parent.name}"))  # as it says
    expect(run().returncode, 0)


def who_is_where(address):
    return next((name for name in NAMES if address in (world.address(name), f"fd77::{world.address(name).split('.')[-1]}")), address)


def talks(process):
    """Its sockets: where it listens, by host, and with whom it is connected: (own host, own port, other host, other port)."""
    listens, connected = [], []
    for kind, own, other, state in process["sockets"]:
        assert kind in ("tcp", "tcp6"), process
        for one in (own, other):
            assert one[0] in ("0.0.0.0", "::") or not ipaddress.ip_address(one[0]).is_loopback, process
        if state == "0A":
            listens.append((who_is_where(own[0]), own[1]))
        else:
            connected.append((who_is_where(own[0]), own[1], who_is_where(other[0]), other[1]))
    return listens, connected


def every_process_listens_and_talks_only_where_it_has_to():
    job = Job()
    seen = job.seen()
    launcher, = with_name(seen["h0"], "hvdrun")
    doors, ways_in = talks(launcher)
    expect((doors, sorted(other for _, _, other, _ in ways_in)), ([], ["h1", "h2"]), launcher)
    expect(sorted(other for one in with_name(seen["h0"], "ssh") for _, _, other, port in talks(one)[1] if port == 22), ["h1", "h2"])
    links = set()
    for host in ("h1", "h2"):
        keeper, = with_name(seen[host], "hvd-keeper")
        expect(keeper["sockets"], [])
        agent, = with_name(seen[host], "hvd-agent")
        door, way = talks(agent)
        expect([name for name, _ in door], [host], agent)
        expect([(own, other, (other, port, own, own_port) in ways_in) for own, own_port, other, port in way], [(host, "h0", True)], agent)
        for rank in with_name(seen[host], "e2e_worker"):
            listens, connected = talks(rank)
            expect(listens, [], rank)
            for own, own_port, other, port in connected:
                expect((own, other), (host, "h2" if host == "h1" else "h1"), rank)
                links.add((own, own_port, other, port))
    # Each link has its other end in a rank too: nobody else talks to them.
    assert len(links) >= 4 and all((other, port, own, own_port) in links for own, own_port, other, port in links), links
    job.end()
    for host in NAMES:
        wait_for(lambda: not [one for one in world.run(host, "ps", "-eo", "comm=").stdout.split() if one in ENDED])


def until_all_hosts_are_there_nobody_listens_but_on_the_jobs_addresses():
    """One host is held up by its start files: the doors for agents, and the first agent's for others, are open meanwhile."""
    gate = world.path("h2", "/tmp/gate")
    os.mkfifo(gate)
    world.path("h2", hosts.home("root", ".bashrc")).write_text("read -r word </tmp/gate\n")
    job = Job(going=False)

    def first_is_there():
        seen = job.seen()  # of one host after the other
        is_open = any(talks(one)[0] for one in with_name(seen["h0"], "hvdrun"))
        return is_open and any(talks(agent)[1] for agent in with_name(seen["h1"], "hvd-agent")) and seen

    seen = wait_for(first_is_there)
    launcher, = with_name(seen["h0"], "hvdrun")
    expect({host for host, _ in talks(launcher)[0]}, {"h0"}, launcher)
    for one in seen["h1"]:
        listens, connected = talks(one) if one["name"].startswith("hvd-") else ([], [])
        assert {host for host, _ in listens} <= {"h1"} and {other for _, _, other, _ in connected} <= {"h0"}, one
    gate.write_text("open\n")
    for _ in range(4):
        assert b"going" in job.process.stdout.readline()
    job.end()


def memory_kib(pid, name):
    return int(next(line.split()[1] for line in support.read(pid, "status").splitlines() if line.startswith(f"{name}:")))


def what_a_host_says_without_end_waits_there_for_the_reader():
    """What a start file left behind floods ssh's standard error, and nobody reads hvdrun's."""
    line = "x" * 1000
    world.path("h1", hosts.home("root", ".bashrc")).write_text(
        f"(until [ -e /tmp/flood ]; do sleep 0.05; done; yes {line} | head -n {FLOOD_LINES}) 1>&2 &\n")
    job = subprocess.Popen(world.command("h0", support.options.hvdrun, "-H", "h1", "--", "sh", "-c", "echo going; until [ -e /tmp/end ]; do sleep 0.05; done"),
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert b"going" in job.stdout.readline()
    launcher = next(p for p in [job.pid] + support.descendants(job.pid) if support.read(p, "comm") == "hvdrun")
    before = memory_kib(launcher, "VmRSS")
    pathlib.Path(f"/proc/{launcher}/clear_refs").write_text("5")  # what it has needed so far is no peak any more
    world.path("h1", "/tmp/flood").touch()
    # Who looks too early sees less growth.
    support.wait_until_still(lambda: world.run("h1", "sh", "-c", "grep wchar /proc/$(pidof yes)/io || echo ended").stdout)
    for _ in range(FLOOD_LINES):
        expect(job.stderr.readline(), f"hvdrun: h1: {line}\n".encode())
    grown = memory_kib(launcher, "VmHWM") - before
    world.path("h1", "/tmp/end").touch()
    _, said = job.communicate(timeout=60)
    expect((job.returncode, said, grown < GROWTH_KIB), (0, b"", True), f"{grown} KiB more")


def what_a_host_says_moves_no_cursor():
    world.path("h1", hosts.home("root", ".bashrc")).write_text(
        "(until [ -e /tmp/speak ]; do sleep 0.05; done; printf 'a\\t\\033[2J\\302\\233b \\303\\244\\n'; touch /tmp/end) 1>&2 &\n")
    job = subprocess.Popen(world.command("h0", support.options.hvdrun, "-H", "h1", "--", "sh", "-c", "echo going; until [ -e /tmp/end ]; do sleep 0.05; done"),
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert b"going" in job.stdout.readline()
    world.path("h1", "/tmp/speak").touch()
    _, said = job.communicate(timeout=60)
    expect((job.returncode, said.decode()), (0, "hvdrun: h1: a ?[2J?b ä\n"))


# Around ssh: once h1's agent is answered, a frame of its making; h2 never comes.
EARLY = r"""#!%s
import os, struct, subprocess, sys
magic, kind, words = b"\x7fhvdrun-frames\x01\n", int(open("/tmp/kind").read()), b"early"
if "h2" in sys.argv:
    os.execvp("tail", ["tail", "-f", "/dev/null"])
there = subprocess.Popen(["ssh", *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
said = b""
while magic not in said or len(said) < said.index(magic) + 40 + struct.unpack_from("<I", said, said.index(magic) + 16)[0]:
    piece = there.stdout.read(65536)
    if not piece:
        break
    said += piece
os.write(1, said)
answer = b""
while magic not in answer and (piece := os.read(0, 65536)):
    answer += piece
there.stdin.write(answer)
os.write(1, struct.pack("<IBBHiIq", len(words), kind, 1, 0, 0, 0, 1) + words)
while piece := os.read(0, 65536):
    there.stdin.write(piece)
there.stdin.close()
sys.exit(there.wait())
"""


# How many ranks there are is known when all hosts are there: until then a rank's output has no place.
def what_a_host_says_of_ranks_that_nobody_started_ends_the_job():
    def run(*words):
        return subprocess.run(world.command("h0", support.options.hvdrun, *words, "--", "true"), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)

    expect(run("-H", "h1").returncode, 0)  # its key is known then
    wrapper = world.path("h0", "/tmp/early")
    wrapper.write_text(EARLY % sys.executable)
    wrapper.chmod(0o755)
    for kind in (4, 9):  # output; the end of a rank's own words
        world.path("h0", "/tmp/kind").write_text(str(kind))
        seen = run("-H", "h1,h2", "--ssh-command", "/tmp/early")
        expect((seen.returncode, seen.stdout), (125, b""), seen.stderr)
        assert b"the agent on h1 sent what cannot be read: a frame from before any rank was started" in seen.stderr, seen.stderr


support.parse_options("worker")
support.main(*map(hosts.on_hosts, [a_secret_in_a_file_is_found_but_in_folders_that_are_passed_over, a_secret_variable_is_its_ranks_and_nobody_elses, a_secret_of_hvdruns_command_line_is_on_none_once_the_job_runs,
                                 a_secret_of_a_file_or_a_variable_is_nowhere_while_the_job_starts,
                                 no_rank_and_nothing_before_it_has_a_terminal_there, an_agent_of_another_build_is_refused_with_both_named, every_process_listens_and_talks_only_where_it_has_to,
                                 until_all_hosts_are_there_nobody_listens_but_on_the_jobs_addresses,
                                 what_a_host_says_without_end_waits_there_for_the_reader, what_a_host_says_moves_no_cursor,
                                 what_a_host_says_of_ranks_that_nobody_started_ends_the_job]),
             why_not=hosts.why_not())
