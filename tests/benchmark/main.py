"""scripts/benchmark: reads the command line, runs one benchmark, prints its table, judges it if asked to."""
import argparse
import json
import os
import sys

import collectives
import control
import death
import idle
import launch
import links
import network
import output
import pages
import remote
import step
from experiment import run
from machine import Machine, commit, end_descendants
from programs import ROOT, NotBuilt
from report import as_json, table
from samples import ENOUGH, QUIET_CPUS, exit_status
from usage import positive, whole

BENCHMARKS = {"launch": launch, "collectives": collectives, "links": links, "step": step, "output": output, "idle": idle, "death": death,
              "control": control, "remote": remote, "network": network}
INTRODUCTION = """\
Measures hvdrun beside others on this machine and prints ratios of one run.

All variants take turns in short samples, and a sample counts only while other programs used less than 8 % of a CPU:
close the browser, or expect to wait. Absolute times of a shared machine mean little; the ratios do, with their
quartiles. A peer's run that hangs or fails is left out and counted."""
EXAMPLES = """\
examples:
  scripts/benchmark launch                         beside mpirun and Hydra, about two minutes
  scripts/benchmark step --check                   exit status 1 when a target is missed
  scripts/benchmark collectives --json FILE        every sample, with a description of the machine
  scripts/benchmark launch --samples 3 --seconds 20   a quick look

exit status: 0 done; 1 a target was missed (--check) or a run of hvdrun's failed; 2 usage, or not built;
             3 too few quiet samples, or such as do not decide, or no peer to judge by (--check).
scripts/setup --peers installs what is compared with; scripts/build release builds the rest."""


def parse(arguments):
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("scripts/benchmark", description=INTRODUCTION, epilog=EXAMPLES, formatter_class=shape)
    subparsers = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for name, module in BENCHMARKS.items():
        one = subparsers.add_parser(name, help=module.HELP, description=f"{module.HELP}.\n\n{module.DETAILS}",
                                    formatter_class=shape)
        module.add_arguments(one)
        one.add_argument("--samples", type=whole, default=module.SAMPLES, metavar="N",
                         help=f"quiet samples of every variant ({module.SAMPLES}; below {ENOUGH} nothing is judged)")
        one.add_argument("--seconds", type=positive, default=module.SECONDS, metavar="S",
                         help=f"end after so long with what there is ({module.SECONDS})")
        one.add_argument("--json", metavar="FILE", help="write all samples and verdicts there, and the table of a page beside it")
        one.add_argument("--check", action="store_true", help="judge: exit status 1 missed, 3 not judged")
        one.add_argument("--quiet", type=positive, default=QUIET_CPUS * 100, metavar="PERCENT",
                         help=f"what others may use of one CPU ({QUIET_CPUS * 100:g}); more is for trying out")
        one.add_argument("--build", default=os.path.join(ROOT, "build", "release"), metavar="DIR",
                         help="build folder to measure (build/release)")
    options = parser.parse_args(arguments)
    if options.check and options.quiet > QUIET_CPUS * 100:
        parser.error(f"--check judges samples with others below {QUIET_CPUS * 100:g} % only: leave --quiet out")
    try:
        if options.json:
            open(options.json, "a").close()  # found now, not after all is measured
    except OSError as error:
        parser.error(f"--json {options.json}: {error.strerror}")
    return options


def show_progress(results):
    if sys.stderr.isatty():
        have = [len(record.quiet) for record in results.records.values()]
        print(f"\r{sum(have)} of {len(have) * results.wanted} quiet samples ", end="", file=sys.stderr, flush=True)


def main(arguments):
    options = parse(arguments)
    commit()  # before a run of minutes, in which somebody may go on with the sources
    try:
        machine, experiment = Machine(), BENCHMARKS[options.benchmark].make(options)
    except NotBuilt as error:
        print(f"scripts/benchmark: {error}", file=sys.stderr)
        return 2
    try:
        results = run(experiment, machine, options.samples, options.seconds, options.quiet / 100, show_progress)
    finally:
        experiment.close()
        end_descendants()
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(table(results), end="")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(as_json(results), file, indent=1)
            file.write("\n")
        pages.rewrite(options.json)
    failures = results.own_failures()
    for failure in failures:
        print(f"scripts/benchmark: a run of our own failed: {failure}", file=sys.stderr)
    return exit_status(results.verdicts(), failures, options.check)
