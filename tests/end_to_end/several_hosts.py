"""Jobs over ssh on hosts that have nothing: their ranks, their output, how they end, and that nobody is left on any host."""
import contextlib
import hashlib
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import zipfile

import support
from remote_jobs import LONELY, PAIR, SLEEP, beside_network, command, hosts, launcher, on_hosts, processes, run, start, wait_for_sleeps, wait_until_empty
from support import expect, wait_for

world = None


def wait_until_it_says(job, words):
    """Reads its standard error up to a line with these words; it has limits of its own, so it says them or ends."""
    said = []
    for line in job.stderr:
        said.append(line)
        if re.search(words, line):
            return
    raise AssertionError(f"it ended without {words}: {said}")


def every_rank_knows_its_place():
    seen = run(*PAIR, "--no-tag-output", "--", "sh", "-c",
               "echo $RANK $LOCAL_RANK $GROUP_RANK $HVD_HOSTNAME $(hostname) $HOME; echo $MASTER_ADDR $MASTER_PORT")
    expect(seen.returncode, 0, seen.stderr)
    lines = sorted(set(seen.stdout.decode().splitlines()))
    expect([line for line in lines if line[0] in "0123" and " h" in line],
           [f"{rank} {rank % 2} {rank // 2} h{rank // 2 + 1} h{rank // 2 + 1} {hosts.home('root')}" for rank in range(4)])
    assert len(lines) == 5 and re.search(r"^(10\.77\.0\.1|fd77::1) \d+$", "\n".join(lines), re.M), lines


def this_machine_may_be_among_them():
    seen = run("-np", "3", "-H", "localhost:1,h2:2", "--no-tag-output", "--", "sh", "-c", "echo $RANK $(hostname) $MASTER_ADDR")
    expect(seen.returncode, 0, seen.stderr)
    lines = sorted(seen.stdout.decode().splitlines())
    assert re.fullmatch(r"0 h0 (\S+)\n1 h2 \1\n2 h2 \1", "\n".join(lines)) and "127." not in lines[0], lines


def names_of_one_machine_are_one_host():
    config = world.path("h0", hosts.home("root", ".ssh/config"))
    config.write_text("Host h1-alias\n  HostName h1\nHost me\n  HostName h0\n")
    words = ["--no-tag-output", "--", "sh", "-c", "echo $RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $HVD_CROSS_SIZE $(hostname)"]
    try:
        seen = run("-H", "h1:1,h2:1,h1-alias:2", *LONELY, *words)
        expect((seen.returncode, sorted(seen.stdout.decode().splitlines())),
               (0, ["0 0 3 0 2 2 h1", "1 1 3 0 2 1 h1", "2 2 3 0 2 1 h1", "3 0 1 1 2 2 h2"]), seen.stderr)
        expect(beside_network(seen.stderr), [b'hvdrun: hosts "h1" and "h1-alias" are one machine: their slots are added, 3 together'])
        # This machine by an alias, named first: its ranks come first, and its own agent has them.
        seen = run("-H", "me:1,h2:1,localhost:1", *LONELY, *words)
        expect((seen.returncode, sorted(seen.stdout.decode().splitlines())), (0, ["0 0 2 0 2 2 h0", "1 1 2 0 2 1 h0", "2 0 1 1 2 2 h2"]), seen.stderr)
        expect(beside_network(seen.stderr), [b'hvdrun: hosts "me" and "localhost" are one machine: their slots are added, 2 together'])
        wait_until_empty("h0", "h1", "h2")
    finally:
        config.unlink()
    for address in ("10.77.0.1", "fd77::1"):
        seen = run("-H", f"h1:1,[{address}]:1" if ":" in address else f"h1:1,{address}:1", *LONELY, "--no-tag-output", "--", "sh", "-c", "echo $LOCAL_WORLD_SIZE")
        expect((seen.returncode, seen.stdout), (0, b"2\n2\n"), seen.stderr)


def other_users_of_this_machine_are_reached_by_ssh():
    seen = run("-H", "localhost:1,bash@localhost:1,h2:1", *LONELY, "--wdir", "/", "--no-tag-output", "--", "sh", "-c",
               "echo $RANK $LOCAL_WORLD_SIZE $(id -un) $(hostname) $MASTER_ADDR")
    expect(seen.returncode, 0, seen.stderr)
    lines = sorted(seen.stdout.decode().splitlines())
    assert re.fullmatch(r"0 1 root h0 (\S+)\n1 1 bash h0 \1\n2 1 root h2 \1", "\n".join(lines)) and "127." not in lines[0], lines
    seen = run("-H", "bash@localhost:2", *LONELY, "--wdir", "/", "--no-tag-output", "--", "sh", "-c", "echo $LOCAL_RANK $(id -un)")
    expect((seen.returncode, sorted(seen.stdout.splitlines())), (0, [b"0 bash", b"1 bash"]), seen.stderr)


