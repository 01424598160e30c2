"""How hosts with several networks reach each other: what is proven counts, whatever names, speeds and name servers say."""
import functools
import os
import pathlib
import re
import signal
import subprocess
import sys

import support
from support import expect

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import hosts

PAIR = ["-H", "10.77.0.1:1,10.77.0.2:1"]  # by address: of a name ssh may take either
TRIO = ["-H", "10.77.0.1:1,localhost:1,10.77.0.2:1"]
LONELY = ["-x", "OMP_NUM_THREADS=1"]  # else hvdrun says which it chose
WHERE = ["--no-tag-output", "--", "sh", "-c", "echo $RANK $MASTER_ADDR $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME $NCCL_SOCKET_FAMILY"]

# A bridge says of its speed that of its fastest port: a port to this process, until its input ends. An interface that is put
# upon it passes for a card of that speed, as a bridge does not.
BRIDGE_PORT = """import array, fcntl, os, stat, struct, subprocess, socket, sys, tempfile
bridge, speed = sys.argv[1], int(sys.argv[2])
name = f"{bridge}p".encode()
with tempfile.TemporaryDirectory() as folder:  # not every /dev has it
    os.mknod(f"{folder}/tun", stat.S_IFCHR | 0o600, os.makedev(10, 200))
    tap = os.open(f"{folder}/tun", os.O_RDWR)
fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH22x", name, 0x1002))  # TUNSETIFF: IFF_TAP | IFF_NO_PI
words = array.array("B", bytes(44))
request = struct.pack("16sQ16x", name, words.buffer_info()[0])
with socket.socket() as any_socket:
    for command in (1, 2):  # ETHTOOL_GSET, ETHTOOL_SSET
        struct.pack_into("I", words, 0, command)
        struct.pack_into("H", words, 12, speed & 0xFFFF)
        struct.pack_into("H", words, 28, speed >> 16)
        fcntl.ioctl(any_socket, 0x8946, request)  # SIOCETHTOOL
subprocess.run(["ip", "link", "set", name.decode(), "up", "master", bridge], check=True)
print("up", flush=True)
sys.stdin.read()"""

world = None
ports = []


def on_hosts(case):
    @functools.wraps(case)
    def with_hosts():
        global world
        with hosts.Hosts(2) as world:
            try:
                return case()
            finally:
                for port in ports:
                    port.communicate(timeout=30)
                ports.clear()
    return with_hosts


def run(*words, limit=60):
    seen = subprocess.run(world.command("h0", support.options.hvdrun, *words), stdin=subprocess.DEVNULL, capture_output=True, timeout=limit)
    # A busy machine takes so long over its first copy of hvdrun that it says how far it has come.
    seen.stderr = b"".join(line for line in seen.stderr.splitlines(keepends=True) if not line.startswith(b"hvdrun: waiting for "))
    return seen


def number(host):
    return world.address(host).split(".")[-1]


def add_addresses(host, name, *addresses):
    for address in addresses:
        world.run(host, "ip", "addr", "add", address, "dev", name, *(["nodad"] if ":" in address else []))


