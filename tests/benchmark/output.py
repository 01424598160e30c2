"""Output: two producers through hvdrun's tags into a pipe, beside the same two straight into one pipe."""
import os
import subprocess
import time

from experiment import Experiment, RunFailed, Variant
from machine import Machine, end_descendants, status_kib
from programs import OPEN_MPI, built, environment
from samples import Claim, Term
from usage import whole

HELP = "two ranks' output through the tags into a pipe, beside the same two into one pipe without a launcher"
DETAILS = """\
The rate counts the producers' own bytes. Targets: half the rate of no launcher at all with 64 KiB writes, the whole
of it with one write per 200-byte line, more than Open MPI's (--tag-output), no line torn or lost, and at most 32 MiB
resident in hvdrun. Every line is looked at in runs of their own."""
SAMPLES, SECONDS = 7, 300
LIMIT_S = 60.0
LINE_BYTES = 200
TAG_BYTES = len("[0]<stdout>:")
BLOCKS, LINES = "64 KiB writes", "a write per 200-byte line"
LOOKED_AT = "hvdrun, each line checked"
MODES = {BLOCKS: "block", LINES: "line"}


def add_arguments(parser):
    parser.add_argument("--mebibytes", type=whole, default=256, metavar="N",
                        help="what each producer writes in large pieces; a quarter of it in lines (256)")


class Producers:
    """Runs two producers in one of the ways, a consumer at their end."""

    def __init__(self, options):
        self.producer, self.consumer = built(options.build, "output_producer"), built(options.build, "output_consumer")
        self.hvdrun = built(options.build, "hvdrun")
        self.mebibytes = options.mebibytes
        self.checked_lines = 0

    def size(self, case, part=1):
        """MiB per producer, as a word, and lines of both together."""
        mebibytes = max(1, self.mebibytes // (1 if case == BLOCKS else 4) // part)
        return str(mebibytes), 2 * (mebibytes * 2**20 // LINE_BYTES)

    def direct(self, case):
        size, lines = self.size(case)
        words = [self.producer, size, MODES[case]]
        return self._run("count", lines, [(words, {"RANK": "0"}), (words, {"RANK": "1"})], 0)

    def hvd(self, case):
        size, lines = self.size(case)
        words = [self.hvdrun, "-np", "2", "--", self.producer, size, MODES[case]]
        return self._run("count", lines, [(words, {})], TAG_BYTES)

    def hvd_checked(self, case):
        size, lines = self.size(case, part=4)
        words = [self.hvdrun, "-np", "2", "--", self.producer, size, MODES[case]]
        self._run("check", lines, [(words, {})], TAG_BYTES)
        self.checked_lines += lines
        return {}

    def open_mpi(self, case):
        size, lines = self.size(case)
        words = OPEN_MPI.command(2, ["--tag-output", self.producer, size, MODES[case]])
        return self._run("count", lines, [(words, {})], None)

    def _run(self, reader, lines, commands, tag_bytes):
        """One run. `tag_bytes` of each line, or None when the launcher may write what it likes."""
        read_end, write_end = os.pipe()
        before = Machine.own_cpu_s()
        writers = [
            subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=write_end, env=environment(**more))
            for words, more in commands
        ]
        consumer = subprocess.Popen([self.consumer, reader], stdin=read_end, stdout=subprocess.PIPE, text=True)
        os.close(read_end)
        os.close(write_end)
        peak_kib = _wait(writers, commands)
        try:
            words = consumer.communicate(timeout=LIMIT_S)[0].split()
        except subprocess.TimeoutExpired:
            end_descendants()
            raise RunFailed("somebody kept the pipe open") from None
        if consumer.returncode != 0 or len(words) < 2:
            raise RunFailed(f"the reader ended with status {consumer.returncode} and {len(words)} figures")
        got, seconds = int(words[0]), float(words[1])
        _check(commands, got, lines, tag_bytes, [int(word) for word in words[2:]] if reader == "check" else None)
        giga = lines * LINE_BYTES / 1e9
        return {"rate": giga / seconds, "CPU": (Machine.own_cpu_s() - before) / giga, "resident": peak_kib / 1024}


def _wait(writers, commands):
    """Waits for the writers' ends; returns the most that the first one had resident, in KiB."""
    peak_kib, deadline_s = 0, time.monotonic() + LIMIT_S
    while any(writer.poll() is None for writer in writers):
        peak_kib = max(peak_kib, status_kib(writers[0].pid, "VmHWM"))
        if time.monotonic() > deadline_s:
            end_descendants()
            raise RunFailed(f"no end after {LIMIT_S:g} s: {' '.join(commands[0][0])}")
        time.sleep(0.02)
    for writer in writers:
        if writer.returncode != 0:
            raise RunFailed(f"exit status {writer.returncode}: {' '.join(commands[0][0])}")
    return peak_kib


def _check(commands, got, lines, tag_bytes, looked_at):
    program = " ".join(commands[0][0])
    if tag_bytes is not None and got != lines * (LINE_BYTES + tag_bytes):
        raise RunFailed(f"{got} bytes came, not {lines * (LINE_BYTES + tag_bytes)}: {program}")
    if looked_at and looked_at != [lines, 0, 0]:
        raise RunFailed(f"of {lines} lines {looked_at[0]} came, {looked_at[1]} torn, {looked_at[2]} out of order: {program}")


def make(options):
    producers = Producers(options)
    variants = [
        Variant("no launcher", producers.direct, ours=True),
        Variant("hvdrun", producers.hvd, ours=True),
        Variant(LOOKED_AT, producers.hvd_checked, ours=True),
    ]
    missing = {}
    if OPEN_MPI.missing():
        missing["Open MPI"] = OPEN_MPI.missing()
    else:
        variants.append(Variant("Open MPI", producers.open_mpi))
    claims = []
    for case, least in ((BLOCKS, 0.5), (LINES, 1.0)):
        direct, ours, mpi = (Term(case, (name,), "rate") for name in ("no launcher", "hvdrun", "Open MPI"))
        claims += [
            Claim(f"{case}: hvdrun's rate / that of no launcher", ours, direct, at_least=least),
            Claim(f"{case}: hvdrun's rate / Open MPI's", ours, mpi, at_least=1),
            Claim(f"{case}: hvdrun resident", Term(case, ("hvdrun",), "resident"), at_most=32, unit=" MiB"),
        ]
    metrics = {"rate": "GB/s", "CPU": "s/GB", "resident": "MiB"}
    return Experiment("output", list(MODES), variants, claims, metrics, missing,
                      notes=lambda: [f"{producers.checked_lines} lines looked at, a torn or lost one fails the run"])