def a_bare_host_and_a_single_one_will_do():
    seen = run("-np", "2", "-H", "b1:2", "--wdir", "/", "--no-tag-output", "--", "sh", "-c", "echo $RANK")
    expect((seen.returncode, sorted(seen.stdout.split())), (0, [b"0", b"1"]), seen.stderr)


def torch_trains_over_ssh():
    if os.path.basename(support.options.torch_python) == "none":
        return "left out: no python3 that can import torch.distributed (scripts/setup --peers)"
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ddp_train.py")
    seen = run("-H", "h1,h2", "--no-tag-output", "--timeout", "80", "--", support.options.torch_python, program, limit=100)
    expect(seen.returncode, 0, seen.stderr)
    wanted = [f"rank {rank} of 2, same: True, weights: 1.00 -2.00 0.50 0.25" for rank in range(2)]
    expect(sorted(seen.stdout.decode().splitlines()), wanted, seen.stderr)


def libhvd_trains_over_ssh_as_it_does_over_pretended_hosts():
    mnist = pathlib.Path(support.options.hvdrun).resolve().with_name("mnist")
    if not mnist.exists():
        return "left out: this build has no LibTorch (scripts/setup)"

    def trained(name, *where):
        checkpoint = pathlib.Path(folder) / name
        seen = run(*where, *LONELY, "--timeout", "80", "--", mnist, "--no-cuda", "--epochs", "2", "--checkpoint", checkpoint, limit=100)
        expect((seen.returncode, beside_network(seen.stderr)), (0, []))
        with zipfile.ZipFile(checkpoint) as archive:  # the bytes of its tensors; their order is that of addresses
            return seen.stdout, sorted(archive.read(one) for one in archive.namelist() if "/data/" in one)

    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # which all hosts see
        lines, parameters = trained("ssh", *PAIR)
        assert b"Accuracy: " in lines and b"[3]<stdout>:Train Epoch: 2 " in lines, lines
        assert len(parameters) > 8, len(parameters)
        expect(parameters == trained("pretended", "--pretend-hosts", "2x2")[1], True, "the same parameters, bit for bit")


def output_and_input_go_both_ways():
    text = os.urandom(2_000_000)
    seen = run(*PAIR, "--no-tag-output", "--stdin", "all", "--", "sh", "-c", "sha256sum | cut -c 1-64; seq 100000 130000", input=text)
    expect(seen.returncode, 0, seen.stderr)
    lines = seen.stdout.decode().splitlines()
    expect(lines.count(hashlib.sha256(text).hexdigest()), 4)
    expect(lines.count("115000"), 4)
    expect(len(lines), 4 * 30002)


