"""The measured programs run under hvdrun and say what they promise: programs_run.py BIN_FOLDER. Nothing is timed."""
import json
import os
import sys
import tempfile
import unittest

import idle
from programs import run_once

BIN = sys.argv.pop(1)
ROW_KEYS = ["bytes", "time_us", "algbw_gbps", "busbw_gbps", "wrong"]


def program(name):
    return os.path.join(BIN, name)


class CollectiveBenchmarkTest(unittest.TestCase):
    def rows(self, np, *options):
        with tempfile.NamedTemporaryFile() as file:
            words = [program("collective_benchmark"), *options, "--seconds", "0.001", "--json", file.name]
            if np > 1:
                words = [program("hvdrun"), "-np", str(np), "--", *words]
            run_once(words, 60)
            return json.load(file)

    def test_the_json_has_just_the_keys_that_were_agreed(self):
        found = self.rows(2, "--dtype", "int32", "--min-bytes", "8", "--max-bytes", "128K", "--factor", "128")
        self.assertEqual(list(found), ["op", "dtype", "ranks", "memory", "rows"])
        self.assertEqual(list(found.values())[:4], ["allreduce", "int32", 2, "arena"])
        self.assertEqual([list(row) for row in found["rows"]], [ROW_KEYS] * 3)
        self.assertEqual([row["bytes"] for row in found["rows"]], [8, 1024, 131072])
        for row in found["rows"]:
            self.assertGreater(row["time_us"], 0)
            # one link of two carries as much as the algorithm moves
            self.assertAlmostEqual(row["algbw_gbps"], row["busbw_gbps"])
            self.assertAlmostEqual(row["algbw_gbps"], row["bytes"] / row["time_us"] / 1e3, delta=row["algbw_gbps"] * 0.01)

    def test_every_operation_is_right_alone_and_among_three_and_from_both_memories(self):
        for np in (1, 3):
            for op in ("allreduce", "allgather", "broadcast"):
                for memory in ("arena", "private"):
                    found = self.rows(np, "--op", op, "--memory", memory, "--min-bytes", "100", "--max-bytes", "400K", "--factor", "64")
                    self.assertEqual([row["wrong"] for row in found["rows"]], [0] * len(found["rows"]))
                    self.assertEqual(found["ranks"], np)


class ControlBenchmarkTest(unittest.TestCase):
    def test_all_agents_become_ready_over_tls_and_over_sockets(self):
        for how in ("tls", "sockets"):
            found = json.loads(run_once([program("control_benchmark"), "12", "3", how], 60)[0])
            self.assertEqual(list(found), ["ready", "hvdrun memory"])
            self.assertGreater(found["ready"], 0)


class LinksBenchmarkTest(unittest.TestCase):
    def test_every_operation_is_right_over_links(self):
        for np in (2, 3):
            for op in ("allreduce", "allgather", "broadcast"):
                words = [program("links_benchmark"), "-np", str(np), "--op", op, "--min-bytes", "100", "--max-bytes", "4M",
                         "--factor", "200", "--seconds", "0.001"]
                out, _ = run_once(words, 60)  # fails when an element is wrong
                self.assertEqual(len(out.splitlines()), 5, out)

    def test_every_operation_is_right_where_ranks_share_hosts(self):
        for np, hosts in ((4, 2), (2, 2), (3, 1)):
            for op in ("allreduce", "allgather", "broadcast"):
                for memory in ("private", "arena"):
                    words = [program("links_benchmark"), "-np", str(np), "--hosts", str(hosts), "--op", op, "--memory", memory,
                             "--min-bytes", "100", "--max-bytes", "4M", "--factor", "200", "--seconds", "0.001"]
                    out, _ = run_once(words, 60)
                    self.assertEqual(len(out.splitlines()), 5, out)

    def test_a_raw_stream_runs_among_any_number(self):
        for np in (2, 3, 4):
            out, _ = run_once([program("links_benchmark"), "-np", str(np), "--raw", "--min-bytes", "8", "--max-bytes", "1M",
                               "--factor", "131072", "--seconds", "0.001"], 60)
            self.assertEqual(len(out.splitlines()), 4, out)


class DeathBenchmarkTest(unittest.TestCase):
    def test_survivors_are_told_with_and_without_a_stopped_one(self):
        for words in (["2", "2"], ["4", "2"], ["3", "1", "stopped"], ["3", "1", "asleep"]):
            out, _ = run_once([program("death_benchmark"), *words], 60)
            self.assertEqual(len(out.split()), int(words[1]))
            self.assertTrue(all(float(word) > 0 for word in out.split()), out)


class BlockedRankTest(unittest.TestCase):
    def test_the_other_ranks_wait_until_the_job_is_ended(self):
        for wait in idle.BLOCKED.values():
            job = idle.Job(program("hvdrun"), [program("blocked_rank"), wait], idle.NP - 1)
            try:
                self.assertIsNone(job.process.poll(), wait)
                self.assertEqual(len(job.ranks), idle.NP, wait)
                self.assertGreaterEqual(len(job.launcher), 3, wait)  # hvdrun, keeper, agent
            finally:
                job.end()


if __name__ == "__main__":
    unittest.main()
