"""An unmodified torch.distributed program under hvdrun: it finds its ranks by itself and trains; a killed rank ends it."""
import os
import signal
import sys

import support
from support import expect, run, start, wait_for_ranks

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ddp_train.py")


def it_trains_with_two_and_three_ranks():
    for np in (2, 3):
        seen = run("--no-tag-output", "--timeout", "60", "--", sys.executable, PROGRAM, np=np, limit=90)
        expect(seen.returncode, 0, seen.stderr)
        wanted = [f"rank {rank} of {np}, same: True, weights: 1.00 -2.00 0.50 0.25" for rank in range(np)]
        expect(sorted(seen.stdout.decode().splitlines()), wanted, seen.stderr)


def it_trains_over_several_agents():
    seen = run("--no-tag-output", "--timeout", "60", "--pretend-hosts", "2x1", "--", sys.executable, PROGRAM, limit=90)
    expect(seen.returncode, 0, seen.stderr)
    wanted = [f"rank {rank} of 2, same: True, weights: 1.00 -2.00 0.50 0.25" for rank in range(2)]
    expect(sorted(seen.stdout.decode().splitlines()), wanted, seen.stderr)


def a_killed_rank_ends_the_one_that_waits_for_it():
    job = start("--timeout", "60", "--", "bash", "-c", f"[ $RANK = 0 ] || exec sleep 300; exec '{sys.executable}' '{PROGRAM}'")
    ranks = wait_for_ranks(job, 2)
    os.kill(ranks[1], signal.SIGKILL)
    _, err = job.communicate(timeout=30)
    expect(job.returncode, 137, err)
    assert b"first failure: rank 1 " in err.splitlines()[-1], err


support.main(it_trains_with_two_and_three_ranks, it_trains_over_several_agents, a_killed_rank_ends_the_one_that_waits_for_it)
