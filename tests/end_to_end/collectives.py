"""Programs that use libhvd under hvdrun: who is named when one rank dies, leaves or never comes, and what it was doing."""
import os
import signal
import time

import support
from support import expect, run, start, wait_for_ranks

# A crash is to end the worker by its signal, also in a build whose sanitizer would rather report it.
os.environ["ASAN_OPTIONS"] = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "handle_segv=0"]))


def worker(what, rank=0):
    return ["--", support.options.worker, what, str(rank)]


def last_line(seen):
    return seen.stderr.decode().splitlines()[-1]


def ten_epochs():
    seen = run(*worker("epochs"), np=3)
    expect(seen.returncode, 0, seen.stderr)


def a_rank_that_crashes_is_named_and_survivors_are_told():
    seen = run(*worker("crash", 1), np=3)
    expect(seen.returncode, 128 + signal.SIGSEGV, seen.stderr)
    assert "first failure: rank 1 " in last_line(seen) and "SIGSEGV" in last_line(seen), seen.stderr
    expect(seen.stderr.count(b"stderr>:worker:"), 2, seen.stderr)  # each survivor threw, caught and printed


def a_rank_killed_inside_a_collective_is_named_with_what_it_did():
    job = start(*worker("loop"), np=3)
    ranks = wait_for_ranks(job, 3)
    while b"going" not in job.stdout.readline():
        pass
    os.kill(ranks[2], signal.SIGKILL)
    _, err = job.communicate(timeout=30)
    expect(job.returncode, 137, err)
    lines = err.decode().splitlines()
    assert "was killed by SIGKILL" in lines[-1], err
    assert any("allreduce" in line or "was computing" in line for line in lines), err


def a_rank_that_deserts_with_code_0_is_the_failure():
    for what in ("desert", "leave"):
        seen = run(*worker(what, 1), np=3)
        expect(seen.returncode, 1, (what, seen.stderr))
        assert "first failure: rank 1 " in last_line(seen) and "exited with code 0" in last_line(seen), (what, seen.stderr)


def a_rank_that_never_calls_init_is_named():
    begin = time.monotonic()
    seen = run("--start-timeout", "1", *worker("absent", 2), np=3)
    assert seen.returncode == 3, seen.stderr
    assert b"rank 2 did not call hvd::init() within 1 s" in seen.stderr, seen.stderr
    assert time.monotonic() - begin < 15


def a_time_limit_says_what_each_rank_was_doing():
    seen = run("--timeout", "2", *worker("absent", 1), np=2)
    expect(seen.returncode, 124)
    assert b"hvdrun: rank 0 was in hvd::init()" in seen.stderr, seen.stderr
    assert b"hvdrun: rank 1 runs and has not called hvd::init()" in seen.stderr, seen.stderr


def a_rank_behind_a_wrapper_is_known_too():
    words = ["--", "bash", "-c", f"'{support.options.worker}' crash 1; exit $?"]
    seen = run(*words, np=3)
    expect(seen.returncode, 139, seen.stderr)


support.parse_options("worker")
support.main(ten_epochs, a_rank_that_crashes_is_named_and_survivors_are_told,
             a_rank_killed_inside_a_collective_is_named_with_what_it_did, a_rank_that_deserts_with_code_0_is_the_failure,
             a_rank_that_never_calls_init_is_named, a_time_limit_says_what_each_rank_was_doing,
             a_rank_behind_a_wrapper_is_known_too)
