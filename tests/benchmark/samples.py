"""What counts and what follows from it: quiet samples, ratios of one run, claims and verdicts. Pure.

A *cell* is one variant (ours, a peer, a floor) in one case (a size, a net). Its *sample* holds what one short run
measured. All cells take turns, so the n-th quiet samples of two cells were taken close together: their ratio is a
ratio of one run. A claim is missed when the median of these ratios is short of its target, and met when the ratio of
the cells' medians reaches it, too: of a few samples that scatter either may be off, and a run with one of each decides nothing.
"""
from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import NamedTuple

QUIET_CPUS = 0.08  # what others may use of one CPU during a sample
ENOUGH = 5  # quiet samples, fewer are not judged
GIVE_UP = 3  # failed runs in a row, after which a cell is tried no more; a variant may ask for more patience

MET, MISSED, NOT_JUDGED, SHOWN = "met", "missed", "not judged", "shown"


class Cell(NamedTuple):
    case: str
    variant: str


@dataclass
class Record:
    """What is known of one cell."""

    quiet: list = field(default_factory=list)  # values by metric, in the order measured
    noisy: int = 0  # samples left out because others used the CPUs
    failures: list = field(default_factory=list)  # texts; such runs are left out too
    failures_in_a_row: int = 0
    patience: int = GIVE_UP

    def add(self, values, foreign_cpus, limit=QUIET_CPUS):
        self.failures_in_a_row = 0
        if foreign_cpus < limit:
            self.quiet.append(values)
        else:
            self.noisy += 1

    def fail(self, why):
        self.failures.append(why)
        self.failures_in_a_row += 1

    @property
    def given_up(self):
        return self.failures_in_a_row >= self.patience

    def column(self, metric):
        return [values[metric] for values in self.quiet]


class Spread(NamedTuple):
    low: float  # quartiles
    median: float
    high: float


def spread(values):
    """Median and quartiles of at least one value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(low, median, high)


@dataclass(frozen=True)
class Term:
    """One side of a ratio: a metric of a cell; of several variants the one with the least median."""

    case: str
    variants: tuple
    metric: str

    def cell(self, records):
        """The cell that is meant, or None when one that has to be compared has no sample at all."""
        cells = [Cell(self.case, variant) for variant in self.variants]
        if not all(cell in records and records[cell].quiet for cell in cells):
            return None
        return min(cells, key=lambda cell: statistics.median(records[cell].column(self.metric)))


@dataclass(frozen=True)
class Claim:
    """`over` / `under`, or `over` alone, is at least or at most something. A `goal` is shown beside it, never judged."""

    text: str
    over: Term
    under: Term | None = None
    at_least: float | None = None
    at_most: float | None = None
    goal: float | None = None
    unit: str = "x"

    @property
    def judged(self):
        return self.at_least is not None or self.at_most is not None

    def holds(self, value):
        low = self.at_least is None or value >= self.at_least
        return low and (self.at_most is None or value <= self.at_most)


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    outcome: str
    spread: Spread | None = None
    samples: int = 0
    why: str = ""  # it is not judged
    of_medians: float | None = None  # the ratio of the medians


def ratios(claim, records):
    """The ratios of the n-th quiet samples. Empty when a cell has none."""
    over = claim.over.cell(records)
    if over is None:
        return []
    numbers = records[over].column(claim.over.metric)
    if claim.under is None:
        return numbers
    under = claim.under.cell(records)
    if under is None:
        return []
    return [a / b for a, b in zip(numbers, records[under].column(claim.under.metric)) if b > 0]


def ratio_of_medians(claim, records):
    """None without a divisor, or when a cell has no sample."""
    cells = [term.cell(records) for term in (claim.over, claim.under) if term]
    if len(cells) < 2 or None in cells:
        return None
    over, under = (statistics.median(records[cell].column(term.metric))
                   for cell, term in zip(cells, (claim.over, claim.under)))
    return over / under if under > 0 else None


def judge(claim, records, missing=()):
    """The verdict on one claim. `missing` says why a variant was never run: {"Open MPI": "not installed"}."""
    found = ratios(claim, records)
    seen = spread(found) if found else None
    of_medians = ratio_of_medians(claim, records)
    if not claim.judged:
        return Verdict(claim, SHOWN, seen, len(found), of_medians=of_medians)
    for term in filter(None, (claim.over, claim.under)):
        for variant in term.variants:
            record = records.get(Cell(term.case, variant))
            if variant in missing:
                return Verdict(claim, NOT_JUDGED, why=f"{variant}: {missing[variant]}")
            if record is not None and record.given_up:
                return Verdict(claim, NOT_JUDGED, why=f"{variant} failed {record.patience} times in a row")
    if len(found) < ENOUGH:
        why = f"{len(found)} quiet samples, {ENOUGH} are needed"
        return Verdict(claim, NOT_JUDGED, seen, len(found), why, of_medians)
    met = claim.holds(seen.median)
    if met and of_medians is not None and not claim.holds(of_medians):
        why = "the ratio of the medians says otherwise; raise --samples"
        return Verdict(claim, NOT_JUDGED, seen, len(found), why, of_medians)
    return Verdict(claim, MET if met else MISSED, seen, len(found), of_medians=of_medians)


def exit_status(verdicts, own_failures, check):
    """0; 1 when a target was missed (with `check`) or a run of our own failed; 3 when something was not judged."""
    outcomes = {verdict.outcome for verdict in verdicts}
    if own_failures or (check and MISSED in outcomes):
        return 1
    return 3 if check and NOT_JUDGED in outcomes else 0