def variables_come_over_but_those_of_a_session():
    seen = subprocess.run(world.command("h0", "env", "COMING=along", "TMPDIR=/not/there", "DISPLAY=:7", "CUDA_VISIBLE_DEVICES=3", "OLDPWD=/tmp", support.options.hvdrun, "-H", "h1", "-x",
                                        "CHOSEN=one", "--no-tag-output", "--", "sh", "-c",
                                        "echo $COMING $CHOSEN ${TMPDIR-none} ${DISPLAY-none} ${CUDA_VISIBLE_DEVICES-none} ${OLDPWD-none}"),
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    expect((seen.returncode, seen.stdout), (0, b"along one none none none none\n"), seen.stderr)
    seen = subprocess.run(world.command("h0", "env", "CUDA_VISIBLE_DEVICES=3", support.options.hvdrun, "-H", "localhost:1,h1:1", *LONELY,
                                        "-x", "CUDA_VISIBLE_DEVICES", "--no-tag-output", "--", "printenv", "CUDA_VISIBLE_DEVICES"),
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    expect((seen.returncode, seen.stdout), (0, b"3\n3\n"), seen.stderr)


def a_relative_directory_is_the_same_on_all_hosts():
    for host in ("h0", "h1"):
        world.run(host, "mkdir", "-p", "/tmp/project/run 1")
    seen = subprocess.run(world.command("h0", "sh", "-c", f"cd /tmp/project; exec '{support.options.hvdrun}' -H localhost:1,h1:1 --wdir 'run 1' --no-tag-output "
                                        "-- python3 -c 'import os; print(os.getcwd() + \":\" + os.environ[\"PWD\"])'"),
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    expect((seen.returncode, seen.stdout), (0, b"/tmp/project/run 1:/tmp/project/run 1\n" * 2), seen.stderr)
    # Gone, it has no name that another host could be told.
    seen = subprocess.run(world.command("h0", "sh", "-c", f"mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone; exec '{support.options.hvdrun}' -H h1 -- true"),
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert seen.returncode == 2 and b"hvdrun: the working directory cannot be used: No such file" in seen.stderr, seen.stderr


def variables_may_come_from_files_and_be_for_some_ranks_alone():
    world.path("h0", "/tmp/job.env").write_text("# of the job\nFROM_FILE='a b'  # two words\nCHOSEN=file\n")
    words = [*PAIR, "--env-file", "/tmp/job.env", "-x", "CHOSEN=line", "-x@1,3", "CHOSEN=odd", "-x", "XDG_SESSION_*", "-x", "OTHER_*", "--no-tag-output"]
    seen = subprocess.run(world.command("h0", "env", "XDG_SESSION_ID=7", support.options.hvdrun, *words, "--", "sh", "-c",
                                        "echo $RANK $FROM_FILE $CHOSEN $XDG_SESSION_ID"), stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    expect(seen.returncode, 0, seen.stderr)
    expect(sorted(seen.stdout.decode().splitlines()), [f"{rank} a b {'odd' if rank % 2 else 'line'} 7" for rank in range(4)])
    assert b"-x 'OTHER_*' passes nothing on: no variable of such a name is set here" in seen.stderr, seen.stderr
    world.path("h0", "/tmp/job.env").write_text("A=1\nRANK=secret\n")
    seen = run(*PAIR, "--env-file", "/tmp/job.env", "--", "true")
    expect((seen.returncode, seen.stderr.splitlines()[-1]),
           (2, b"hvdrun: /tmp/job.env:2: RANK has no effect: hvdrun gives each rank its own RANK; leave it out"))
    seen = run(*PAIR, "-x@4", "A=secret", "--", "true")
    expect((seen.returncode, seen.stderr.splitlines()[-1]), (2, b'hvdrun: -x@4 "A" is for a rank that is not there: the last of 4 ranks is 3'))


def limits_are_the_launchers_where_hosts_allow_them():
    world.run("h1", "prlimit", "--pid", "1", "--nofile=900:900")  # of its sshd
    seen = subprocess.run(world.command("h0", "sh", "-c", 'ulimit -Sn 1200; ulimit -Sl 40; exec "$@"', "sh", support.options.hvdrun, *PAIR, *LONELY,
                                        "--no-tag-output", "--", "sh", "-c", "echo $RANK $(ulimit -n) $(bash -c 'ulimit -l')"),
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    expect((seen.returncode, sorted(seen.stdout.decode().splitlines())), (0, ["0 900 40", "1 900 40", "2 1200 40", "3 1200 40"]), seen.stderr)
    expect(beside_network(seen.stderr), [b"hvdrun: open files (ulimit -n) on h1: 900 for a rank, here 1200; raise the hard limit there if that is too few"])


def the_port_and_the_key_of_ssh_may_be_given():
    seen = run("-H", "h1", "-p", "22", "-i", hosts.home("bash", ".ssh/id_ed25519"), "--no-tag-output", "--", "echo", "hello")
    expect((seen.returncode, seen.stdout), (0, b"hello\n"), seen.stderr)
    seen = run("-H", "h1", "-p", "23", "--", "true")
    assert seen.returncode == 125 and b"no agent on h1: " in seen.stderr, seen.stderr


def the_first_failure_is_named_with_its_host():
    seen = run(*PAIR, "--", "sh", "-c", "if [ $RANK = 3 ]; then echo broken >&2; exit 7; fi; sleep 60")
    expect(seen.returncode, 7, seen.stderr)
    last = seen.stderr.splitlines()[-1]
    assert re.fullmatch(rb"hvdrun: first failure: rank 3 \(pid \d+\) on h2 exited with code 7 after [0-9.]+ s", last), last
    wait_until_empty("h1", "h2")


def what_is_missing_there_is_named():
    seen = run("-H", "h1", "--wdir", "/not/\nthere", "--", "true")
    expect((seen.returncode, b"(chdir to $'/not/\\x0athere': No such file or directory): make that directory there, " in seen.stderr), (125, True), seen.stderr)
    # The launcher's own directory is looked for there, too.
    seen = subprocess.run(world.command("h0", "sh", "-c", f"mkdir /tmp/here; cd /tmp/here; exec '{support.options.hvdrun}' -H h1 -- ./train"),
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert b"(chdir to /tmp/here: No such file or directory): make " in seen.stderr and b"; --ship ./train sends the " in seen.stderr, seen.stderr
    seen = run("-H", "h1", "--", "/not/there")
    expect(seen.returncode, 127, seen.stderr)


def an_agent_that_ends_before_it_came_back_is_named_with_its_last_words():
    world.run("h1", "prlimit", "--pid", "1", "--nofile=20:20")  # of its sshd: too few for an agent's control stream
    seen = run("-np", "2", "-H", "h1:1,h2:1", "--", "true")
    expect(seen.returncode, 125, seen.stderr)
    expect(seen.stderr.splitlines()[-1], b'hvdrun: no agent on h1: it ended before it had reached hvdrun; its last words were "agent: cannot start '
           b'the rendezvous: Too many open files; raise the limit on open files (ulimit -n)"')
    assert b"its ranks" not in seen.stderr, seen.stderr
    wait_until_empty("h1", "h2")


def a_host_that_cannot_be_reached_ends_the_job_at_once():
    begin = time.monotonic()
    seen = run("-np", "2", "-H", "h1:1,nowhere:1", "--", "true")
    expect(seen.returncode, 125, seen.stderr)
    assert b"hvdrun: no agent on nowhere: its name is not known here" in seen.stderr.splitlines()[-1], seen.stderr
    assert time.monotonic() - begin < 5
    wait_until_empty("h1")


def signals_end_all():
    for number in (signal.SIGINT, signal.SIGTERM):
        job = start(*PAIR, *SLEEP)
        wait_for_sleeps("h1", "h2")
        os.kill(launcher(job), number)
        _, err = job.communicate(timeout=30)
        expect(job.returncode, -number, err)
        wait_until_empty("h1", "h2")


def ports_and_networks_may_be_chosen():
    for index, host in enumerate(("h0", "h1", "h2")):
        world.run(host, "ip", "link", "add", "link", "eth0", "name", "net7", "address", f"02:00:00:00:07:0{index}", "type", "macvlan", "mode", "bridge")
        world.run(host, "ip", "link", "set", "net7", "up")
        world.run(host, "ip", "addr", "add", f"10.78.0.{index or 254}/24", "dev", "net7")
    for networks in ("10.78.0.0/16", "ib0,net7"):
        job = start("-H", "h1:1,h2:1", *LONELY, "--port-range", "4100-4109", "--network-interface", networks, "--verbose", "--no-tag-output", "--", "sh", "-c",
                    "echo $MASTER_ADDR $MASTER_PORT $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME; exec sleep 300")
        wait_for_sleeps("h1", "h2", count=1)
        connected = world.run("h0", "ss", "-Htnp", "state", "established").stdout
        # The first that is free, and where an earlier job's is not yet, the next.
        at = sorted({line.split()[2] for line in connected.splitlines() if '"hvdrun"' in line}) + world.run("h1", "ss", "-Hltn", "src 10.78.0.1").stdout.split()[3:4]
        assert re.fullmatch(r"10\.78\.0\.254:410[01] 10\.78\.0\.1:410[01]", " ".join(at)), at
        os.kill(launcher(job), signal.SIGTERM)
        out, err = job.communicate(timeout=30)
        expect(out, b"10.78.0.1 4109 net7 =net7\n" * 2, err)
        assert b"other hosts reach h2 at 10.78.0.2 (net7), by --network-interface" in err, err
    seen = run("-H", "h1:1,h2:1", *LONELY, "-x", "GLOO_SOCKET_IFNAME=mine", "--no-tag-output", "--", "sh", "-c", "echo $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME")
    expect((seen.returncode, seen.stdout), (0, b"mine =eth0\n" * 2), seen.stderr)
    seen = run("-H", "localhost:1,h2:1", "--network-interface", "net8", "--", "true")
    expect(seen.returncode, 2, seen.stderr)
    assert b"hvdrun: --network-interface net8: no such network here, which has lo 127.0.0.1, eth0 10.77.0.254" in seen.stderr, seen.stderr
    world.run("h0", "ip", "link", "del", "net7")  # as a login node may be, which has no rank
    seen = run("-H", "h1:1,h2:1", *LONELY, "--network-interface", "net7", "--no-tag-output", "--", "sh", "-c", "echo $MASTER_ADDR")
    expect((seen.returncode, seen.stdout), (0, b"10.78.0.1\n" * 2), seen.stderr)
    world.run("h2", "ip", "link", "del", "net7")
    seen = run("-H", "h1:1,h2:1", "--network-interface", "net7", "--", "true")
    expect(seen.returncode, 125, seen.stderr)
    assert b"hvdrun: no agent on h2: --network-interface net7: no such network here, which has lo 127.0.0.1" in seen.stderr.splitlines()[-1], seen.stderr


def an_agent_that_cannot_come_back_is_named_with_where_it_tried():
    expect(run("-H", "h1:1,h2:1", "--", "true").returncode, 0)  # from here on it need not be copied
    for host, device in (("h0", "eth0"), ("h2", "eth0"), ("h1", "net7")):
        if device == "net7":  # leads nowhere
            world.run(host, "ip", "link", "add", "net7", "up", "type", "bridge")
        world.run(host, "ip", "addr", "add", f"10.78.0.{world.address(host).split('.')[-1]}/24", "dev", device)
    begin = time.monotonic()
    seen = run("-H", "h1:1,h2:1", "--network-interface", "10.78.0.0/16", "--start-timeout", "3", "--", "true")
    assert time.monotonic() - begin < 15, time.monotonic() - begin
    told, last = seen.stderr.decode().splitlines()
    assert re.fullmatch(r"hvdrun: h1: agent: cannot reach hvdrun within 3 s; where a .* \(--network-interface\); 10\.78\.0\.254:\d+: no answer", told), told
    expect((seen.returncode, last), (125, "hvdrun: no agent reported from h1 within 3 s (--start-timeout)"))
    wait_until_empty("h1", "h2")


@contextlib.contextmanager
def taken_ports(host, address, *ports):
    """These of the host's ports are listened on meanwhile, on this address alone, or on all of both families ("::")."""
    both = ", family=socket.AF_INET6, dualstack_ipv6=True" if address == "::" else ""
    holder = subprocess.Popen(world.command(host, "python3", "-c", f"import socket, time\nall = [socket.create_server(({address!r}, port){both}) for port in {ports}]\n"
                                            "print('up', flush=True)\ntime.sleep(60)"), stdout=subprocess.PIPE)
    try:
        expect(holder.stdout.readline(), b"up\n")
        yield
    finally:
        for pid in world.run(host, "ps", "-C", "python3", "-o", "pid=").stdout.split():
            world.run(host, "kill", pid, check=False)
        holder.communicate(timeout=30)


def a_proxy_of_the_users_reads_his_variables():
    """Those too that hvdrun takes from itself, since gRPC would follow them."""
    config = world.path("h0", hosts.home("root", ".ssh/config"))
    config.write_text("Host h1\n  ProxyCommand sh -c '[ \"$https_proxy$GRPC_TRACE\" = ab ] && exec busybox nc %h %p'\n")
    try:
        for words in (["-H", "h1", "--", "true"], ["clean", "-H", "h1"]):
            line = world.command("h0", "env", "https_proxy=a", "GRPC_TRACE=b", support.options.hvdrun, *words)
            seen = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
            expect(seen.returncode, 0, seen.stderr)
    finally:
        config.unlink()


def what_is_wrong_with_a_jump_host_is_told_in_its_words():
    config = world.path("h0", hosts.home("root", ".ssh/config"))
    try:
        for way, reason, words in (("ProxyJump nosuchjump", "its name is not known here", "ssh: Could not resolve hostname nosuchjump: "),
                                   ("ProxyJump h2:2222", "nothing listens on its ssh port", "ssh: connect to host h2 port 2222: Connection refused"),
                                   ("ProxyJump stranger@h2", "it accepts none of your keys", "stranger@h2: Permission denied (publickey)."),
                                   ("ProxyCommand sh -c 'echo no way >&2'", ".* tried 3 times: what leads to it", "no way")):
            config.write_text(f"Host h1\n  {way}\nHost h2\n  StrictHostKeyChecking accept-new\n")
            seen = run("-H", "h1", "--", "true")
            told = rf'no agent on h1: {reason}.*; the words were "{re.escape(words)}.*", of the host or of what leads to it'
            assert seen.returncode == 125 and re.search(told, seen.stderr.decode()), seen.stderr
    finally:
        config.unlink()


def nobody_is_asked_in_a_window_for_a_jump_host():
    askpass = world.path("h0", "/tmp/askpass")
    askpass.write_text('#!/bin/sh\necho "$@" >>/tmp/asked\n')
    askpass.chmod(0o755)
    config = world.path("h0", hosts.home("root", ".ssh/config"))
    config.write_text("Host h1\n  ProxyJump secret@h2\nHost h2\n  StrictHostKeyChecking accept-new\n")
    try:
        line = world.command("h0", "env", "DISPLAY=:0", "SSH_ASKPASS=/tmp/askpass", support.options.hvdrun, "-H", "h1", "--", "true")
        seen = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        expect((seen.returncode, world.path("h0", "/tmp/asked").exists()), (125, False), seen.stderr)
        assert b"it asks for a password" in seen.stderr, seen.stderr
    finally:
        config.unlink()


def a_range_without_a_free_port_names_who_has_them():
    with taken_ports("h0", "10.77.0.254", 4200, 4201, 4202):
        seen = run("-H", "10.77.0.1", "--port-range", "4200-4202", "--", "true")
    expect(seen.returncode, 125, seen.stderr)
    assert re.search(rb"cannot listen on 10.77.0.254, any port of 4200-4202: Address already in use; 4200 is process \d+ \(python3\)'s", seen.stderr), seen.stderr


# As torch's store does: on all addresses, and sharing the port with whoever holds it and does not listen.
BIND_MASTER_PORT = """import os, socket
if os.environ["RANK"] == "0":
    store = socket.socket()
    store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    store.bind(("0.0.0.0", int(os.environ["MASTER_PORT"])))
    store.listen()
    print(os.environ["MASTER_PORT"])"""


# Of the ports that h1's firewall lets through one is left, for rank 0's store; h1's own agent must not have it for its links.
def an_agent_does_not_take_the_port_that_is_kept_for_rank_0():
    job = ["-H", "10.77.0.1:1,10.77.0.2:1", *LONELY, "--port-range", "4000-4002", "--no-tag-output", "--"]
    expect(run(*job, "python3", "-c", BIND_MASTER_PORT).stdout, b"4002\n")
    with taken_ports("h1", "::", 4000, 4001):
        seen = run(*job, "python3", "-c", BIND_MASTER_PORT)
        expect((seen.returncode, seen.stdout), (125, b""), seen.stderr)
        assert re.search(rb"cannot listen on 10.77.0.1, any port of 4000-4002: Address already in use; 4000 is process \d+ \(python3\)'s; 4001 is "
                         rb"process \d+ \(python3\)'s; 4002 is kept for MASTER_PORT; give other ports with --port-range", seen.stderr), seen.stderr


# hvdrun has one of this machine's two ports, so that its agent needs the other for links.
def a_port_is_kept_where_rank_0_runs_alone_and_not_beside_the_users():
    job = ["-H", "10.77.0.1:1,localhost:1", *LONELY, "--network-interface", "10.77.0.0/16", "--port-range", "4000-4002", "--no-tag-output"]
    with taken_ports("h0", "::", 4001):
        expect(run(*job, "--", "python3", "-c", BIND_MASTER_PORT).stdout, b"4002\n")
        with taken_ports("h1", "::", 4000, 4001):
            expect(run(*job, "-x", "MASTER_PORT=4444", "--", "sh", "-c", "echo $MASTER_ADDR $MASTER_PORT").stdout, b"10.77.0.1 4444\n" * 2)


def who_has_no_port_for_rank_0_says_so():
    job = ["-H", "10.77.0.1:1,10.77.0.2:1", *LONELY, "--port-range", "4000-4002", "--no-tag-output", "--"]
    # For rank 0's own use, a port has to be free on every address.
    with taken_ports("h1", "127.0.0.2", 4000, 4001, 4002):
        seen = run(*job, "sh", "-c", "echo ${MASTER_PORT-none}")
        expect((seen.returncode, seen.stdout), (0, b"none\nnone\n"), seen.stderr)
        words = rb"hvdrun: 10\.77\.0\.1: no port is left for MASTER_PORT where rank 0 runs, any port of 4000-4002: Address already in use; 4000 is process \d+ \(python3\)'s"
        assert re.search(words, seen.stderr), seen.stderr
        seen = run("-x", "MASTER_PORT=4444", *job, "sh", "-c", "echo ${MASTER_PORT-none}")
        expect((seen.returncode, seen.stdout, beside_network(seen.stderr)), (0, b"4444\n4444\n", []))


def a_wrapper_that_hides_sshs_words_will_do():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        world.path("h0", f"{folder}").mkdir(exist_ok=True)
        wrapper = world.path("h0", f"{folder}/quiet")
        wrapper.write_text('#!/bin/sh\nexec ssh "$@" 2>/dev/null\n')
        wrapper.chmod(0o755)
        # Its key is known: that a new one is to be taken is told by ssh's words alone.
        expect(run("-H", "h1", "--wdir", "/", "--", "true").returncode, 0)
        seen = run("-H", "h1", "--ssh-command", f"{folder}/quiet", "--no-tag-output", "--", "echo", "hello")
        expect((seen.returncode, seen.stdout), (0, b"hello\n"), seen.stderr)


def what_ssh_started_goes_with_it_and_the_late_host_is_explained():
    seen = run("-H", "h1", "--ssh-arg=-oProxyCommand=sleep 98", "--start-timeout", "2", "--", "true")
    expect(seen.returncode, 125, seen.stderr)
    assert b"hvdrun: no agent on h1: there was no answer for " in seen.stderr.splitlines()[-1], seen.stderr
    wait_until_empty("h0")


def what_ssh_leaves_of_a_proxy_goes():
    """It ends neither at the end of its input nor, since hvdrun's ssh ignores that, at a SIGHUP."""
    config = world.path("h0", hosts.home("root", ".ssh/config"))
    config.write_text("Host h1\n  ProxyCommand sh -c 'busybox nc %h %p; exec sleep 97'\n")
    try:
        for words, code in ((["-H", "h1", "--", "true"], 0), (["clean", "-H", "h1"], 0), (["-H", "h1,stranger@h1", "--", "true"], 125)):
            seen = run(*words)
            expect(seen.returncode, code, seen.stderr)
            wait_until_empty("h0")
        # Nor does it outlive an end that comes while ssh is on its way, or one that waits for nobody.
        seen = run("-H", "h1", "--ssh-arg=-oProxyCommand=sleep 98", "--timeout", "1", "--", "true")
        expect(seen.returncode, 124, seen.stderr)
        wait_until_empty("h0")
        config.write_text("Host h1\n  ProxyCommand sh -c 'sleep 97 >/dev/null & exec busybox nc %h %p'\n")
        job = start("-H", "h1", *SLEEP)
        wait_for_sleeps("h1", count=2)
        world.cut("h1")  # its agent's last word does not come
        hvdrun = launcher(job)
        for _ in range(2):
            os.kill(hvdrun, signal.SIGINT)
            wait_for(lambda: support.is_taken(hvdrun))
        os.kill(hvdrun, signal.SIGINT)
        _, err = job.communicate(timeout=30)
        expect(job.returncode, -signal.SIGINT, err)
        wait_until_empty("h0")
    finally:
        config.unlink()


def hosts_that_come_up_late_are_waited_for():
    world.cut("h2")
    job = start(*PAIR, *LONELY, "--wait-hosts", "60", "--start-timeout", "20", "--no-tag-output", "--", "sh", "-c", "echo $RANK")
    wait_for(lambda: processes("h1"))  # h1 is not held up
    wait_until_it_says(job, rb"hvdrun: waiting for h2: connecting, for \d+\.\d s")
    world.heal("h2")
    out, err = job.communicate(timeout=60)
    expect((job.returncode, sorted(out.split())), (0, [b"0", b"1", b"2", b"3"]), err)


def an_sshd_that_starts_late_is_waited_for_and_none_not_for_ever():
    job = start("-H", "h1", "-p", "2222", "--wait-hosts", "60", "--no-tag-output", "--", "echo", "there")
    wait_until_it_says(job, rb"hvdrun: waiting for h1: tried \d times, nothing listens on its ssh port, for \d+\.\d s")
    world.run("h1", "/usr/sbin/sshd", "-f", f"{hosts.FILES}/h1/sshd_config", "-p", "2222", "-o", "PidFile=none")
    out, err = job.communicate(timeout=30)
    expect((job.returncode, out), (0, b"there\n"), err)
    begin = time.monotonic()
    seen = run("-H", "h1:1,h2:1", "-p", "2223", "--wait-hosts", "2", "--", "true")
    assert 2 <= time.monotonic() - begin < 8, time.monotonic() - begin
    expect(seen.returncode, 125, seen.stderr)
    last = seen.stderr.splitlines()[-1]
    assert re.match(rb"hvdrun: no agent on h[12]: it was not there in \d\.\d s, tried \d times: nothing listens on its ssh port", last), last


def a_new_host_key_is_taken_unless_that_is_forbidden():
    known, config = (world.path("h0", hosts.home("root", f".ssh/{file}")) for file in ("known_hosts", "config"))
    known.unlink()
    config.write_text("StrictHostKeyChecking yes\n")
    seen = run("-H", "h1", "--", "true")
    expect((seen.returncode, known.exists()), (125, False), seen.stderr)
    assert b"your ssh is told to take no new one (StrictHostKeyChecking)" in seen.stderr, seen.stderr
    told = b"hvdrun: ssh had no host key to compare with, and took what it was shown, from 'h1' (ED25519)\n"
    lost = told.replace(b"'h1' (ED25519)", b"h1, or whom it is reached by, whose key cannot be kept (/proc/none), so that any is taken the next time, too")
    for way, words in (("", told), ("StrictHostKeyChecking ask\n", told), ("StrictHostKeyChecking no\n", b""), ("UserKnownHostsFile /proc/none\n", lost)):
        config.write_text(way)
        seen = run("-H", "h1", "--", "true")
        expect((seen.returncode, seen.stderr, known.exists() and "h1 " in known.read_text()), (0, words, words != lost))
        known.unlink(missing_ok=True)
    # Another key than before, which `no` would have let pass; and one of another kind, which ssh would have asked for first.
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", world.path("h0", "/tmp/key")], check=True, timeout=20)
    for ours, path in (("StrictHostKeyChecking no\n", f"{hosts.FILES}/h2/host_key.pub"), ("", "/tmp/key.pub")):
        config.write_text(ours)
        key = world.path("h0", path).read_text()
        known.write_text(f"h1 {key}")
        seen = run("-H", "h1", "--", "true")
        expect((seen.returncode, known.read_text()), (125, f"h1 {key}"), seen.stderr)
        assert b"no agent on h1: its host key is not the one that it had before" in seen.stderr, seen.stderr
        wait_until_empty("h1")
    config.write_text("StrictHostKeyChecking no\n")
    # Nor does --ship send it anything, however much it prints to hide what ssh says.
    world.path("h0", "/tmp/secret").write_text("for the real h1\n")
    world.path("h1", hosts.home("root", ".bashrc")).write_text("head -c 300000 /dev/zero | tr '\\0' x >&2\n")
    seen = run("-H", "h1", "--ship", "/tmp/secret", "--", "true")
    expect(seen.returncode, 125, seen.stderr)
    assert b"no agent on h1: its host key is not the one that it had before" in seen.stderr, seen.stderr
    wait_until_empty("h1")
    expect(list(world.path("h1", hosts.home("root", ".cache/hvdrun")).glob("shipped/**/*")), [])


support.parse_options("torch_python")
cases = [every_rank_knows_its_place, a_relative_directory_is_the_same_on_all_hosts, this_machine_may_be_among_them, names_of_one_machine_are_one_host,
         other_users_of_this_machine_are_reached_by_ssh, a_bare_host_and_a_single_one_will_do, torch_trains_over_ssh,
         libhvd_trains_over_ssh_as_it_does_over_pretended_hosts, output_and_input_go_both_ways, variables_come_over_but_those_of_a_session,
         variables_may_come_from_files_and_be_for_some_ranks_alone, limits_are_the_launchers_where_hosts_allow_them, the_port_and_the_key_of_ssh_may_be_given,
         the_first_failure_is_named_with_its_host, what_is_missing_there_is_named, an_agent_that_ends_before_it_came_back_is_named_with_its_last_words,
         a_host_that_cannot_be_reached_ends_the_job_at_once, signals_end_all, ports_and_networks_may_be_chosen,
         an_agent_that_cannot_come_back_is_named_with_where_it_tried, a_range_without_a_free_port_names_who_has_them, a_proxy_of_the_users_reads_his_variables,
         what_is_wrong_with_a_jump_host_is_told_in_its_words, nobody_is_asked_in_a_window_for_a_jump_host, a_wrapper_that_hides_sshs_words_will_do,
         what_ssh_started_goes_with_it_and_the_late_host_is_explained, what_ssh_leaves_of_a_proxy_goes, hosts_that_come_up_late_are_waited_for,
         an_sshd_that_starts_late_is_waited_for_and_none_not_for_ever, a_new_host_key_is_taken_unless_that_is_forbidden,
         an_agent_does_not_take_the_port_that_is_kept_for_rank_0, a_port_is_kept_where_rank_0_runs_alone_and_not_beside_the_users,
         who_has_no_port_for_rank_0_says_so]
support.main(*map(on_hosts, cases), why_not=hosts.why_not())
