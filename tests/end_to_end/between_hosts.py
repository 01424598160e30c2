"""What agents do for ranks of several hosts, without an engine: links, and who gets none; deaths; the Store; who is to blame."""
import json
import os
import pathlib
import re
import signal
import socket
import struct
import sys
import tempfile

import support
from support import children, descendants, expect, read, run, start

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import hosts

SHAPES = ((2, 1), (1, 2), (2, 2), (4, 2))


def on(count, slots):
    return ["--pretend-hosts", f"{count}x{slots}", "--no-tag-output"]


def worker(what, rank=0, slots=2):
    return ["--", support.options.worker, what, str(rank), str(slots)]


def tcp_table():
    """Rows of /proc/net/tcp: (local address, remote address, state, inode), addresses as (text, port)."""
    def address(text):
        host, port = text.split(":")
        return socket.inet_ntoa(struct.pack("<I", int(host, 16))), int(port, 16)
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.read().splitlines()[1:]]
    return [(address(row[1]), address(row[2]), row[3], row[9]) for row in rows]


def listeners(job):
    """Where processes of the job listen: {name of the process: addresses}."""
    found = {}
    for pid in [job.pid] + descendants(job.pid):
        sockets = support.sockets(pid)
        for local, _, state, inode in tcp_table():
            if state == "0A" and inode in sockets:
                found.setdefault(read(pid, "comm"), []).append(local)
    return found


