"""What SECURITY.md claims of a running job: nothing listens, nobody else gets in, memory has no name and keeps its size."""
import fcntl
import os
import re
import socket
import struct
import subprocess

import support
from support import agent_of, expect, keeper_of, start, wait_for, wait_for_ranks

F_GET_SEALS, SHRINK, GROW, SEAL = 1034, 2, 4, 1
CLAIM = struct.pack("<IHHIIqII", 0x68766441, 2, 0, 0, 0, 0, 0, 0)  # of slot 0; agent_socket.cc has the layout
REFUSED = 10
REFUSALS = 15_000  # said, they are more than the 1 MiB that waits for a reader


def looping(np=2):
    """A job whose ranks are in a collective: (job, ranks)."""
    job = start("--", support.options.worker, "loop", "0", np=np)
    ranks = wait_for_ranks(job, np)
    for _ in range(np):
        assert b"going" in job.stdout.readline()
    return job, ranks


def end(job):
    job.terminate()
    _, err = job.communicate(timeout=30)
    return err.decode()


def descriptors(pid):
    """(path that opens it again, what it is)"""
    folder = f"/proc/{pid}/fd"
    found = []
    for name in os.listdir(folder):
        try:
            found.append((f"{folder}/{name}", os.readlink(f"{folder}/{name}")))
        except OSError:
            pass
    return found


def network_sockets(pids):
    """Those of these processes that the kernel lists as of a network."""
    mine = {re.fullmatch(r"socket:\[(\d+)\]", what).group(1) for pid in pids for _, what in descriptors(pid)
            if what.startswith("socket:")}
    listed = []
    for kind in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        if not os.path.exists(f"/proc/net/{kind}"):
            continue
        with open(f"/proc/net/{kind}") as file:
            listed += [line for line in file.read().splitlines()[1:] if line.split()[9] in mine]
    return listed


def nothing_listens_on_a_network_address():
    with socket.socket() as control:  # else a look that finds nothing would pass
        control.bind(("127.0.0.1", 0))
        control.listen()
        expect(len(network_sockets([os.getpid()])), 1)
    job, ranks = looping()
    expect(network_sockets([job.pid, keeper_of(job.pid), agent_of(job.pid)] + ranks), [])
    end(job)


def shared_memory_has_no_name_and_keeps_its_size():
    job, ranks = looping()
    for pid in [agent_of(job.pid)] + ranks:
        with open(f"/proc/{pid}/maps") as file:
            maps = file.read()
        assert "/memfd:hvd-" in maps and "/dev/shm" not in maps and "/SYSV" not in maps, maps
        memories = [path for path, what in descriptors(pid) if what.startswith("/memfd:hvd-")]
        assert memories or pid in ranks, "the agent holds none"
        for path in memories:
            with open(path, "rb") as memory:
                expect(fcntl.fcntl(memory, F_GET_SEALS) & (SHRINK | GROW | SEAL), SHRINK | GROW | SEAL)
    end(job)


def address_of(rank):
    name, slot = re.search(r"HVD_AGENT=([0-9a-f]{32}):(\d+)", support.read(rank, "environ")).groups()
    return b"\0hvd-" + name.encode()


def claim(address):
    """What the agent answers to a claim: (kind of message, text)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(20)
        peer.connect(address)
        try:
            peer.send(CLAIM)
        except BrokenPipeError:
            pass  # refused before it was read
        try:
            answer = peer.recv(1 << 16)
        except ConnectionResetError:
            answer = peer.recv(1 << 16)  # said before the reset, for which our unread claim is the reason
        return struct.unpack_from("<H", answer, 6)[0], answer[32:].decode()


def who_is_not_of_the_job_is_refused():
    job, ranks = looping(1)
    other, others = looping(1)
    assert address_of(ranks[0]) != address_of(others[0]), "two jobs have one address"
    kind, text = claim(address_of(ranks[0]))
    expect(kind, REFUSED, text)
    assert f"process {os.getpid()} " in text and "this job did not start it; start it with hvdrun" in text, text
    expect(job.poll(), None, "the job must go on")
    end(other)
    assert "a worker's socket is closed: process" in end(job)


def another_user_is_refused_and_crowds_nobody_out():
    if os.geteuid() != 0:
        return "left out: only root can be another user"
    nobody = 65534
    job = start("--", "bash", "-c", f"read line; exec '{support.options.worker}' epochs 0", np=1, stdin=subprocess.PIPE)
    ranks = wait_for_ranks(job, 1)
    address = address_of(wait_for(lambda: b"HVD_AGENT" in open(f"/proc/{ranks[0]}/environ", "rb").read() and ranks[0]))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(nobody)
        text = claim(address)[1]
        crowd = []
        for _ in range(300):
            crowd.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            crowd[-1].connect(address)
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    expect(os.waitpid(child, 0)[1], 0)
    text = os.read(reading, 1000).decode()
    os.close(reading)
    assert f"runs as user {nobody}" in text, text
    _, err = job.communicate(b"\n", timeout=30)
    expect(job.returncode, 0, err)
    assert b"user" not in err, err  # one word a stranger could have said a thousand times


def words_that_an_agent_says_without_end_are_counted_while_nobody_reads_them():
    job, ranks = looping(1)
    address = address_of(ranks[0])
    for _ in range(REFUSALS):  # a word of the agent's each, of about a hundred bytes
        claim(address)
    said = end(job)
    lines = said.count("a worker's socket is closed: process")
    dropped = sum(map(int, re.findall(r"^hvdrun: (\d+) lines of agents or of the log were dropped: they came faster", said, re.MULTILINE)))
    expect((lines + dropped, dropped > 0), (REFUSALS, True), f"{lines} were said, {dropped} were dropped")


support.parse_options("worker")
support.main(nothing_listens_on_a_network_address, shared_memory_has_no_name_and_keeps_its_size,
             who_is_not_of_the_job_is_refused, another_user_is_refused_and_crowds_nobody_out,
             words_that_an_agent_says_without_end_are_counted_while_nobody_reads_them)
