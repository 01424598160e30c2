"""What comes of checks: each is ok, failed, or could not run and why; the report of all, as text and JSON."""
import json
import os
import time
from typing import Callable, NamedTuple

OK, FAILED, COULD_NOT_RUN = "ok", "failed", "could not run"
STAND_INS = "gpu_check over STAND-INS of CUDA and NCCL: nothing of this ran on a GPU, it is no evidence of anything but the script"


class Failed(Exception):
    """What was seen instead of what should be."""


class CouldNotRun(Exception):
    """What is missing here."""


class Check(NamedTuple):
    name: str
    deadline_s: float
    run: Callable  # with the Place; returns what to note, a line; raises Failed or CouldNotRun


class Result(NamedTuple):
    name: str
    verdict: str
    note: str
    took_s: float


def need(condition, what):
    if not condition:
        raise Failed(what)


def not_run(check, why):
    return Result(check.name, COULD_NOT_RUN, " ".join(why.split()), 0.0)


def judge(check, place, left_s):
    """Runs a check that fits in what is left of the whole run's time, within its deadline."""
    if left_s < check.deadline_s:
        return not_run(check, f"it may take {check.deadline_s:g} s, and {max(left_s, 0):.0f} s are left")
    begin_s = time.monotonic()
    place.begin(check.deadline_s)
    try:
        verdict, note = OK, check.run(place)
    except Failed as error:
        verdict, note = FAILED, str(error)
    except CouldNotRun as error:
        verdict, note = COULD_NOT_RUN, str(error)
    except Exception as error:  # the others still have to run
        verdict, note = FAILED, f"{type(error).__name__}: {error}"
    left = place.end_all()
    if left and verdict == OK:
        verdict, note = FAILED, f"left running: {', '.join(left)}"
    return Result(check.name, verdict, " ".join(note.split()), round(time.monotonic() - begin_s, 1))


def line(result):
    note = f": {result.note}" if result.note else ""
    return f"{result.verdict:13}  {result.name}{note} ({result.took_s:g} s)"


def is_evidence(facts, results):
    """Of a GPU: something has run on one."""
    return not facts["stand_ins"] and any(one.verdict == OK for one in results)


def first_line(facts, said):
    if facts["stand_ins"]:
        return f"{STAND_INS}\n{said}"
    return f"gpu_check on {facts['device']}: {said}" if "device" in facts else f"gpu_check: nothing was checked: {said}"


def text(facts, results, complete):
    count = {verdict: sum(one.verdict == verdict for one in results) for verdict in (OK, FAILED, COULD_NOT_RUN)}
    said = ", ".join(f"{number} {verdict}" for verdict, number in count.items()) + ("" if complete else "; not all were reached")
    rows = [f"{name.replace('_', ' '):19}  {shown(value)}" for name, value in facts.items() if name != "stand_ins"]
    return "\n".join([first_line(facts, said), "", *rows, "", *map(line, results)]) + "\n"


def shown(value):
    return (", ".join(value) or "none") if isinstance(value, list) else str(value)


def write(folder, facts, results, complete):
    """Anew after each check: what is cut off leaves what it has come to."""
    content = {"evidence": is_evidence(facts, results), "complete": complete, **facts, "checks": [one._asdict() for one in results]}
    for name, written in (("gpu_check.txt", text(facts, results, complete)), ("gpu_check.json", json.dumps(content, indent=1) + "\n")):
        with open(os.path.join(folder, name), "w") as file:
            file.write(written)
