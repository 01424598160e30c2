"""Control: how long a job of many hosts takes until all its ranks are in their first epoch, and hvdrun's memory."""
import json

from experiment import Experiment, RunFailed, Variant
from programs import built, environment, run_once
from samples import Claim, Term

HELP = "512 agents of 8 ranks over mutual TLS, 1,250 over sockets: until all are ready, and hvdrun's memory"
DETAILS = """\
hvdrun's server, its Membership and the messages are the real ones; the agents are simulated, all in one process of this
machine, whose CPUs they share with hvdrun: a real job's have their own. Ready is: every agent has joined, was told to
start its ranks, has said that they run and wait in init(), and was told the first epoch. Targets: 512 agents of 8 ranks
over TLS ready within 15 s, with 256 MiB in hvdrun; 10,000 ranks without TLS within 5 s."""
SAMPLES, SECONDS = 5, 200
SHAPES = {"512 agents of 8 ranks, TLS": ("512", "8", "tls"), "1250 agents of 8 ranks, sockets": ("1250", "8", "sockets")}
LIMIT_S = 120.0


def add_arguments(_parser):
    pass


def make(options):
    program = built(options.build, "control_benchmark")

    def measure(case):
        done = run_once([program, *SHAPES[case]], LIMIT_S, env=environment())[0]
        try:
            return json.loads(done)
        except ValueError as error:
            raise RunFailed(f"no result: {error}") from error

    tls, sockets = SHAPES
    claims = [
        Claim(f"{tls}: ready", Term(tls, ("hvdrun",), "ready"), at_most=15, unit=" s"),
        Claim(f"{tls}: hvdrun's memory", Term(tls, ("hvdrun",), "hvdrun memory"), at_most=256, unit=" MiB"),
        Claim(f"{sockets}: ready", Term(sockets, ("hvdrun",), "ready"), at_most=5, unit=" s"),
    ]
    return Experiment("control", list(SHAPES), [Variant("hvdrun", measure, ours=True)], claims, {"ready": "s", "hvdrun memory": "MiB"})
