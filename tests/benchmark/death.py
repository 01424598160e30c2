"""Death: how long after a rank's SIGKILL inside a collective all others have been told."""
import statistics

from experiment import Experiment, RunFailed, Variant
from programs import built, run_once
from samples import Claim, Term

HELP = "from a rank's SIGKILL inside an allreduce to CommFailure on every other rank"
DETAILS = """\
Ranks reduce 1 MiB without end and one is killed at a moment drawn by chance; the time ends when the last of the others
has caught CommFailure. Below the agent alone: hvdrun would end the survivors. Target: 250 ms while the others run; where
one of them is stopped the others are told once it has been given up on, so the 150 ms that it has to answer are added."""
SAMPLES, SECONDS = 9, 200
ROUNDS = 4  # of a sample: together longer than 0.3 s
LIMIT_S = 120.0
TARGET_MS, STOPPED_GRACE_MS = 250, 150
CASES = {  # ranks, further words, at most so many milliseconds
    "np 2, killed": (2, [], TARGET_MS),
    "np 4, killed": (4, [], TARGET_MS),
    "np 3, killed beside a stopped one": (3, ["stopped"], TARGET_MS + STOPPED_GRACE_MS),
}


def add_arguments(_):
    pass


class Deaths:
    """Runs the program; keeps all rounds for the remark about the worst."""

    def __init__(self, options):
        self.program = built(options.build, "death_benchmark")
        self.rounds = {case: [] for case in CASES}

    def measure(self, case):
        ranks, words, _ = CASES[case]
        out, _ = run_once([self.program, str(ranks), str(ROUNDS), *words], LIMIT_S)
        found = [float(word) for word in out.split()]
        if len(found) != ROUNDS:
            raise RunFailed(f"{len(found)} rounds instead of {ROUNDS}: {self.program}")
        self.rounds[case] += found
        return {"median": statistics.median(found), "worst": max(found)}

    def notes(self):
        return [f"{case}: the worst of all {len(found)} rounds, noisy ones too, {max(found):.1f} ms"
                for case, found in self.rounds.items() if found]


def make(options):
    deaths = Deaths(options)
    claims = []
    for case, (_, _, target_ms) in CASES.items():
        for metric in ("median", "worst"):
            text = f"{case}: {metric} of {ROUNDS} rounds"
            claims.append(Claim(text, Term(case, ("hvd",), metric), at_most=target_ms, unit=" ms"))
    variants = [Variant("hvd", deaths.measure, ours=True)]
    return Experiment("death", list(CASES), variants, claims, {"median": "ms", "worst": "ms"}, notes=deaths.notes)
