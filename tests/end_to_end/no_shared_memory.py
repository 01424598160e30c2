"""Ranks that their agent has on one host, but that share no memory: the job says so at once, and computes nothing wrong."""
import re
import time

import support
from support import expect, run

LIMIT_S = 20  # --start-timeout is longer


def apart(how, *flags, rank=1, np=3):
    begin = time.monotonic()
    seen = run("--no-tag-output", *flags, "--", support.options.worker, how, str(rank), np=np)
    assert time.monotonic() - begin < LIMIT_S, seen
    return seen


def told(seen, words):
    expect((seen.returncode, seen.stdout), (3, b""), seen.stderr)
    assert re.search(rb"^worker: .*" + words, seen.stderr, re.M), seen.stderr


def who_shares_none_with_its_agent_is_named():
    seen = apart("private")
    told(seen, rb"rank 1 \(process \d+\) runs on the host of its agent, but they share no memory")
    assert b"hvdrun: rank 1 had hvd::init() fail" in seen.stderr, seen.stderr


def who_shares_none_with_other_ranks_is_named():
    told(apart("large"), rb"ranks \d, \d are on one host, but share no memory: what rank \d stores does not reach rank \d;")


def who_may_map_none_is_told():
    told(apart("refused"), rb"memory that the agent of this host shares cannot be mapped \(Operation not permitted\)")


def on_hosts_of_their_own_they_need_none():
    """But each with its agent: so a rank that maps large memory privately is none the worse alone."""
    seen = apart("large", "--pretend-hosts", "3x1")
    expect((seen.returncode, seen.stdout), (0, b"right\n" * 3), seen.stderr)


support.parse_options("worker")
support.main(who_shares_none_with_its_agent_is_named, who_shares_none_with_other_ranks_is_named, who_may_map_none_is_told,
             on_hosts_of_their_own_they_need_none)
