"""Runs the cells of one benchmark in turns until each has enough quiet samples or the time is over."""
from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from samples import GIVE_UP, QUIET_CPUS, Cell, Record, judge
from machine import foreign_cpus


class RunFailed(Exception):
    """A run that hung, crashed or printed nonsense. The text says which and how."""


@dataclass(frozen=True)
class Variant:
    """One way to do the work. measure(case) makes one sample, {metric: number}, or raises RunFailed."""

    name: str
    measure: object
    ours: bool = False
    cases: tuple | None = None  # the only ones it can do; None: all
    patience: int = GIVE_UP


@dataclass
class Experiment:
    """What one benchmark compares. `missing`: variants that cannot run here, and why."""

    name: str
    cases: list
    variants: list
    claims: list
    metrics: dict  # metric: unit, the first is the one that matters
    missing: dict = field(default_factory=dict)
    notes: object = list  # makes the remarks below the table, when all is measured
    close: object = lambda: None

    def cells(self):
        pairs = itertools.product(self.cases, self.variants)
        return [Cell(case, v.name) for case, v in pairs if v.cases is None or case in v.cases]


@dataclass
class Results:
    experiment: Experiment
    records: dict
    wanted: int
    limit_cpus: float
    took_s: float = 0.0

    def verdicts(self):
        return [judge(claim, self.records, self.experiment.missing) for claim in self.experiment.claims]

    def own_failures(self):
        ours = {variant.name for variant in self.experiment.variants if variant.ours}
        return [f"{c.case} {c.variant}: {r.failures[-1]}" for c, r in self.records.items() if c.variant in ours and r.failures]


def run(experiment, machine, wanted, limit_s, limit_cpus=QUIET_CPUS, progress=lambda results: None):
    """Every cell runs once unmeasured, to warm up; then always the one with the fewest quiet samples."""
    measure = {variant.name: variant.measure for variant in experiment.variants}
    patience = {variant.name: variant.patience for variant in experiment.variants}
    fresh = {cell: Record(patience=patience[cell.variant]) for cell in experiment.cells()}
    results = Results(experiment, fresh, wanted, limit_cpus)
    records, begin_s = results.records, machine.now()
    last_tried, turn = dict.fromkeys(records, 0), itertools.count(1)

    for cell, record in records.items():
        try:
            measure[cell.variant](cell.case)
        except RunFailed as error:
            record.fail(str(error))
    while machine.now() < begin_s + limit_s:
        open_cells = [c for c, r in records.items() if len(r.quiet) < wanted and not r.given_up]
        if not open_cells:
            break
        machine.wait_until_quiet(limit_cpus, begin_s + limit_s)
        cell = min(open_cells, key=lambda c: (len(records[c].quiet), last_tried[c]))
        last_tried[cell] = next(turn)
        before = machine.usage()
        try:
            values = measure[cell.variant](cell.case)
        except RunFailed as error:
            records[cell].fail(str(error))
        else:
            records[cell].add(values, foreign_cpus(before, machine.usage()), limit_cpus)
        progress(results)
    results.took_s = machine.now() - begin_s
    return results
