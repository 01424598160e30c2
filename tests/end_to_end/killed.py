"""SIGKILL of hvdrun, agent, keeper and pairs, at random moments, on one host and on one of several: nobody survives.

Judged by a subreaper above everything. --long does 1,000 kills and prints a table; the seed replays the choices, not the moments.
"""
import collections
import os
import random
import signal
import subprocess
import time

import support
from support import children, keeper_of, read, wait_for, wait_for_nobody
from victims import SHAPES, TARGETS, kill, matched_by_name, processes

LIMIT_S = 15.0


class Trial:
    def __init__(self, rng, target, typical_start_s):
        self.rng, self.target = rng, target
        self.shape = rng.choice(list(SHAPES))
        self.size = rng.choice([1, 2, 4, 6])
        hosts = rng.choice([1, 2, 3] if self.size == 6 else [1, min(self.size, 2)])
        self.host = rng.randrange(hosts)  # where agent and keeper are hit
        self.ranks_there = self.size // hosts
        flags = ["--pretend-hosts", f"{hosts}x{self.ranks_there}"] if hosts > 1 else []
        self.typical_start_s = typical_start_s
        self.begin = time.monotonic()
        self.launcher = subprocess.Popen(
            [support.options.hvdrun, "-np", str(self.size), "--stop-grace", "1", *flags, "--", *SHAPES[self.shape]],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.ending = False

    def pids(self):
        return processes(self.launcher.pid, self.host)

    def phase(self, pids):
        if self.ending:
            return "ending"
        if not pids["keeper"]:
            return "before keeper"
        if not pids["agent"]:
            return "before agent"
        started = [p for p in children(pids["agent"]) if read(p, "comm") != "hvd-agent"]
        return "spawning" if len(started) < self.ranks_there else "running"

    def wait_until(self, wanted, limit_s=10):
        while time.monotonic() - self.begin < limit_s and self.launcher.poll() is None:
            if wanted(self.pids()):
                return
            time.sleep(0.0001)

    def choose_moment(self):
        moment = self.rng.choice(["early", "early", "running", "ending"])
        if moment == "early":
            time.sleep(self.rng.uniform(0, 1.3 * self.typical_start_s))
            return
        self.wait_until(lambda pids: self.phase(pids) == "running")
        self.typical_start_s = 0.9 * self.typical_start_s + 0.1 * (time.monotonic() - self.begin)
        time.sleep(self.rng.uniform(0, 0.03))
        if moment == "ending":
            self.launcher.send_signal(signal.SIGTERM)
            self.ending = True
            time.sleep(self.rng.choice([self.rng.uniform(0, 0.01), self.rng.uniform(0, 1.1)]))

    def run(self):
        names = self.target.split("+")
        self.choose_moment()
        self.wait_until(lambda pids: all(pids[name] for name in names))
        pids = self.pids()
        phase = self.phase(pids)
        hit = [name for name in names if pids[name]]
        if len(hit) < len(names):
            phase = "already over"
        self.rng.shuffle(hit)
        kill(pids[name] for name in hit)
        statuses = {}
        seconds, survivors = wait_for_nobody(LIMIT_S, statuses)
        if survivors:
            support.kill_everything()
        status = statuses.get(self.launcher.pid)
        self.launcher.returncode = -1  # reaped by us
        code = os.waitstatus_to_exitcode(status) if status is not None else None
        if "hvdrun" in names and code != -signal.SIGKILL:
            phase = "already over"  # it had ended by itself before the kill
        return dict(target=self.target, shape=self.shape, phase=phase, seconds=seconds, survivors=survivors, code=code)


def summary(results):
    lines = []
    for target in TARGETS:
        ones = [one for one in results if one["target"] == target and one["phase"] != "already over"]
        if not ones:
            continue
        times = sorted(one["seconds"] for one in ones)
        phases = dict(collections.Counter(one["phase"] for one in ones))
        lines.append(f"     {target:14s} {len(ones):4d} kills, gone after {times[len(times) // 2]:.2f} s (median), "
                     f"{times[-1]:.2f} s (most), {phases}")
    print("\n".join(lines), flush=True)


def nobody_survives_a_kill():
    rng = random.Random(support.options.seed)
    typical, results = 0.02, []
    for number in range(1000 if support.options.long else 90):
        trial = Trial(rng, TARGETS[number % len(TARGETS)], typical)
        results.append(trial.run())
        typical = trial.typical_start_s
    summary(results)
    left = [one for one in results if one["survivors"]]
    assert not left, f"seed {support.options.seed}: {left}"
    return f"seed {support.options.seed}"


def nobody_survives_a_kill_by_name():
    """All whose command line or name holds "hvdrun", as a kill by that name would match them, by id."""
    for shape in SHAPES:
        # The path of hvdrun may hold any word; the processes below it must not have it from there.
        job = subprocess.Popen(["hvdrun", "-np", "2", "--"] + SHAPES[shape], executable=support.options.hvdrun,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: len(support.ranks_of(job.pid)) >= 2)
        matched = matched_by_name(job.pid)
        assert matched == [job.pid], [read(pid, "cmdline") for pid in matched]
        kill(matched)
        _, survivors = wait_for_nobody(LIMIT_S)
        job.returncode = -9
        assert not survivors, survivors


def a_killed_keeper_or_agent_is_hvdruns_failure():
    for victim in (keeper_of, support.agent_of):
        job = support.start("--", "sleep", "60")
        wait_for(lambda: len(support.ranks_of(job.pid)) >= 2)
        os.kill(victim(job.pid), signal.SIGKILL)
        _, err = job.communicate(timeout=20)
        support.expect(job.returncode, 125, err)
        assert b"agent on localhost" in err.splitlines()[-1], err


support.main(nobody_survives_a_kill, nobody_survives_a_kill_by_name, a_killed_keeper_or_agent_is_hvdruns_failure)