def links_carry_bytes_between_all_hosts():
    for count, slots in SHAPES:
        seen = run(*on(count, slots), *worker("greet", slots=slots), np=count * slots)
        expect(seen.returncode, 0, seen.stderr)
        wanted = []
        for rank in range(count * slots):
            others = "".join(f" {other}" for other in range(count * slots) if other // slots != rank // slots)
            wanted.append(f"heard{others}, and{others}")
        expect(sorted(seen.stdout.decode().splitlines()), sorted(wanted))


def only_agents_of_several_hosts_listen_and_on_one_address():
    for count in (1, 2):
        job = start(*on(count, 2), *worker("wait"), np=2 * count)
        for _ in range(2 * count):
            expect(job.stdout.readline(), b"waiting\n")
        seen = listeners(job)
        expect([host for address in seen.values() for host, _ in address], ["127.0.0.1"] * count * (count > 1))
        expect(list(seen), ["hvd-agent"] * (count > 1))
        job.terminate()
        job.communicate(timeout=30)


def a_stranger_gets_no_link_and_disturbs_nobody():
    job = start(*on(2, 1), *worker("wait", slots=1))
    for _ in range(2):
        expect(job.stdout.readline(), b"waiting\n")
    places = listeners(job)["hvd-agent"]
    # What a caller says first: magic and version, epoch 1, link 3 from rank 0 to rank 1, a nonce; then no proof.
    call = b"hvdlink\x02" + struct.pack("<IIii", 1, 3, 0, 1) + bytes(32)
    for place in places:
        for words in (b"GET / HTTP/1.1\r\n" + bytes(100), call + bytes(32)):
            with socket.create_connection(place, timeout=20) as stranger:
                stranger.sendall(words)
                answer = b""
                try:
                    while part := stranger.recv(4096):
                        answer += part
                except ConnectionResetError:
                    pass
                assert len(answer) in (0, 64), answer  # a nonce and a proof of its own, at most: nothing to begin with
    expect(job.poll(), None)
    job.terminate()
    _, err = job.communicate(timeout=30)
    assert re.search(rb"hvdrun: pretended[12]: links: refused 127\.0\.0\.1: ", err), err


def the_store_is_one_for_all_hosts():
    for count, slots in SHAPES:
        for rank in {0, count * slots - 1}:
            seen = run(*on(count, slots), *worker("store", rank, slots), np=count * slots)
            expect((seen.returncode, seen.stdout.split()), (0, [str(rank).encode()] * count * slots), seen.stderr)


def a_wait_in_the_store_says_who_of_all_hosts_was_not_there():
    seen = run(*on(2, 2), *worker("ask", 3), np=4)
    expect(seen.returncode, 4, seen.stderr)
    assert re.search(rb'rank [012] waited 1\d\d ms for "port" in the store; not there since: rank 3 \(was never here\)\n',
                     seen.stderr), seen.stderr


def last_lines(seen):
    return [line.decode() for line in seen.stderr.splitlines()[-2:]]


def host_of(rank, slots):
    return f"pretended{rank // slots + 1}"


def a_death_on_any_host_ends_the_waits_on_all():
    for count, slots in ((2, 1), (2, 2), (4, 2)):
        for rank in range(0, count * slots, max(1, slots - 1)):
            seen = run(*on(count, slots), *worker("die", rank, slots), np=count * slots)
            expect(seen.returncode, 128 + signal.SIGKILL, seen.stderr)
            lines = seen.stdout.decode().splitlines()
            expect(sorted(lines)[count * slots - slots:], [f"local rank {rank % slots} died"] * (slots - 1), seen.stderr)
            for line in sorted(lines)[:count * slots - slots]:
                after = re.fullmatch(rf"elsewhere: rank {rank} on {host_of(rank, slots)} died; after (\d+) ms", line)
                assert after and int(after.group(1)) < 1000, (line, seen.stderr)
            wanted = rf"hvdrun: first failure: rank {rank} \(pid \d+\) on {host_of(rank, slots)} was killed by SIGKILL after [0-9.]+ s"
            assert re.fullmatch(wanted, last_lines(seen)[-1]), seen.stderr


def a_lost_agent_ends_the_waits_on_all_hosts():
    for host in (0, 1):
        job = start(*on(2, 2), *worker("wait"), np=4)
        for _ in range(4):
            expect(job.stdout.readline(), b"waiting\n")
        keepers = [p for p in children(job.pid) if read(p, "comm") == "hvd-keeper"]
        agents = [p for keeper in keepers for p in children(keeper)]
        os.kill(agents[host], signal.SIGKILL)
        out, err = job.communicate(timeout=30)
        expect(job.returncode, 125, err)
        expect(out.decode().splitlines(), [f"elsewhere: the agent on pretended{host + 1} was lost"] * 2, err)


def who_ends_while_ranks_of_other_hosts_need_it_is_named():
    for slots in (1, 2):
        for rank in (0, slots):
            seen = run(*on(2, slots), *worker("desert", rank, slots), np=2 * slots)
            expect(seen.returncode, 1, seen.stderr)
            why, last = last_lines(seen)
            expect(why, f"hvdrun: rank {rank} ended (exit status 0) while other ranks needed it for a collective")
            assert re.fullmatch(rf"hvdrun: first failure: rank {rank} \(pid \d+\) on {host_of(rank, slots)} exited with code 0 after [0-9.]+ s",
                                last), last


def who_was_waited_for_on_another_host_is_named():
    for rank in (0, 3):
        waited = 0 if rank else 2
        with tempfile.TemporaryDirectory() as folder:
            seen = run("--result-file", f"{folder}/result", *on(2, 2), *worker("blame", rank), np=4)
            with open(f"{folder}/result") as file:
                result = json.load(file)
        expect(seen.returncode, 3, seen.stderr)
        why, last = last_lines(seen)
        expect(why, f"hvdrun: rank {waited} waited for rank {rank} in vain")
        assert f"first failure: rank {rank} (pid " in last and f" on {host_of(rank, 2)} was ended by hvdrun" in last, last
        expect((result["first_failure"]["rank"], result["first_failure"]["host"]), (rank, host_of(rank, 2)), result)
        words = [f"elsewhere: rank {waited} waited for rank {rank} in vain"]  # the sleeper says nothing
        expect([line for line in seen.stdout.decode().splitlines() if line.startswith("elsewhere")], words, seen.stderr)


def over_ssh_it_is_the_same():
    if hosts.why_not():
        return "left out: " + hosts.why_not()
    with hosts.Hosts(2) as world:
        def on_hosts(places, what, rank):
            command = world.command("h0", support.options.hvdrun, "-np", "4", "-H", places, "--no-tag-output", *worker(what, rank))
            return support.subprocess.run(command, stdin=support.subprocess.DEVNULL, capture_output=True, timeout=60)
        for places in ("h1:2,h2:2", "h2:2,localhost:2"):
            names = [place.split(":")[0] for place in places.split(",")]
            seen = on_hosts(places, "greet", 0)
            expect((seen.returncode, sorted(seen.stdout.decode().splitlines())),
                   (0, ["heard 0 1, and 0 1"] * 2 + ["heard 2 3, and 2 3"] * 2), seen.stderr)
            seen = on_hosts(places, "store", 3)
            expect((seen.returncode, seen.stdout.split()), (0, [b"3"] * 4), seen.stderr)
            for rank in (0, 3):
                seen = on_hosts(places, "die", rank)
                expect(seen.returncode, 128 + signal.SIGKILL, seen.stderr)
                for line in sorted(seen.stdout.decode().splitlines())[:2]:
                    after = re.fullmatch(rf"elsewhere: rank {rank} on {names[rank // 2]} died; after (\d+) ms", line)
                    assert after and int(after.group(1)) < 1000, (line, seen.stderr)
                last = last_lines(seen)[-1]
                assert re.search(rf"first failure: rank {rank} \(pid \d+\) on {names[rank // 2]} was killed by SIGKILL", last), last
            seen = on_hosts(places, "desert", 3)
            assert re.search(rf"first failure: rank 3 \(pid \d+\) on {names[1]} exited with code 0", last_lines(seen)[-1]), seen.stderr


support.parse_options("worker")
cases = [links_carry_bytes_between_all_hosts, only_agents_of_several_hosts_listen_and_on_one_address,
         a_stranger_gets_no_link_and_disturbs_nobody, the_store_is_one_for_all_hosts,
         a_wait_in_the_store_says_who_of_all_hosts_was_not_there, a_death_on_any_host_ends_the_waits_on_all,
         a_lost_agent_ends_the_waits_on_all_hosts, who_ends_while_ranks_of_other_hosts_need_it_is_named,
         who_was_waited_for_on_another_host_is_named]
if not support.options.sanitizers:  # with them hvdrun is no single file that could be sent to a host
    cases.append(over_ssh_it_is_the_same)
support.main(*cases)
