"""Benchmarks of the planner: ``python -m tests.bench [--size small|XS|S|M|L] [--seeds N] [--instance DIR]``.

A row an instance: cost, bound, gap on the total and on controllable spend (without what leaving out costs),
seconds until loaded, to the first plan and to 5, 2 and 1 %, memory, and the error of the grid. Instances are
drawn by seed (``instances.py``) or read from folders with market.json and workloads.json, each in a process
of its own, ``--jobs`` of them at a time. Figures of one machine, beside each other; nothing passes or fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from broker.catalogue import load_gpus
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from tests.bench.instances import SIZES, make_offers, make_request
from tests.bench.planning import Case, Result, measure

FILE_WIDTH = 200
NODE_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LIMITS_S = {"small": 3.0, "XS": 30.0, "S": 60.0, "M": 180.0, "L": 600.0}
"""What the aims allow each size."""


def main() -> int:
    """Prints every table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--size", nargs="*", choices=list(SIZES), help="drawn instances (default: XS)")
    parser.add_argument("--seeds", type=int, default=3, help="how many of each size")
    parser.add_argument("--instance", nargs="*", type=Path, default=[], help="folders to read instead")
    parser.add_argument("--time-limit", type=float, help="seconds (default: 3, 30, 60, 180, 600 by size)")
    parser.add_argument("--gap", type=float, default=0.01, help="relative gap at which to stop")
    parser.add_argument("--workers", type=int, help="cores that one plan may use (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="instances at a time")
    wish = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    if not wish.instance:
        console.print(estimate_table(Estimator(load_gpus(), load_calibration())))
    table = plan_table()
    results = []
    for result in run(list(cases(wish)), wish.jobs):
        results.append(result)
        table.add_row(*cells(result))
        console.print(" ".join(cells(result)), style="dim")
    console.print(table)
    console.print(summary(results))
    return 0


def cases(wish: argparse.Namespace) -> Iterator[Case]:
    """What was asked for."""
    for folder in wish.instance:
        limit = wish.time_limit or LIMITS_S.get(folder.name.rstrip("0123456789"), LIMITS_S["S"])
        yield Case(folder.name, 0, limit, wish.gap, folder, wish.workers)
    for size in wish.size or ([] if wish.instance else ["XS"]):
        for seed in range(1, wish.seeds + 1):
            yield Case(size, seed, wish.time_limit or LIMITS_S[size], wish.gap, None, wish.workers)


def run(asked: Sequence[Case], jobs: int) -> Iterator[Result]:
    """Results in the order asked; a fresh process for each, so that memory is its own."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, jobs), mp_context=fresh, max_tasks_per_child=1) as pool:
        yield from pool.map(measure, asked)


def plan_table() -> Table:
    """The empty table."""
    return Table(
        "instance", "seed", "offers", "work", "cost + penalty", "bound", "gap", "controllable", "left out",
        "read s", "loaded s", "first s", "5 % s", "2 % s", "1 % s", "whole s", "CPU s", "GB", "grid error",
    )  # fmt: skip


def cells(result: Result) -> tuple[str, ...]:
    """One row."""
    return (
        result.case.size,
        str(result.case.seed or "–"),
        f"{result.offers:,}",
        str(result.workloads),
        f"${result.total_usd:,.0f}",
        "–" if result.bound_usd is None else f"${result.bound_usd:,.0f}",
        _percent(result.gap),
        _percent(result.controllable_gap),
        str(result.left_out),
        f"{result.read_s:.1f}",
        *(_seconds(at) for at in (result.loaded_s, result.first_s, *result.within_s)),
        f"{result.whole_s:.1f}",
        f"{result.cpu_s:.1f}",
        f"{result.peak_gb:.2f}",
        f"{100 * result.grid_error:.4f} %",
    )


def summary(results: Sequence[Result]) -> str:
    """The median gap of all."""
    gaps = [result.gap for result in results if result.gap is not None]
    if not gaps:
        return "no gap is known"
    within = sum(gap <= 0.01 for gap in gaps)
    return f"median gap {_percent(statistics.median(gaps))}; {within} of {len(results)} within 1 %"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f} %"


def _seconds(at: float | None) -> str:
    return "–" if at is None else f"{at:.1f}"


def estimate_table(estimator: Estimator) -> Table:
    """How fast workloads are estimated over a whole market's kinds of nodes."""
    rng = random.Random("estimates")
    offers, request = make_offers(rng, 5_000), make_request(rng, SIZES["XS"])
    skus = tuple(dict.fromkeys(offer.sku for offer in offers))
    runs = [w for w in request.workloads if w.name.startswith("run")]
    services = [w for w in request.workloads if w.name.startswith("service")]
    table = Table("estimates", "workloads", "offers", "cells", "seconds", "workload × offer × size a second")
    began = time.perf_counter()
    training = estimator.training(runs, skus, NODE_COUNTS)  # type: ignore[arg-type]
    middle = time.perf_counter()
    serving = estimator.serving(services, skus)  # type: ignore[arg-type]
    ended = time.perf_counter()
    for name, count, cells, seconds in (
        ("training", len(runs), training.fits.size, middle - began),
        ("serving", len(services), serving.fits.size, ended - middle),
    ):
        effective = cells / len(skus) * len(offers) / seconds
        table.add_row(
            name, str(count), f"{len(offers):,}", f"{cells:,}", f"{seconds:.2f}", f"{effective:,.0f}"
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
