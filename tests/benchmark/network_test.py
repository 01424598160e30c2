"""What is asked of ssh and of hvdrun between hosts, and how it is judged."""
import subprocess
import unittest

import network
import remote


class NetworkTest(unittest.TestCase):
    def test_each_size_is_judged_by_the_raw_stream_and_the_limited_one_by_what_the_link_carries(self):
        claims = {c.text: c.at_least for c in network.claims_of(["1 KiB", "1 MiB", network.LIMITED])}
        beside = "the raw stream's time / hvd's"
        self.assertEqual(claims, {f"1 KiB: {beside}": None, f"1 MiB: {beside}": 0.85, "64 MiB at 1 Gbit/s: the ideal time / hvd's": 0.95})
        self.assertAlmostEqual(network.LIMITED_US, 561341, delta=1)


class RemoteTest(unittest.TestCase):
    def test_ssh_and_hvdrun_reach_the_same_hosts(self):
        alone, ours = remote.commands("/bin/hvdrun", remote.PLAIN)
        self.assertEqual(ours, ["/bin/hvdrun", "-np", "4", "-H", "h1:2,h2:2", "--", "/bin/true"])
        self.assertEqual([word for word in alone[2].split() if word.startswith("h")], ["h1", "h2"])
        self.assertEqual(subprocess.run(["sh", "-c", alone[2].replace("ssh ", "true ")], check=False).returncode, 0)
        self.assertEqual(subprocess.run(["sh", "-c", alone[2].replace("ssh ", "false ", 1).replace("ssh ", "true ")], check=False).returncode, 1)
        self.assertEqual(remote.commands("hvdrun", remote.MANY)[1][2], "32")


if __name__ == "__main__":
    unittest.main()
