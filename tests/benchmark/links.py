"""Links: allreduce over TCP on loopback, beside a raw stream of the same bytes, Open MPI over TCP and torch's gloo."""
import os
import tempfile

from collectives import KIB, MIB, Rows, name_of
from experiment import Experiment
from programs import OPEN_MPI, ROOT, built, python_with_torch
from samples import Claim, Term
from usage import positive, whole

HELP = "allreduce of 8 B to 256 MiB between ranks linked by TCP, beside a raw stream of the same bytes, Open MPI and gloo"
DETAILS = """\
Ranks are threads, linked on loopback as ranks of different hosts are; gloo's are processes, under Python. The raw
stream computes nothing: every rank sends to its neighbour as many bytes as a ring has to, in calls of the same size as
ours. Targets: at np 2 0.85 of the raw stream's speed to 16 MiB and 0.75 above, ahead of Open MPI over TCP 1.3 times to
64 KiB and 1.0 above, of gloo 10 times to 64 KiB, 3 to 1 MiB, 1.8 to 64 MiB and 1.4 above; at np 4 0.7 of Open MPI's
speed at 1 MiB and 0.9 elsewhere, 1.1 of gloo's from 1 MiB. From four ranks on, where they are even, they also lie on two pretended hosts and share memory
there, with tensors in private memory and in the arena: from 1 MiB on 1.3 times as fast as when all are linked.
bin/links_benchmark -np 1 --help has more sizes, types and operations."""
SAMPLES, SECONDS = 9, 1500
SIZES = (8, KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
RAW, OURS, GLOO = "raw stream", "hvd, tcp", "gloo"
SHARED = {"private": "hvd, 2 hosts, private", "arena": "hvd, 2 hosts, arena"}
OVER_TCP = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]


def add_arguments(parser):
    parser.add_argument("--np", type=whole, default=2, metavar="N", help="how many ranks (2; others than 2 and 4 are shown, not judged)")
    parser.add_argument("--row-seconds", type=positive, default=0.3, metavar="S", help="of repetitions in one sample (0.3)")


def shares_hosts(np):
    return np >= 4 and np % 2 == 0


def gloo_target(size, np):
    if np == 2:
        return 10 if size <= 64 * KIB else 3 if size <= MIB else 1.8 if size <= 64 * MIB else 1.4
    return 1.1 if np == 4 and size >= MIB else None


def claims_of(size, np):
    case = name_of(size)
    raw, ours, mpi = (Term(case, (name,), "time") for name in (RAW, OURS, "Open MPI"))
    raw_target = (0.85 if size <= 16 * MIB else 0.75) if np == 2 else None
    yield Claim(f"{case}: the raw stream's time / hvd's", raw, ours, at_least=raw_target)
    for memory, name in SHARED.items() if shares_hosts(np) else ():
        shared = Term(case, (name,), "time")
        yield Claim(f"{case}: tcp's time / that of 2 hosts, {memory}", ours, shared, at_least=1.3 if size >= MIB else None)
        yield Claim(f"{case}: Open MPI's time / that of 2 hosts, {memory}", mpi, shared)
    mpi_target = {2: 1.3 if size <= 64 * KIB else 1.0, 4: 0.7 if size == MIB else 0.9}.get(np)
    yield Claim(f"{case}: Open MPI's time / hvd's", mpi, ours, at_least=mpi_target)
    yield Claim(f"{case}: gloo's time / hvd's", Term(case, (GLOO,), "time"), ours, at_least=gloo_target(size, np))


def make(options):
    ours, np = built(options.build, "links_benchmark"), str(options.np)
    folder = tempfile.TemporaryDirectory(prefix="hvd-benchmark-")
    rows = Rows(options, folder.name, SIZES)
    variants = [
        rows.variant(RAW, [], ours, "-np", np, "--raw", ours=True),
        rows.variant(OURS, [], ours, "-np", np, ours=True),
    ]
    if shares_hosts(options.np):
        variants += [
            rows.variant(name, [], ours, "-np", np, "--hosts", "2", "--memory", memory, ours=True)
            for memory, name in SHARED.items()
        ]
    missing = {}
    if OPEN_MPI.missing():
        missing["Open MPI"] = OPEN_MPI.missing()
    else:
        program = built(options.build, "mpi_collectives.openmpi")
        variants.append(rows.variant("Open MPI", OPEN_MPI.command(options.np, OVER_TCP), program, ours=False))
    if python := python_with_torch():
        script = os.path.join(ROOT, "tests", "benchmark", "links_gloo.py")
        variants.append(rows.variant(GLOO, [], python, script, "-np", np, ours=False))
    else:
        missing[GLOO] = "no Python with torch, scripts/setup --peers installs it"
    claims = [claim for size in SIZES for claim in claims_of(size, options.np)]
    return Experiment("links", [name_of(size) for size in SIZES], variants, claims,
                      {"time": "us", "rate": "GB/s"}, missing, close=folder.cleanup)
