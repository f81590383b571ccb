"""Open loops that end against a simulation with the same step times: ``python -m tests.bench.runs``.

Five models with prompts and answers of one length and of many, runs of 100, 300 and 1,000 requests, three
draws of each; the table gives medians (and the 90th percentile) of absolute log errors by load.
"""

from __future__ import annotations

import sys

import numpy as np
from rich.console import Console
from rich.table import Table

from optimizer.performance.arrays import Array, as_array
from optimizer.performance.serving.queueing import P99, client_overhead
from tests.performance.cases import CASES, Case, one, played, run_at

LOADS, COUNTS = (0.5, 0.9, 1.5, 4.0), (100, 300, 1000)
COLUMNS = ("tokens/s", "ITL p50", "ITL mean", "ITL p99", "TTFT p50", "TTFT mean", "TTFT p99")


def errors(case: Case, varied: bool, load: float, count: int) -> Array:
    """Logs of predicted over simulated, in the order of ``COLUMNS``."""
    lengths = case.lengths(0.8, 0.6) if varied else case.lengths()
    found, rate = run_at(case, lengths, load, count)
    run, before = played(case, lengths, rate, count), one(client_overhead(case.served()))
    predicted = [one(found.tokens_per_s)]
    predicted += [one(value) for value in (found.tpot.p50, found.tpot.mean, found.tpot.quantile(P99))]
    firsts = (found.ttft.p50, found.ttft.mean, found.ttft.quantile(P99))
    predicted += [one(value) - before for value in firsts]
    simulated = [count * case.tokens[1] / run.span]
    for times in (run.itl, run.ttft):
        simulated += [float(value) for value in (np.median(times), times.mean(), np.percentile(times, 99))]
    return as_array(np.log(np.asarray(predicted) / np.asarray(simulated)))


def main() -> int:
    """Prints the table."""
    shown = Table("of capacity", "runs", *COLUMNS)
    for load in LOADS:
        runs = [errors(case, varied, load, n) for case in CASES for varied in (False, True) for n in COUNTS]
        sizes = 100.0 * np.expm1(np.abs(np.asarray(runs)))
        cells = zip(np.median(sizes, axis=0), np.quantile(sizes, 0.9, axis=0), strict=True)
        shown.add_row(f"{load:g}", str(len(runs)), *(f"{middle:.0f} ({late:.0f})" for middle, late in cells))
    Console(width=110).print(shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
