"""SIGKILL of hvdrun and resets of a host's connections, at random moments of jobs over ssh: nothing is left on any host.

--long does 200 and prints a table; the seed replays the choices, not the moments.
"""
import collections
import os
import random
import signal
import time

import support
from remote_jobs import LONELY, PAIR, hosts, launcher, on_hosts, processes, start
from support import wait_for
from victims import SHAPES

LIMIT_S = 3.0  # until nothing is left on any host
BEGUN_LIMIT_S = 5.0  # the same for what had hardly begun, and may be begun once more
END_LIMIT_S = 15.0  # until hvdrun has ended, too: it waits up to 11 s for what it cannot see
HOSTS = ("h1", "h2")
KILL, RESET = "hvdrun is killed", "connections are reset"

world = None


def is_running():
    return all(name in names for names in map(processes, HOSTS) for name in ("hvd-agent", "sleep"))


def phase():
    if is_running():
        return "running"
    return "starting there" if any(map(processes, HOSTS)) else "before"


class Round:
    def __init__(self, rng, event, typical_start_s):
        self.rng, self.event, self.typical_start_s = rng, event, typical_start_s
        self.shape = rng.choice(list(SHAPES))
        if rng.random() < 0.2:  # else the agent lies there from an earlier round
            world.run("h2", "rm", "-rf", hosts.home("root", ".cache/hvdrun"))
        self.begin = time.monotonic()
        self.job = start(*PAIR, *LONELY, "--stop-grace", "1", "--", *SHAPES[self.shape])
        self.pid = launcher(self.job)

    def choose_moment(self):
        moment = self.rng.choice(["early", "running", "ending"])
        if moment == "early":
            return self.let_run(1.3 * self.typical_start_s)
        wait_for(is_running)
        self.typical_start_s = 0.9 * self.typical_start_s + 0.1 * (time.monotonic() - self.begin)
        if moment == "ending":
            os.kill(self.pid, signal.SIGTERM)
            self.let_run(1.1)

    def let_run(self, most_s):
        """For a time drawn by chance, or until the job is over."""
        moment = time.monotonic() + self.rng.uniform(0, most_s)
        wait_for(lambda: self.job.poll() is not None or time.monotonic() >= moment)

    def wait_for_connection(self):
        established = ["ss", "-Htn", "state", "established"]
        wait_for(lambda: self.job.poll() is not None or world.run("h2", *established).stdout.strip())

    def kill(self):
        if self.job.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def left_after(self, event, limit_s=LIMIT_S):
        """Seconds until nothing was left there, or the limit, and what was left then. Waits for hvdrun's own end, too."""
        begin = time.monotonic()
        event()
        gone, left = None, {}

        def is_over():
            nonlocal gone, left
            left = {host: names for host in HOSTS if (names := processes(host))}
            seconds = time.monotonic() - begin
            gone = None if left else gone or seconds
            return (gone and self.job.poll() is not None) or seconds > (END_LIMIT_S if gone else limit_s)

        wait_for(is_over, 2 * END_LIMIT_S)
        return gone or time.monotonic() - begin, left

    def run(self):
        self.choose_moment()
        if self.event == RESET:
            self.wait_for_connection()
        seen = phase() if self.job.poll() is None else "already over"
        if self.event == KILL or seen == "already over":
            seconds, left = self.left_after(self.kill)
        elif seen == "running":
            seconds, left = self.left_after(lambda: world.reset("h2"))
        else:
            seconds, left = self.left_after(lambda: world.reset("h2"), BEGUN_LIMIT_S)
            if self.job.poll() is None:  # what had hardly begun was begun once more
                seen = "connected again"
                seconds, left = self.left_after(self.kill)
        alive = self.job.poll() is None
        self.job.kill()
        self.job.communicate(timeout=30)
        return dict(event=self.event, shape=self.shape, phase=seen, seconds=seconds, left=left, alive=alive)


def summary(results):
    for event in (KILL, RESET):
        ones = [one for one in results if one["event"] == event and one["phase"] != "already over"]
        times = sorted(one["seconds"] for one in ones)
        phases = dict(collections.Counter(one["phase"] for one in ones))
        print(f"     {event:21s} {len(ones):3d} times, gone after {times[len(times) // 2]:.2f} s (median), {times[-1]:.2f} s (most), {phases}", flush=True)


def nothing_is_left_on_any_host():
    rng = random.Random(support.options.seed)
    typical, results = 0.1, []
    wanted = 200 if support.options.long else 10
    for number in range(2 * wanted):  # some are over by themselves
        one = Round(rng, (KILL, RESET)[number % 2], typical)
        results.append(one.run())
        typical = one.typical_start_s
        if sum(one["phase"] != "already over" for one in results) >= wanted:
            break
    summary(results)
    bad = [one for one in results if one["left"] or one["alive"]]
    assert not bad, f"seed {support.options.seed}: {bad}"
    return f"seed {support.options.seed}"


support.parse_options()
support.main(on_hosts(nothing_is_left_on_any_host), why_not=hosts.why_not())
