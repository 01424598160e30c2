"""Hosts to test on, all on this machine: python3 tests/support/hosts.py [--hosts N] [--bare N] COMMAND... runs COMMAND on h0.

A host is a set of namespaces (network, mount, pid, UTS, IPC) with an sshd, a name, addresses (10.77.0.I, fd77::I), /tmp,
/dev/shm and home folders of its own; the rest of the file system, users apart, is this machine's. A bridge in one more
set of namespaces, the switch, joins them, and there is no way out of it: neither the machine's network nor a file of it
is touched. Nothing has to be cleaned up either: the hosts are processes below the switch's first one, which the kernel
kills, with all that the namespaces hold, when the process that made the hosts ends, however that comes about.

h0 is where a launcher runs, h1 to hN are like it; b1 to bM have a root file system with nothing but busybox and sshd.
Users: root, and one named after each shell in SHELLS, whose login shell it is; all have the same key in ~/.ssh, which
every sshd takes, but for the users `stranger` and `secret`: the latter would have to type a password. Needs root.
"""
import argparse
import ctypes
import functools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

SHELLS = {"bash": "/bin/bash", "dash": "/bin/dash", "fish": "/usr/bin/fish", "csh": "/bin/csh"}
START_LIMIT_S = 20
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TREE = str(pathlib.Path(__file__).resolve().parents[2])  # what is tested: every host has it, also where /tmp holds it
FILES = "/run/hosts"  # of the switch, in every host; homes (home()) are in /run/home, an own one on each host
NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid")
PR_SET_PDEATHSIG = 1

# Both scripts are the first process of their pid namespace: what they mount, and who they start, goes with them.
SWITCH = f"""set -e
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p {FILES} /run/home /run/sshd
: >{FILES}/switch
mount --bind /proc/self/ns/net {FILES}/switch
ip link add br0 up type bridge stp_state 0 mcast_snooping 0
echo up
exec cat >/dev/null"""

HOST = f"""set -e
name=$1 index=$2 root=$3 tree=$4 gpus=$5
exec >{FILES}/$name/log 2>&1
echo $name >/proc/sys/kernel/hostname
mount -t proc proc /proc
case $tree in /tmp/*) mkdir {FILES}/$name/tree; mount --bind "$tree" {FILES}/$name/tree;; esac
mount -t tmpfs -o mode=1777 tmpfs /tmp
case $tree in /tmp/*) mkdir -p "$tree"; mount --bind {FILES}/$name/tree "$tree";; esac
if [ "$gpus" != 0 ] || ls /dev/nvidia[0-9]* >/dev/null 2>&1; then  # nor does a host have this machine's
  mkdir {FILES}/$name/dev
  mount --rbind /dev {FILES}/$name/dev
  mount -t tmpfs -o mode=755 tmpfs /dev
  ln -s {FILES}/$name/dev/* /dev
  rm -f /dev/nvidia[0-9]*
  for number in $(seq 0 $((gpus - 1))); do : >/dev/nvidia$number; done
fi
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount --bind {FILES}/$name/home /run/home
for file in hosts passwd nsswitch.conf; do mount --bind {FILES}/$file /etc/$file; done
[ ! -e /etc/ssh/ssh_config ] || mount --bind /dev/null /etc/ssh/ssh_config
ip -batch - <<END
link add eth0 type veth peer name $name netns {FILES}/switch
link set lo up
link set eth0 up
addr add 10.77.0.$index/24 dev eth0
addr add fd77::$index/64 dev eth0 nodad
END
nsenter --net={FILES}/switch ip link set $name up master br0
if [ "$root" ]; then
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
  mount --bind {FILES} "$root{FILES}"
  mount --bind {FILES}/$name/home "$root/run/home"
  exec chroot "$root" /usr/sbin/sshd -D -f {FILES}/$name/sshd_config -E {FILES}/$name/sshd.log
fi
exec /usr/sbin/sshd -D -f {FILES}/$name/sshd_config -E {FILES}/$name/sshd.log"""


def home(user, path=""):
    """The home folder of a user on every host, or a file in it."""
    return os.path.join("/run/home", user, path).rstrip("/")


def why_not():
    """What keeps hosts from being made here, in words, or "". For root it is never a reason: what is missing then fails."""
    return "" if os.geteuid() == 0 else "hosts need root, for their namespaces"


def child_of(pid):
    """The first process below `pid`, which made it and waits for it."""
    begin = time.monotonic()
    while time.monotonic() - begin < START_LIMIT_S:
        words = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if words:
            return int(words[0])
        time.sleep(0.002)
    raise TimeoutError(f"process {pid} started nobody in {START_LIMIT_S} s")


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def on_hosts(case, bare=0, prepare=lambda world: None):
    """The case, with two hosts made for it, which it finds in a `world` of its script's own, and `prepare` before it."""
    @functools.wraps(case)
    def with_hosts():
        with Hosts(2, bare=bare) as world:
            case.__globals__["world"] = world
            prepare(world)
            return case()
    return with_hosts