def add_bridge(host, name, *addresses, speed=None):
    """A network of the host's own, as container engines make them; it says that it has this speed, in Mbit/s."""
    world.run(host, "ip", "link", "add", name, "up", "type", "bridge")
    add_addresses(host, name, *addresses)
    if speed:
        port = subprocess.Popen(world.command(host, "python3", "-c", BRIDGE_PORT, name, str(speed)), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        ports.append(port)
        expect(port.stdout.readline(), b"up\n")


def add_card(host, name, *addresses, speed):
    """As add_bridge(), but for a card of that speed, below which is a bridge called NAMEb."""
    add_bridge(host, f"{name}b", speed=speed)
    world.run(host, "ip", "link", "add", "link", f"{name}b", "name", name, "up", "type", "macvlan", "mode", "bridge")
    add_addresses(host, name, *addresses)


def add_fast_network(speed=40_000, add=add_card, **names):
    """10.78.0.0/24, on each host on an interface of this name, a faster one than eth0."""
    world.add_network("br7")
    for host, name in names.items():
        add(host, name, f"10.78.0.{number(host)}/24", speed=speed)
        world.join(host, "wire7", "br7")
        world.run(host, "ip", "link", "set", "wire7", "master", name if add is add_bridge else f"{name}b")


def lines_of(seen, status=0):
    expect(seen.returncode, status, seen.stderr)
    return sorted(seen.stdout.decode().splitlines())


def where(why, *places):
    """The line that says where hosts reach each other; places are "NAME ADDRESS INTERFACE"."""
    first, *others = ("{} at {} ({})".format(*place.split()) for place in places)
    return f"hvdrun: other hosts reach {'; '.join([f'{first}, {why}', *others])}\n".encode()


BY_SSH = "where ssh reaches it"
USUAL_PAIR = where(BY_SSH, "10.77.0.1 10.77.0.1 eth0", "10.77.0.2 10.77.0.2 eth0")
USUAL_TRIO = where(BY_SSH, "10.77.0.1 10.77.0.1 eth0", "10.77.0.2 10.77.0.2 eth0").replace(b"\n", b"; localhost at 10.77.0.254 (eth0), where ssh leaves it\n")


def links_carry_bytes(*words):
    """Ranks of two hosts say what they heard from each other."""
    seen = run(*words, "--no-tag-output", "--", support.options.worker, "greet", "0", "1")
    expect(lines_of(seen), ["heard 0, and 0", "heard 1, and 1"], seen.stderr)
    return seen


def the_same_bridge_on_all_hosts_is_no_way_between_them():
    for host in ("h0", "h1", "h2"):  # each reaches it: the host's own agent answers there, at the same port even
        add_card(host, "docker0", "172.17.0.1/16", "fd17::1/64", speed=100_000)
    for more in ([], ["--port-range", "4100-4109"]):
        seen = run(*TRIO, *LONELY, *more, *WHERE)
        expect((lines_of(seen), seen.stderr), ([f"{rank} 10.77.0.1 eth0 =eth0" for rank in range(3)], USUAL_TRIO))
        expect(links_carry_bytes(*PAIR, *LONELY, *more).stderr, USUAL_PAIR)


def an_interface_that_leads_nowhere_is_not_taken():
    for host in ("h0", "h1", "h2"):  # a faster one, each on its own
        add_card(host, "wire0", f"10.79.0.{number(host)}/24", speed=100_000)
    seen = run(*TRIO, *LONELY, *WHERE)
    expect((lines_of(seen), seen.stderr), ([f"{rank} 10.77.0.1 eth0 =eth0" for rank in range(3)], USUAL_TRIO))


def a_name_that_means_loopback_does_not_matter():
    for host in ("h0", "h1", "h2"):
        table = world.path(host, "/tmp/hosts")
        table.write_text("127.0.0.1 localhost\n" + "".join(
            f"{'127.0.1.1' if name == host else world.address(name)} {name}\n" for name in ("h0", "h1", "h2")))
        world.run(host, "mount", "--bind", "/tmp/hosts", "/etc/hosts")
        expect(world.run(host, "getent", "ahostsv4", host).stdout.split()[0], "127.0.1.1")
    seen = run("-H", "h1:1,h0:1,h2:1", *LONELY, *WHERE)
    expect((lines_of(seen), seen.stderr), ([f"{rank} 10.77.0.1 eth0 =eth0" for rank in range(3)],
                                           b"hvdrun: other hosts reach h1 at 10.77.0.1 (eth0), where ssh reaches it; h2 at 10.77.0.2 (eth0); "
                                           b"h0 at 10.77.0.254 (eth0), where ssh leaves it\n"))
    links_carry_bytes("-H", "h0:1,h2:1", *LONELY)


def ipv6_alone_will_do():
    for host in ("h0", "h1", "h2"):
        world.run(host, "ip", "addr", "del", f"{world.address(host)}/24", "dev", "eth0")
    seen = run("-H", "h1:1,localhost:1,h2:1", *LONELY, *WHERE)
    expect((lines_of(seen), seen.stderr), ([f"{rank} fd77::1 eth0 =eth0 AF_INET6" for rank in range(3)],
                                           b"hvdrun: other hosts reach h1 at fd77::1 (eth0), where ssh reaches it; h2 at fd77::2 (eth0); "
                                           b"localhost at fd77::254 (eth0), where ssh leaves it\n"))
    links_carry_bytes("-H", "h1:1,h2:1", *LONELY)


def of_two_links_the_faster_is_taken_whatever_its_name():
    add_fast_network(h1="ib0", h2="mlx5_3")
    seen = run(*PAIR, *LONELY, *WHERE)
    expect(lines_of(seen), ["0 10.78.0.1 ib0 =ib0", "1 10.78.0.1 mlx5_3 =mlx5_3"], seen.stderr)
    expect(seen.stderr, b"hvdrun: other hosts reach 10.77.0.1 at 10.78.0.1 (ib0), on a faster link (40 Gbit/s) than at 10.77.0.1 (eth0), "
                        b"where ssh reaches it (unknown, taken for 10 Gbit/s); 10.77.0.2 at 10.78.0.2 (mlx5_3)\n")
    links_carry_bytes(*PAIR, *LONELY)
    # A third host is not there: then nobody is reached there by all.
    seen = run(*TRIO, *LONELY, *WHERE)
    expect((lines_of(seen), seen.stderr), ([f"{rank} 10.77.0.1 eth0 =eth0" for rank in range(3)], USUAL_TRIO))


def a_card_that_is_faster_than_what_lies_behind_it_is_not_taken():
    """Of the one too little comes in time, of the other hardly enough: a busy machine may take it for such, too."""
    add_fast_network(h1="ib0", h2="ib0")
    assert b" (ib0), on a faster link " in run(*PAIR, *LONELY, *WHERE).stderr
    late, slow = rb"did not come through in time", rb"took \d+\.\d ms there, \d+\.\d ms here"
    for rate, words in ("8mbit", late), ("60mbit", rb"(" + slow + rb"|" + late + rb")"):
        for host in ("h1", "h2"):
            world.run(host, "tc", "qdisc", "replace", "dev", "wire7", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
        seen = run(*PAIR, *LONELY, *WHERE)
        expect(lines_of(seen), [f"{rank} 10.77.0.1 eth0 =eth0" for rank in range(2)], seen.stderr)
        assert re.fullmatch(rb"hvdrun: other hosts reach 10\.77\.0\.1 at 10\.77\.0\.1 \(eth0\), where ssh reaches it, since 10\.78\.0\.1 \(ib0\), 40 Gbit/s by "
                            rb"its own word, is slower: 4 MiB " + words + rb"; 10\.77\.0\.2 at 10\.77\.0\.2 \(eth0\)\n", seen.stderr), seen.stderr


# As the networks of containers that are laid over the hosts' own: whatever it says, it is no faster than those.
def a_bridge_is_not_taken_for_a_faster_card():
    add_fast_network(100_000, add_bridge, h1="cni0", h2="cni0")
    asked = where("by --network-interface", "10.77.0.1 10.78.0.1 cni0", "10.77.0.2 10.78.0.2 cni0")
    for flags, address, name, said in ([], "10.77.0.1", "eth0", USUAL_PAIR), (["--network-interface", "cni0"], "10.78.0.1", "cni0", asked):  # it does lead there
        seen = run(*PAIR, *LONELY, *flags, *WHERE)
        expect((lines_of(seen), seen.stderr), ([f"{rank} {address} {name} ={name}" for rank in range(2)], said))


def what_is_asked_for_overrules():
    add_fast_network(h0="fast0", h1="fast0", h2="fast0")
    seen = run(*PAIR, *LONELY, "--network-interface", "10.77.0.0/16", *WHERE)
    expect((lines_of(seen), seen.stderr), ([f"{rank} 10.77.0.1 eth0 =eth0" for rank in range(2)], USUAL_PAIR.replace(BY_SSH.encode(), b"by --network-interface")))
    seen = run(*PAIR, *LONELY, "--network-interface", "ib0,eth0", "--verbose", *WHERE)
    expect(lines_of(seen), ["0 10.77.0.1 eth0 =eth0", "1 10.77.0.1 eth0 =eth0"], seen.stderr)
    assert b"info: other hosts reach 10.77.0.2 at 10.77.0.2 (eth0), by --network-interface\n" in seen.stderr, seen.stderr
    seen = run("-H", "10.78.0.1:1,10.78.0.2:1", *LONELY, "--verbose", *WHERE)
    expect(lines_of(seen), ["0 10.78.0.1 fast0 =fast0", "1 10.78.0.1 fast0 =fast0"], seen.stderr)
    assert b"info: other hosts reach 10.78.0.2 at 10.78.0.2 (fast0), where ssh reaches it\n" in seen.stderr, seen.stderr
    # It has to lead there, too.
    for host in ("h1", "h2"):
        add_bridge(host, "own0", "10.79.0.1/24")
    seen = run(*PAIR, *LONELY, "--network-interface", "own0,fast0", *WHERE)
    expect((seen.returncode, seen.stdout), (125, b""), seen.stderr)
    assert re.match(rb"hvdrun: no address of 10\.77\.0\.\d is reached by all other hosts: 10\.79\.0\.1 \(own0\) not from 10\.77\.0\.\d: \w", seen.stderr.splitlines()[-1]), seen.stderr


# Where sshd sees a translated address hvdrun listens on all of its machine's, and one of them cannot be used: of a network
# without a cable nobody knows whether it is this machine's alone.
def an_address_that_hvdrun_cannot_listen_on_is_passed_over():
    world.run("h0", "ip", "link", "add", "v7", "type", "veth", "peer", "name", "v8")
    world.run("h0", "ip", "link", "set", "v7", "up")
    world.run("h0", "ip", "addr", "add", "fd99::1/64", "dev", "v7")
    assert "tentative" in world.run("h0", "ip", "-6", "addr", "show", "dev", "v7").stdout
    world.path("h1", hosts.home("root", ".bashrc")).write_text("export SSH_CONNECTION='192.0.2.1 4000 10.77.0.1 22'\n")
    seen = run("-H", "h1", "--no-tag-output", "--", "echo", "hello")
    expect((seen.returncode, seen.stdout), (0, b"hello\n"), seen.stderr)


def hosts_that_cannot_reach_each_other_are_named():
    for network in ("10.77.0.2/32", "fd77::2/128"):
        world.run("h1", "ip", "route", "add", "unreachable", network)
    seen = run(*PAIR, *LONELY, *WHERE)
    expect((seen.returncode, seen.stdout), (125, b""), seen.stderr)
    last = seen.stderr.decode().splitlines()[-1]
    expect(last, "hvdrun: no address of 10.77.0.2 is reached by all other hosts: 10.77.0.2 (eth0) not from 10.77.0.1: No route to host; "
                 "fd77::2 (eth0) not from 10.77.0.1: No route to host; open a way between them, or name another network (--network-interface)")
    # One way of two is enough.
    world.run("h1", "ip", "route", "del", "unreachable", "fd77::2/128")
    seen = run(*PAIR, *LONELY, *WHERE)
    expect(lines_of(seen), ["0 fd77::1 eth0 =eth0 AF_INET6", "1 fd77::1 eth0 =eth0 AF_INET6"], seen.stderr)
    expect(seen.stderr, b"hvdrun: other hosts reach 10.77.0.1 at fd77::1 (eth0), since not all hosts have reached it yet at 10.77.0.1 (eth0), "
                        b"where ssh reaches it; 10.77.0.2 at fd77::2 (eth0), since not all hosts reach it at 10.77.0.2 (eth0), where ssh reaches it: "
                        b"not from 10.77.0.1: No route to host\n")


def a_way_that_loses_full_packets_is_none():
    world.add_network("br7")
    for host in ("h1", "h2"):
        world.join(host, "fast", "br7", f"10.78.0.{number(host)}/24")
        world.run(host, "ip", "link", "set", "fast", "gso_max_segs", "1")  # else the port takes what a card would have cut up
        world.shrink(host, "br7", 1200)
    seen = run(*PAIR, *LONELY, "--network-interface", "fast", *WHERE)
    expect((seen.returncode, seen.stdout), (125, b""), seen.stderr)
    assert re.search(rb"no address of (10\.77\.0\.[12]) is reached by all other hosts: 10\.78\.0\.[12] \(fast\) not from 10\.77\.0\.[12]: "
                     rb"small packets pass, large ones do not: the MTU differs on the way; ", seen.stderr), seen.stderr
    expect(run(*PAIR, *LONELY, *WHERE).stderr, USUAL_PAIR)


def a_faster_link_that_loses_full_packets_is_not_taken():
    add_fast_network(h1="fast0", h2="fast0")
    assert b" (fast0), on a faster link " in run(*PAIR, *LONELY, *WHERE).stderr  # while it takes them
    for host in ("h1", "h2"):
        world.run(host, "ip", "link", "set", "wire7", "gso_max_segs", "1")
        world.run(host, "ip", "link", "set", "fast0", "gso_max_segs", "1")
        world.shrink(host, "br7", 1200)
    expect(run(*PAIR, *LONELY, *WHERE).stderr, USUAL_PAIR)


def only_the_address_that_was_proven_is_listened_on():
    add_fast_network(h1="fast0", h2="fast0")
    job = subprocess.Popen(world.command("h0", support.options.hvdrun, *PAIR, *LONELY, "--no-tag-output", "--", "sh", "-c", "echo up; exec sleep 300"),
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for _ in range(2):
        expect(job.stdout.readline(), b"up\n")
    for host in ("h1", "h2"):
        ours = [line.split()[3] for line in world.run(host, "ss", "-Hltnp").stdout.splitlines() if "hvd" in line]
        assert len(ours) == 1 and ours[0].startswith(f"10.78.0.{number(host)}:"), ours
    os.kill(support.wait_for(lambda: next((p for p in [job.pid] + support.descendants(job.pid) if support.read(p, "comm") == "hvdrun"), None)), signal.SIGTERM)
    job.communicate(timeout=30)


# 17 are the fewest of which not all pairs are tried before ranks start: h5 is neither at 1, 2, 4 nor 8 from h2.
def of_many_hosts_who_cannot_reach_each_other_is_named_while_ranks_run():
    with hosts.Hosts(17) as many:
        many.run("h2", "ip", "route", "add", "unreachable", many.address("h5"))
        names = ",".join(f"h{i}" for i in range(1, 18))
        job = subprocess.Popen(many.command("h0", support.options.hvdrun, "-H", names, "--ssh-arg=-4", *LONELY, "--no-tag-output", "--", "sh", "-c", "echo up; exec sleep 300"),
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(17):
            expect(job.stdout.readline(), b"up\n")
        support.wait_for_words(job, b"and 14 more hosts so; tried by some of the others each, by the rest while ranks run\n")
        support.wait_for_words(job, f"hvdrun: h2 does not reach h5 at {many.address('h5')} (eth0): No route to host; what connects all hosts by itself, "
                                    "as torch's gloo and NCCL do, fails between them\n".encode())
        os.kill(support.wait_for(lambda: next((p for p in [job.pid] + support.descendants(job.pid) if support.read(p, "comm") == "hvdrun"), None)), signal.SIGTERM)
        _, err = job.communicate(timeout=30)
        assert b"does not reach" not in err, err


support.parse_options("worker")
cases = [the_same_bridge_on_all_hosts_is_no_way_between_them, an_interface_that_leads_nowhere_is_not_taken,
         a_name_that_means_loopback_does_not_matter, ipv6_alone_will_do, of_two_links_the_faster_is_taken_whatever_its_name,
         a_card_that_is_faster_than_what_lies_behind_it_is_not_taken,
         a_bridge_is_not_taken_for_a_faster_card, what_is_asked_for_overrules, an_address_that_hvdrun_cannot_listen_on_is_passed_over,
         hosts_that_cannot_reach_each_other_are_named, a_way_that_loses_full_packets_is_none,
         a_faster_link_that_loses_full_packets_is_not_taken,
         only_the_address_that_was_proven_is_listened_on]
support.main(*map(on_hosts, cases), of_many_hosts_who_cannot_reach_each_other_is_named_while_ranks_run, why_not=hosts.why_not())
