"""The hosts to test on: that each does what it says, that nothing leaves them, and that nothing is left of them."""

import ctypes
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import time
import unittest

import hosts

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "end_to_end"))
import support

SSH = ("ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new", "-oLogLevel=ERROR")


class Session:
    """An ssh from h0 that echoes lines."""

    def __init__(self, world, host):
        self.process = subprocess.Popen(world.command("h0", *SSH, host, "cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, start_new_session=True)

    def send(self, text):
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def receive(self, limit_s):
        return os.read(self.process.stdout.fileno(), 100) if select.select([self.process.stdout], [], [], limit_s)[0] else None

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # nsenter, and the ssh below it
        self.process.communicate(timeout=20)


class TwoHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.outside = cls.routes()
        cls.world = hosts.Hosts(2, bare=1, sshd_options={"h2": "MaxSessions 1"})

    @classmethod
    def tearDownClass(cls):
        cls.world.close()
        assert cls.routes() == cls.outside, "the machine's own network is not as it was"

    @staticmethod
    def routes():
        words = [["ip", "-o", "link"], ["ip", "route", "show", "table", "all"], ["ip", "netns"]]
        return [subprocess.run(one, stdout=subprocess.PIPE, check=True, timeout=20).stdout for one in words]

    def ssh(self, where, *words, **more):
        return self.world.run("h0", *SSH, where, *words, check=False, **more)

    def session(self, host):
        session = Session(self.world, host)
        self.addCleanup(session.close)
        session.send(b"begin\n")
        self.assertEqual(session.receive(20), b"begin\n")
        return session

    def test_every_host_and_user_is_reached_in_its_own_shell(self):
        for user, shell in [("root", "/bin/bash"), *hosts.SHELLS.items()]:
            own_pid = "$fish_pid" if user == "fish" else "$$"
            done = self.ssh(f"{user}@h1", f"hostname; readlink /proc/{own_pid}/exe; pwd")
            self.assertEqual(done.stdout.split(), ["h1", str(pathlib.Path(shell).resolve()), hosts.home(user)], done)

    def test_some_users_cannot_log_in(self):
        for user, offered in (("stranger", "(publickey)"), ("secret", "(publickey,password)")):
            done = self.ssh(f"{user}@h1", "true")
            self.assertEqual((done.returncode, offered in done.stderr), (255, True), done)
        self.assertIn("Name or service not known", self.ssh("nobody", "true").stderr)

    def test_a_bare_host_has_a_shell_and_sshd_and_no_more(self):
        done = self.ssh("b1", "hostname; find /bin /usr -type f -perm -1 | grep -v '[.]so' | sort")
        self.assertEqual(done.stdout.split()[:2], ["b1", "/bin/busybox"], done)
        self.assertLessEqual(set(done.stdout.split()[2:]), {"/usr/sbin/sshd", "/usr/lib/openssh/sshd-session"})
        self.assertEqual(self.world.run("b1", "sh", "-c", "echo $0").stdout, "sh\n")

    def test_hosts_have_their_own_files_and_no_way_out(self):
        self.world.path("h1", hosts.home("root", "one")).write_text("1")
        self.world.run("h1", "sh", "-c", "echo 2 >/tmp/two; echo 3 >/dev/shm/three")
        for path in (hosts.home("root", "one"), "/tmp/two", "/dev/shm/three"):
            self.assertTrue(self.world.path("h1", path).exists())
            self.assertFalse(self.world.path("h2", path).exists())
            self.assertFalse(pathlib.Path(path).exists())
        self.assertIn("unreachable", self.world.run("h1", "bash", "-c", ": </dev/tcp/192.0.2.1/22", check=False).stderr)
        self.assertEqual(self.ssh("10.77.0.2", "hostname").stdout + self.ssh("fd77::2", "hostname").stdout, "h2\nh2\n")
        with self.assertRaises(OSError):
            os.stat(f"/proc/self/root{hosts.FILES}")
        self.assertIn("MaxSessions 1", self.world.path("h2", f"{hosts.FILES}/h2/sshd_config").read_text())

    def test_a_cut_is_silence_until_it_is_healed(self):
        session, other = self.session("h1"), self.session("h2")
        self.world.cut("h1")
        session.send(b"through\n")
        other.send(b"other\n")
        self.assertEqual(other.receive(20), b"other\n")
        self.assertIsNone(session.receive(0.3))
        self.world.heal("h1")
        self.assertEqual(session.receive(20), b"through\n")

    def test_a_reset_ends_connections_at_once(self):
        session = self.session("h1")
        self.world.reset("h1")
        self.assertEqual(session.process.wait(timeout=20), 255)
        self.session("h1")  # and new ones work

    def test_a_limit_holds_until_it_is_lifted(self):
        def copy():
            begin = time.monotonic()
            self.assertEqual(self.world.run("h0", "sh", "-c", f"head -c 4000000 /dev/zero | {' '.join(SSH)} h1 wc -c").stdout, "4000000\n")
            return time.monotonic() - begin

        self.world.limit("h1", "20mbit")
        self.assertGreater(copy(), 4000000 * 8 / 20e6 * 0.8)  # the bucket is 64 KB
        self.world.limit("h1", None)
        self.assertEqual(self.world.run("h1", "tc", "qdisc", "show", "dev", "eth0").stdout.count("tbf"), 0)


class Ends(unittest.TestCase):
    def setUp(self):
        support.expect(ctypes.CDLL(None).prctl(support.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0)

    def nobody_is_left(self):
        seconds, left = support.wait_for_nobody(10)
        self.assertEqual(left, [], f"after {seconds:.1f} s")
        self.assertNotIn(hosts.FILES, pathlib.Path("/proc/self/mountinfo").read_text())

    def test_power_off_is_silent(self):
        with hosts.Hosts(1) as world:
            session = Session(world, "h1")
            session.send(b"x\n")
            self.assertEqual(session.receive(20), b"x\n")
            world.off("h1")
            self.assertIsNone(session.receive(0.3))
            self.assertIn("timed out", world.run("h0", *SSH, "-oConnectTimeout=1", "10.77.0.1", "true", check=False).stderr)
            session.close()
        self.nobody_is_left()

    def test_a_command_gets_hosts_and_gives_its_status(self):
        done = subprocess.run([sys.executable, "-B", hosts.__file__, "--hosts", "1", "sh", "-c", f"{' '.join(SSH)} h1 hostname; exit 7"],
                              stdout=subprocess.PIPE, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout), (7, b"h1\n"))
        self.nobody_is_left()

    def test_nothing_is_left_whenever_it_is_killed(self):
        seed = int(os.environ.get("HVD_TEST_SEED", time.time()))
        draw = random.Random(seed)
        for _ in range(12):
            process = subprocess.Popen([sys.executable, "-B", hosts.__file__, "--bare", "1", "sh", "-c", "sleep 60"])
            try:
                process.wait(timeout=draw.uniform(0.02, 0.8))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
            try:
                self.nobody_is_left()
            except AssertionError as error:
                raise AssertionError(f"{error}; HVD_TEST_SEED={seed}") from error


if __name__ == "__main__":
    if why := hosts.why_not():
        print(f"left out: {why}")
        support.note_left_out("support_hosts_test", why)
        sys.exit(0)
    unittest.main()
