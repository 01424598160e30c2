"""scripts/gpu_check: reads the command line, runs the checks in turn, writes the report."""
import argparse
import os
import sys
import time

import facts
from checks import CHECKS
from place import ROOT, NotBuilt, Place
from verdicts import FAILED, judge, line, not_run, text, write

LIMIT_S = 480
INTRODUCTION = """\
Checks the backend for GPUs on a GPU of this machine: what collectives give beside what the CPU computes, with one to
four ranks, which share GPUs where these are fewer, what becomes of a job whose rank is killed, what a launch costs, whether sums go on beside
compute, examples that train, how often gradients are copied, which kernels a step has, a step's time beside torch's DDP, on several GPUs also
bandwidth, beside nccl-tests' all_reduce_perf where that is on the PATH. Reaches no network but loopback. The report,
DIR/gpu_check.txt and .json, has each check's verdict: ok, failed, or could not run, and why."""
ENDING = """\
exit status: 0 nothing failed (which may be because little could run: read the report); 1 a check failed;
             2 usage, or not built; 3 there is no GPU, or none that can be used: the report says why nothing was checked.

Checks have nothing of the caller's NCCL_, HOROVOD_ and HVD_ variables and of CUDA_LAUNCH_BLOCKING; the report names them, and
those kept that may matter.

HVD_CUDA_LIBRARY and HVD_NCCL_LIBRARY name the libraries, as for any program of hvdrun's. Where they are the stand-ins
of tests/collectives/nccl, whatever they are called, the report's first line says so: it shows nothing of a GPU then."""


def seconds(word):
    value = float(word)
    if not 0 < value < 86400:
        raise argparse.ArgumentTypeError(f"{word} is no number of seconds above 0")
    return value


def parse(arguments):
    parser = argparse.ArgumentParser("scripts/gpu_check", description=INTRODUCTION, epilog=ENDING,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", metavar="DIR", required=True, help="folder for the report, made where it is not there")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"), metavar="DIR", help="build folder to check (build/release)")
    parser.add_argument("--commit", default="", metavar="TEXT", help="what the report calls the commit where the tree is no checkout")
    parser.add_argument("--only", default="", metavar="WORDS", help="checks alone whose name holds them")
    parser.add_argument("--seconds", type=seconds, default=LIMIT_S, metavar="S", help=f"end after so long ({LIMIT_S}): a check that may take longer than what is left is not run")
    options = parser.parse_args(arguments)
    options.checks = [check for check in CHECKS if options.only in check.name]
    if not options.checks:
        parser.error(f"--only {options.only}: no check is called that; there are: {', '.join(check.name for check in CHECKS)}")
    return options


def main(arguments):
    options = parse(arguments)
    end_s = time.monotonic() + options.seconds
    try:
        place = Place(options.build)
        os.makedirs(options.output, exist_ok=True)
        found, why = facts.describe(place, options.commit)
        results = [not_run(check, why) for check in options.checks] if why else []
        write(options.output, found, results, bool(why))  # found now, not after the first check
    except (NotBuilt, OSError) as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2
    if why:
        print(f"gpu_check: {why}", file=sys.stderr)
        return 3
    for check in options.checks:
        results.append(judge(check, place, end_s - time.monotonic()))
        print(line(results[-1]), file=sys.stderr, flush=True)
        write(options.output, found, results, len(results) == len(options.checks))
    print(text(found, results, True), end="")
    return 1 if any(result.verdict == FAILED for result in results) else 0
