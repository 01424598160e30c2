"""Results as a table for people and as JSON for the next comparison."""
import datetime

from machine import describe
from samples import Cell, spread


def number(value):
    """Four significant digits, never in powers of ten."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:.0f}"
    digits = 3
    while digits > 0 and abs(value) >= 10 ** (4 - digits):
        digits -= 1
    return f"{value:.{digits}f}"


def target(claim):
    words = []
    if claim.at_least is not None:
        words.append(f">= {claim.at_least:g}")
    if claim.at_most is not None:
        words.append(f"<= {claim.at_most:g}")
    if claim.goal is not None:
        words.append(f"goal {claim.goal:g}")
    return ", ".join(words)


def columns(rows, sides):
    """Rows of words in columns as wide as their widest; `sides` says for each column "<" or ">"."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(sides))]
    return ["  ".join(f"{word:{side}{width}}" for word, side, width in zip(row, sides, widths)).rstrip() for row in rows]


def _cell_rows(experiment, records, case):
    metrics = list(experiment.metrics)
    for variant in experiment.variants:
        record = records.get(Cell(case, variant.name))
        if record is None:
            continue
        row = [f"  {variant.name}"]
        for metric in metrics:
            if record.quiet and metric in record.quiet[0]:
                seen = spread(record.column(metric))
                row += [number(seen.median), f"({number(seen.low)} .. {number(seen.high)})"]
            else:
                row += ["-", ""]
        yield row + [str(len(record.quiet)), str(record.noisy), str(len(record.failures))]


def table(results):
    """All that was measured, then every claim with its verdict."""
    experiment, records = results.experiment, results.records
    head = ["median (quartiles)"]
    for metric, unit in experiment.metrics.items():
        head += [f"{metric} {unit}".strip(), ""]
    rows = [head + ["quiet", "noisy", "failed"]]
    for case in experiment.cases:
        rows.append([case] + [""] * (len(rows[0]) - 1))
        rows += _cell_rows(experiment, records, case)
    lines = columns(rows, "<" + "><" * len(experiment.metrics) + ">>>")
    rows = [["ratio of one run, median (quartiles)", "", "", "of medians", "target", "verdict"]]
    for verdict in results.verdicts():
        claim, seen = verdict.claim, verdict.spread
        rows.append([
            f"  {claim.text}",
            number(seen.median) + claim.unit if seen else "-",
            f"({number(seen.low)} .. {number(seen.high)})" if seen else "",
            number(verdict.of_medians) if verdict.of_medians is not None else "",
            target(claim),
            verdict.outcome + (f": {verdict.why}" if verdict.why else ""),
        ])
    lines += ["", *columns(rows, "<><><<")]
    lines += _remarks(results)
    return "\n".join(lines) + "\n"


def _remarks(results):
    records, experiment = results.records, results.experiment
    quiet = sum(len(record.quiet) for record in records.values())
    noisy = sum(record.noisy for record in records.values())
    lines = ["", f"{quiet} quiet samples; {noisy} left out while others used more than "
             f"{results.limit_cpus * 100:g} % of a CPU; {results.took_s:.0f} s"]
    lines += [f"{name}: left out, {why}" for name, why in experiment.missing.items()]
    for cell, record in records.items():
        if record.failures:
            last = record.failures[-1]
            lines.append(f"{cell.case} {cell.variant}: {len(record.failures)} failed runs left out, the last: {last}")
    return lines + experiment.notes()


def as_json(results):
    experiment = results.experiment
    cells = [
        {
            "case": cell.case,
            "variant": cell.variant,
            "samples": record.quiet,
            "noisy": record.noisy,
            "failures": record.failures,
        }
        for cell, record in results.records.items()
    ]
    return {
        "benchmark": experiment.name,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": describe(),
        "others_at_most_cpus": results.limit_cpus,
        "seconds": round(results.took_s, 1),
        "missing": experiment.missing,
        "notes": experiment.notes(),
        "metrics": experiment.metrics,
        "cells": cells,
        "claims": [_claim_json(verdict) for verdict in results.verdicts()],
    }


def _claim_json(verdict):
    claim = verdict.claim
    return {
        "claim": claim.text,
        "at_least": claim.at_least,
        "at_most": claim.at_most,
        "goal": claim.goal,
        "unit": claim.unit,
        "median": verdict.spread.median if verdict.spread else None,
        "quartiles": [verdict.spread.low, verdict.spread.high] if verdict.spread else None,
        "of_medians": verdict.of_medians,
        "samples": verdict.samples,
        "outcome": verdict.outcome,
        "why": verdict.why,
    }