class Hosts:
    def __init__(self, count=2, bare=0, sshd_options=None, gpus=None, quick_keys=True):
        """`sshd_options`: lines of sshd_config for a host by name, which win over the others'; `gpus`: how many it seems to have;
        `quick_keys`: connections agree on their keys by elliptic curves alone, a third of the time that ssh's own choice takes."""
        self.names = [f"h{i}" for i in range(count + 1)] + [f"b{i}" for i in range(1, bare + 1)]
        self.started = {}  # the processes above each host's, and the switch's, by name
        self.first = {}  # pids of the first processes
        try:
            self._start_switch()
            self._write_files(sshd_options or {}, "KexAlgorithms curve25519-sha256" if quick_keys else "")
            for index, name in enumerate(self.names):
                self._start_host(name, index or 254, (gpus or {}).get(name, 0))
            for name in self.names:
                self._wait_for_sshd(name)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for process in self.started.values():
            process.kill()  # the first is the switch's, and with it all go
        for process in self.started.values():
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()
        self.started = {}

    def command(self, host, *words):
        """A command line, for this machine, that runs `words` on the host as its root."""
        return ["nsenter", "--target", str(self.first[host]), *NAMESPACES, "--root", "--wd=/", "--", "env", "-i",
                f"HOME={home('root')}", "USER=root", "LOGNAME=root", f"PATH={PATH}", "LANG=C.UTF-8", *words]

    def run(self, host, *words, check=True, limit=60, **more):
        """Runs a command on the host to its end, with text of its outputs."""
        more.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(self.command(host, *words), check=check, timeout=limit, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, **more)

    def path(self, host, path):
        """A file of the host's as this machine sees it."""
        return pathlib.Path(f"/proc/{self.first[host]}/root{path}")

    def address(self, host):
        return f"10.77.0.{self.names.index(host) or 254}"

    def add_network(self, bridge):
        """One more network between hosts, for join()."""
        self._in_switch("ip", "link", "add", bridge, "up", "type", "bridge")

    def join(self, host, device, bridge, *addresses):
        """Gives the host one more interface, with these addresses and their prefixes, on a network of add_network()."""
        plug = f"{host}-{bridge}"
        self.run(host, "ip", "link", "add", device, "type", "veth", "peer", "name", plug, "netns", f"{FILES}/switch")
        self._in_switch("ip", "link", "set", plug, "up", "master", bridge)
        self.run(host, "ip", "link", "set", device, "up")
        for address in addresses:
            self.run(host, "ip", "addr", "add", address, "dev", device, *(["nodad"] if ":" in address else []))

    def shrink(self, host, bridge, mtu):
        """The port of a network of join() drops what is longer, and nobody is told."""
        self._in_switch("ip", "link", "set", f"{host}-{bridge}", "mtu", str(mtu))

    def cut(self, host):
        """No frame reaches the host or comes from it any more, and nobody is told."""
        self._in_switch("bridge", "link", "set", "dev", host, "state", "0")

    def heal(self, host):
        self._in_switch("bridge", "link", "set", "dev", host, "state", "3")

    def cut_between(self, sender, receiver):
        """What one host sends to the other's first addresses is lost, and nobody is told. The other way it still goes."""
        nobody = "02:00:00:00:00:01"
        for family in ("10.77.0.", "fd77::"):
            address = family + self.address(receiver).split(".")[-1]
            self.run(sender, "ip", "neigh", "replace", address, "lladdr", nobody, "nud", "permanent", "dev", "eth0")

    def heal_between(self, *senders):
        for host in senders:
            self.run(host, "ip", "neigh", "flush", "nud", "permanent", "dev", "eth0")

    def limit(self, host, rate):
        """At most so much each way, "100mbit" say; None: no limit any more.

        What is saved up for a burst is 2 ms at 1 Gbit/s: of so much the kernel's timers are late beside ranks that spin, and
        with a quarter of it a plain stream came to 0.72 of the limit."""
        for place, device in ((self._in_switch, host), (lambda *words: self.run(host, *words), "eth0")):
            if rate:
                place("tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
            else:
                place("tc", "qdisc", "del", "dev", device, "root")

    def reset(self, host):
        """Resets all TCP connections of the host, as a firewall that forgot them does."""
        self.run(host, "ss", "-HtnK", "state", "connected")

    def off(self, host):
        """Power off: silent first, since dying processes would close their connections."""
        self.cut(host)
        os.kill(self.first[host], signal.SIGKILL)
        self.started[host].wait()

    def _in_switch(self, *words):
        subprocess.run(["nsenter", "--target", str(self.first["switch"]), "--net", "--", *words], check=True, timeout=START_LIMIT_S)

    def _start_switch(self):
        switch = subprocess.Popen(["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SWITCH],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        self.started["switch"] = switch
        if switch.stdout.readline() != b"up\n":
            raise RuntimeError(f"the switch between the hosts did not start, exit status {switch.wait()}")
        self.first["switch"] = child_of(switch.pid)
        self.files = self.path("switch", FILES)

    def _write_files(self, sshd_options, key_exchange):
        users = ["root", *SHELLS, "stranger", "secret"]
        (self.files / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + "".join(
            f"{self.address(name)} {name}\nfd77::{self.address(name).split('.')[-1]} {name}\n" for name in self.names))
        (self.files / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
        (self.files / "passwd").write_text("sshd:*:100:65534::/run/sshd:/usr/sbin/nologin\n" + "".join(
            f"{user}:*:{self.uid(user)}:{self.uid(user)}::{home(user)}:{SHELLS.get(user, '/bin/bash')}\n" for user in users))
        (self.files / "bare_passwd").write_text(re.sub(":[^:]*$", ":/bin/sh", (self.files / "passwd").read_text(), flags=re.MULTILINE))
        self._make_key(self.files / "key")
        for user in {*users} - {"stranger", "secret"}:
            shutil.copy(self.files / "key.pub", self.files / f"key.{user}")
        for name in self.names:
            folder = self.files / name
            folder.mkdir()
            self._make_key(folder / "host_key")
            (folder / "sshd_config").write_text(f"""{sshd_options.get(name, "")}
{key_exchange}
HostKey {FILES}/{name}/host_key
PidFile {FILES}/{name}/sshd.pid
AuthorizedKeysFile {FILES}/key.%u
StrictModes no
UsePAM no
PrintMotd no
KbdInteractiveAuthentication no
PasswordAuthentication no
Match User secret
  PasswordAuthentication yes
""")
            for user in users:
                ssh = folder / "home" / user / ".ssh"
                ssh.mkdir(parents=True)
                shutil.copy(self.files / "key", ssh / "id_ed25519")
                for path in (ssh.parent, ssh, ssh / "id_ed25519"):
                    os.chown(path, self.uid(user), self.uid(user))
        # h0's root has met them all.
        (self.files / "h0" / "home" / "root" / ".ssh" / "known_hosts").write_text("".join(
            f"{name},{self.address(name)},fd77::{self.address(name).split('.')[-1]} {(self.files / name / 'host_key.pub').read_text()}"
            for name in self.names))

    @staticmethod
    def uid(user):
        """No user of the machine's has it."""
        return 0 if user == "root" else 47000 + [*SHELLS, "stranger", "secret"].index(user)

    @staticmethod
    def _make_key(path):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True, timeout=START_LIMIT_S)

    def _bare_root(self, name):
        """Fills the root file system of a host that has nothing, and returns its path in the switch."""
        root = self.files / name / "root"
        for folder in ("bin", "dev", "etc", "proc", "tmp", "run/sshd", "run/home", f".{FILES}"):
            (root / folder).mkdir(parents=True)
        programs = [path for path in ("/usr/sbin/sshd", "/usr/lib/openssh/sshd-session") if os.path.exists(path)]
        libraries = subprocess.run(["ldd", *programs], check=True, stdout=subprocess.PIPE, text=True, timeout=START_LIMIT_S).stdout
        for path in {*programs, *re.findall(r"(/\S+) \(0x", libraries)}:
            (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, root / path[1:])
        shutil.copy("/bin/busybox", root / "bin/busybox")
        for applet in subprocess.run(["/bin/busybox", "--list"], check=True, stdout=subprocess.PIPE, text=True).stdout.split():
            if applet != "busybox":
                (root / "bin" / applet).symlink_to("busybox")
        for device, minor in (("null", 3), ("zero", 5), ("urandom", 9)):
            os.mknod(root / "dev" / device, 0o20666, os.makedev(1, minor))
            os.chmod(root / "dev" / device, 0o666)
        for file in ("hosts", "nsswitch.conf", "bare_passwd"):
            shutil.copy(self.files / file, root / "etc" / file.removeprefix("bare_"))
        return f"{FILES}/{name}/root"

    def _start_host(self, name, index, gpus):
        root = self._bare_root(name) if name.startswith("b") else ""
        self.started[name] = subprocess.Popen(
            ["nsenter", "--target", str(self.first["switch"]), "--net", "--mount", "--pid", "--wd=/", "--",
             "unshare", *NAMESPACES, "--fork", "--kill-child", "env", "-i", f"PATH={PATH}", "sh", "-c", HOST, "host", name, str(index), root, TREE,
             str(gpus)],
            stdin=subprocess.DEVNULL)

    def _wait_for_sshd(self, name):
        begin = time.monotonic()
        while not (self.files / name / "sshd.pid").exists():
            log = self.files / name / "log"
            said = log.read_text() if log.exists() else ""
            if self.started[name].poll() is not None or time.monotonic() - begin > START_LIMIT_S:
                raise RuntimeError(f"host {name} did not start: {said}")
            time.sleep(0.002)
        self.first[name] = child_of(child_of(self.started[name].pid))


def main():
    parser = argparse.ArgumentParser(description="runs a command on h0 beside other hosts, all made for it on this machine")
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="so many like this machine, h1 to hN; 2")
    parser.add_argument("--bare", type=int, default=0, metavar="N", help="so many with nothing but busybox and sshd, b1 to bN")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if why := why_not():
        sys.exit(f"hosts: {why}")
    with Hosts(options.hosts, options.bare) as hosts:
        sys.exit(subprocess.run(hosts.command("h0", *(options.command or ["bash", "-i"])), check=False).returncode)


if __name__ == "__main__":
    main()
