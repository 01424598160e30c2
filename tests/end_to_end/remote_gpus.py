"""Hosts that are given without a number of slots: each counts its GPUs, of which it has files in /dev here and nothing else."""
import re

import remote_jobs
import support
from remote_jobs import LONELY, beside_network, hosts, run, wait_until_empty
from support import expect

GPUS = {"h1": 10, "h2": 3}
WHERE = ["--no-tag-output", "--", "sh", "-c", "echo $RANK $LOCAL_WORLD_SIZE $WORLD_SIZE $(hostname)"]

world = None


def on_hosts(case):
    def with_hosts():
        global world
        # Of its three, h2 shows programs two.
        with hosts.Hosts(3, sshd_options={"h2": "SetEnv CUDA_VISIBLE_DEVICES=0,2"}, gpus=GPUS) as world:
            remote_jobs.keep(world)
            case()
            wait_until_empty("h1", "h2", "h3")
    with_hosts.__name__ = case.__name__
    return with_hosts


def placed(counts):
    """What WHERE prints where hosts have so many ranks, in this order."""
    size, lines = sum(counts.values()), []
    for host, count in counts.items():
        lines += [f"{len(lines) + i} {count} {size} {host}" for i in range(count)]
    return sorted(lines)


def expect_placed(words, counts):
    seen = run(*words, *LONELY, *WHERE)
    expect((seen.returncode, sorted(seen.stdout.decode().splitlines()), beside_network(seen.stderr)), (0, placed(counts), []))


def without_np_there_is_a_rank_for_each_gpu():
    expect_placed(["-H", "h1,h2,h3"], {"h1": 10, "h2": 2, "h3": 1})
    expect_placed(["-H", "h3:2,h2,localhost:1"], {"h3": 2, "h2": 2, "h0": 1})


def with_np_hosts_are_filled_in_their_order():
    expect_placed(["-np", "2", "-H", "h3,h1"], {"h3": 1, "h1": 1})
    expect_placed(["-np", "2", "-H", "h1,h2"], {"h1": 2})  # whom nobody needs after all ends in peace
    expect_placed(["-np", "12", "-H", "h2,h1"], {"h2": 2, "h1": 10})
    seen = run("-np", "13", "-H", "h2,h1", *WHERE)
    expect((seen.returncode, seen.stdout), (125, b""), seen.stderr)
    expect(seen.stderr.splitlines()[-1], b"hvdrun: the 2 hosts offer 12 slots together but -np 13 was asked; add hosts or slots, or lower -np; "
                                         b"a host without a count has one slot for each of its GPUs, or one")


def what_is_said_of_ranks_is_looked_at_once_they_are_counted():
    files = world.path("h0", "/tmp/out")
    seen = run("-H", "h1,h3", *LONELY, "--output-filename", "/tmp/out", "--result-file", "/tmp/out/result.json", "--output-ranks", "10",
               "-x@10", "MINE=yes", "--", "sh", "-c", "echo $RANK ${MINE-no}")
    expect((seen.returncode, seen.stdout, beside_network(seen.stderr)), (0, b"[10]<stdout>:10 yes\n", []))
    expect({path.name: (path / "stdout").read_text() for path in files.glob("rank.*")},
           {f"rank.{rank:02}": f"[{rank}]<stdout>:{rank} {'yes' if rank == 10 else 'no'}\n" for rank in range(11)})
    assert '"size": 11' in (files / "result.json").read_text(), (files / "result.json").read_text()
    for words, told in ((["--output-ranks", "11"], b"--output-ranks names rank 11, but the last of 11 ranks is 10; leave it out or start more ranks"),
                        (["-x@11", "A=1"], b'-x@11 "A" is for a rank that is not there: the last of 11 ranks is 10'),
                        (["--output-filename", "/proc/out"], None)):
        seen = run("-H", "h1,h3", *words, "--result-file", "/tmp/result.json", "--", "echo", "started")
        expect((seen.returncode, seen.stdout), (2 if told is None else 125, b""), seen.stderr)
        assert told is None or seen.stderr.splitlines()[-1].startswith(b"hvdrun: " + told), seen.stderr


def what_is_not_known_before_is_said_by_a_dry_run_and_the_log():
    seen = run("-H", "h1,h3", "--dry-run", "--", "true")
    assert b"not counted: the GPUs of 2 other hosts" in seen.stdout, seen
    seen = run("-H", "h1,h3", "--log-level", "info", "--", "true")
    expect(seen.returncode, 0, seen.stderr)
    assert re.search(rb"job \S+: at least 2 ranks of .*by the GPUs of the hosts that is 11 ranks", seen.stderr, re.S), seen.stderr


def gpus_that_a_host_does_not_have_are_named_with_it():
    seen = run("-H", "h1:2,h2:2", "--devices", "2,1", *LONELY, "--", "echo", "started")  # h2 shows programs 0 and 2, and has three
    expect((seen.returncode, seen.stdout.count(b"started")), (0, 4), seen.stderr)
    seen = run("-H", "h1:2,h2:2", "--devices", "1,3", *LONELY, "--", "echo", "started")
    expect((seen.returncode, seen.stdout), (125, b""), seen.stderr)
    expect(seen.stderr.splitlines()[-1], b'hvdrun: h2: --devices: word 2, "3", names none of the 3 GPUs here; hvdrun devices lists them')


support.parse_options()
cases = [without_np_there_is_a_rank_for_each_gpu, with_np_hosts_are_filled_in_their_order, what_is_said_of_ranks_is_looked_at_once_they_are_counted,
         what_is_not_known_before_is_said_by_a_dry_run_and_the_log, gpus_that_a_host_does_not_have_are_named_with_it]
support.main(*map(on_hosts, cases), why_not=hosts.why_not())
