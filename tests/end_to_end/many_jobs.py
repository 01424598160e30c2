"""Many jobs at once and one after the other: none hangs, none disturbs another."""
import os
import time

import support
from support import expect, run, start


def thirty_jobs_at_once():
    begin = time.monotonic()
    jobs = [start("--", "bash", "-c", "echo $HVD_RANK") for _ in range(30)]
    for job in jobs:
        out, _ = job.communicate(timeout=60)
        expect(job.returncode, 0)
        expect(sorted(out.splitlines()), [b"[0]<stdout>:0", b"[1]<stdout>:1"])
    return f"{time.monotonic() - begin:.1f} s"


def quick_runs_never_hang():
    runs, slowest = (500 if support.options.long else 40), 0
    for _ in range(runs):
        begin = time.monotonic()
        expect(run("--", "true", np=32, limit=30).returncode, 0)
        slowest = max(slowest, time.monotonic() - begin)
    return f"{runs} runs, slowest {slowest * 1000:.0f} ms"


support.main(thirty_jobs_at_once, quick_runs_never_hang)
