"""Launch: how long N copies of /bin/true take beside Open MPI's mpirun and MPICH's Hydra."""
import resource

from experiment import Experiment, Variant
from programs import HYDRA, OPEN_MPI, built, environment, run_once
from samples import Claim, Term
from usage import whole

HELP = "start and end of /bin/true at np 2 and 32, beside Open MPI's mpirun and MPICH's Hydra"
DETAILS = """\
One sample is the mean of the runs that fit into 0.15 s. Targets: at least 3 times as fast as mpirun at np 2 and 1.8 times at np 32; the
goal is Hydra's time or less. CPU time is that of the whole tree of processes. mpirun of Open MPI 4.1 hangs in many
runs of a program that ends at once: such a run is ended after 2 s, ten times what one takes, left out and counted."""
SAMPLES, SECONDS = 15, 240
# At least: what others used of less cannot be told from the kernel's ticks. Not more, since a hang spoils all of a
# sample: at np 32 two of three runs of mpirun may hang.
SAMPLE_S = 0.15
TARGETS = {2: 3.0, 32: 1.8}  # mpirun's time / ours, by number of ranks
LIMIT_S, PEER_LIMIT_S = 10.0, 2.0  # a slow run of a peer's that is left out makes the peer look faster, not us
PEER_PATIENCE = 25


def add_arguments(parser):
    parser.add_argument("--np", type=whole, nargs="+", default=[2, 32], metavar="N", help="how many ranks (2 32)")


def children_cpu_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(command, limit_s):
    def measure(case):
        words, clean, runs = command(int(case.split()[1])), environment(), 0
        cpu_s, wall_s = children_cpu_s(), 0.0
        while wall_s < SAMPLE_S:
            wall_s += run_once(words, limit_s, env=clean)[1]
            runs += 1
        return {"wall": wall_s / runs * 1e3, "CPU": (children_cpu_s() - cpu_s) / runs * 1e3}

    return measure


def make(options):
    hvdrun, true = built(options.build, "hvdrun"), ["/bin/true"]
    variants = [Variant("hvdrun", timed(lambda np: [hvdrun, "-np", str(np), *true], LIMIT_S), ours=True)]
    missing, claims, cases = {}, [], [f"np {np}" for np in options.np]
    for peer in (OPEN_MPI, HYDRA):
        if peer.missing():
            missing[peer.name] = peer.missing()
        else:
            measure = timed(lambda np, peer=peer: peer.command(np, true), PEER_LIMIT_S)
            variants.append(Variant(peer.name, measure, patience=PEER_PATIENCE))
    for np, case in zip(options.np, cases):
        ours, mpirun, hydra = (Term(case, (name,), "wall") for name in ("hvdrun", "Open MPI", "Hydra"))
        claims.append(Claim(f"{case}: mpirun's time / hvdrun's", mpirun, ours, at_least=TARGETS.get(np)))
        claims.append(Claim(f"{case}: hvdrun's time / Hydra's", ours, hydra, goal=1))
    return Experiment("launch", cases, variants, claims, {"wall": "ms", "CPU": "ms"}, missing)
