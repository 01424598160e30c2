"""Collectives: hvd's allreduce beside the floor, which is the memory traffic it cannot avoid, and Open MPI."""
import json
import os
import tempfile

from experiment import Experiment, RunFailed, Variant
from programs import OPEN_MPI, built, run_once
from samples import Claim, Term
from usage import positive, whole

HELP = "allreduce of 8 B to 256 MiB in the arena and in private memory, beside the floor and Open MPI"
DETAILS = """\
The floor is a loop in which every rank scales as many bytes of its own in place: an in-place allreduce has to read and
write as much. Every sample is a new run of one size in one program; all programs share one measuring loop, which times
the slowest rank. Targets at np 2, in the arena: 0.40 of the floor's speed from 64 KiB to 1 MiB, 0.75 at 16 and 256 MiB,
ahead of Open MPI from 64 KiB on, at most 1.5 times its time at 8 B. bin/collective_benchmark --help has more sizes, types
and operations."""
SAMPLES, SECONDS = 9, 900
LIMIT_S = 60.0
KIB, MIB = 2**10, 2**20
SIZES = (8, KIB, 64 * KIB, 256 * KIB, MIB, 16 * MIB, 256 * MIB)
FLOOR_TARGETS = {64 * KIB: 0.40, 256 * KIB: 0.40, MIB: 0.40, 16 * MIB: 0.75, 256 * MIB: 0.75}
FLOOR, ARENA, PRIVATE = "floor", "hvd, arena", "hvd, private"


def add_arguments(parser):
    parser.add_argument("--np", type=whole, default=2, metavar="N", help="how many ranks (2; others are shown, not judged)")
    parser.add_argument("--row-seconds", type=positive, default=0.3, metavar="S", help="of repetitions in one sample (0.3)")


def name_of(size):
    return f"{size} B" if size < KIB else f"{size // KIB} KiB" if size < MIB else f"{size // MIB} MiB"


class Rows:
    """Runs one of the programs for one size."""

    def __init__(self, options, folder, sizes=SIZES):
        self.seconds, self.folder = str(options.row_seconds), folder
        self.sizes = {name_of(size): size for size in sizes}

    def variant(self, name, launcher, program, *more, ours):
        def measure(case):
            size, path = str(self.sizes[case]), os.path.join(self.folder, "rows.json")
            words = [program, *more, "--min-bytes", size, "--max-bytes", size, "--seconds", self.seconds, "--json", path]
            run_once([*launcher, *words], LIMIT_S)  # fails when an element is wrong
            with open(path) as file:
                rows = json.load(file)["rows"]
            os.unlink(path)
            if len(rows) != 1:
                raise RunFailed(f"{program} measured {len(rows)} sizes instead of one")
            return {"time": rows[0]["time_us"], "rate": rows[0]["algbw_gbps"]}

        return Variant(name, measure, ours)


def claims_of(size):
    case = name_of(size)
    floor, arena, private, mpi = (Term(case, (name,), "time") for name in (FLOOR, ARENA, PRIVATE, "Open MPI"))
    yield Claim(f"{case}: the floor's time / arena's", floor, arena, at_least=FLOOR_TARGETS.get(size))
    if size >= 64 * KIB:
        yield Claim(f"{case}: Open MPI's time / arena's", mpi, arena, at_least=1)
    else:
        yield Claim(f"{case}: arena's time / Open MPI's", arena, mpi, at_most=1.5 if size == 8 else None, goal=1)
    if size >= MIB:
        yield Claim(f"{case}: Open MPI's time / private's", mpi, private, goal=1)


def make(options):
    hvdrun, ours = built(options.build, "hvdrun"), built(options.build, "collective_benchmark")
    floor, np = built(options.build, "floor_loop"), str(options.np)
    folder = tempfile.TemporaryDirectory(prefix="hvd-benchmark-")
    rows, launcher = Rows(options, folder.name), [hvdrun, "-np", np, "--"]
    variants = [
        rows.variant(FLOOR, [], floor, "-np", np, ours=True),
        rows.variant(ARENA, launcher, ours, "--memory", "arena", ours=True),
        rows.variant(PRIVATE, launcher, ours, "--memory", "private", ours=True),
    ]
    missing = {}
    if OPEN_MPI.missing():
        missing["Open MPI"] = OPEN_MPI.missing()
    else:
        program = built(options.build, "mpi_collectives.openmpi")
        variants.append(rows.variant("Open MPI", OPEN_MPI.command(options.np, []), program, ours=False))
    claims = [claim for size in SIZES for claim in claims_of(size)] if options.np == 2 else []
    return Experiment("collectives", [name_of(size) for size in SIZES], variants, claims,
                      {"time": "us", "rate": "GB/s"}, missing, close=folder.cleanup)
