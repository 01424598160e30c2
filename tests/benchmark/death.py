"""Death: how long after a rank's SIGKILL inside a collective all others have been told."""
import statistics

from experiment import Experiment, RunFailed, Variant
from programs import NotBuilt, built, run_once
from samples import Claim, Term

HELP = "from a rank's SIGKILL inside a call or a training step to CommFailure on every other rank"
DETAILS = """\
Ranks reduce 1 MiB without end, or train, and one is killed at a moment drawn by chance; where the others sleep, in an
allreduce if nothing else is said, it has stayed away for 1.2 s before. The time ends when the last of the others has
caught CommFailure, or in init() the Error that not all are left. Below the agent alone: hvdrun would end the survivors. Target: 250 ms while the others run or sleep; where one of them is stopped the others are
told once it has been given up on, so the 150 ms that it has to answer are added."""
SAMPLES, SECONDS = 9, 600
ROUNDS = 4  # of a sample: together longer than 0.3 s
LIMIT_S = 120.0
TARGET_MS, STOPPED_GRACE_MS = 250, 150
ALLREDUCE, STEP = "hvd", "hvd with LibTorch"
PROGRAMS = {ALLREDUCE: "death_benchmark", STEP: "death_step_benchmark"}
CASES = {  # variant, ranks, further words, at most so many milliseconds
    "np 2, killed": (ALLREDUCE, 2, [], TARGET_MS),
    "np 4, killed": (ALLREDUCE, 4, [], TARGET_MS),
    "np 4, killed while the others sleep": (ALLREDUCE, 4, ["asleep"], TARGET_MS),
    "np 3, killed beside a stopped one": (ALLREDUCE, 3, ["stopped"], TARGET_MS + STOPPED_GRACE_MS),
    "np 4, killed while the others sleep in wait()": (ALLREDUCE, 4, ["asleep", "wait"], TARGET_MS),
    "np 4, killed while the others sleep in arena_buffer()": (ALLREDUCE, 4, ["asleep", "arena_buffer"], TARGET_MS),
    "np 4, killed while the others sleep in init()": (ALLREDUCE, 4, ["asleep", "init"], TARGET_MS),
    "np 4, killed in training": (STEP, 4, [], TARGET_MS),
    "np 4, killed while the others sleep in step()": (STEP, 4, ["asleep"], TARGET_MS),
}


def add_arguments(_):
    pass


class Deaths:
    """Runs one of the programs; keeps all rounds for the remark about the worst."""

    def __init__(self, program):
        self.program = program
        self.rounds = {}

    def measure(self, case):
        _, ranks, words, _ = CASES[case]
        out, _ = run_once([self.program, str(ranks), str(ROUNDS), *words], LIMIT_S)
        found = [float(word) for word in out.split()]
        if len(found) != ROUNDS:
            raise RunFailed(f"{len(found)} rounds instead of {ROUNDS}: {self.program}")
        self.rounds.setdefault(case, []).extend(found)
        return {"median": statistics.median(found), "worst": max(found)}

    def notes(self):
        return [f"{case}: the worst of all {len(found)} rounds, noisy ones too, {max(found):.1f} ms"
                for case, found in self.rounds.items()]


def make(options):
    deaths, missing = {ALLREDUCE: Deaths(built(options.build, PROGRAMS[ALLREDUCE]))}, {}
    try:
        deaths[STEP] = Deaths(built(options.build, PROGRAMS[STEP]))
    except NotBuilt as error:  # a build without LibTorch
        missing[STEP] = str(error)
    claims = []
    for case, (variant, _, _, target_ms) in CASES.items():
        for metric in ("median", "worst"):
            text = f"{case}: {metric} of {ROUNDS} rounds"
            claims.append(Claim(text, Term(case, (variant,), metric), at_most=target_ms, unit=" ms"))
    variants = [Variant(name, one.measure, ours=True, cases=tuple(case for case, words in CASES.items() if words[0] == name))
                for name, one in deaths.items()]
    return Experiment("death", list(CASES), variants, claims, {"median": "ms", "worst": "ms"}, missing,
                      notes=lambda: [note for one in deaths.values() for note in one.notes()])
