"""What each heuristic of the search is worth: ``python -m tests.bench.ablations [--size XS] [--seeds N]``.

Every drawn instance is planned with the whole search and with one part of it switched off, in the same
seconds of the processor. A row a part: by how much cost and bound change without it, the mean and the worst
of all seeds. Positive means that the part helps. Nothing passes or fails.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from broker.catalogue import load_gpus
from broker.ports.planning import LimitClock, PlanOptions
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.placement.search import moves, solve
from optimizer.placement.search.rounds import Rounds
from optimizer.planner import JointPlanner
from tests.bench.instances import SIZES, START, make_offers, make_request

WHOLE = "the whole search"


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _columns(_search: Any, _pools: Any, columns: Any) -> Any:
    return columns


PARTS: Mapping[str, Callable[[], Any]] = {
    "one dependency group at a time (improve)": lambda: mock.patch.object(solve, "improve", _columns),
    "proofs at dual prices (converge_prices)": lambda: mock.patch.object(Rounds, "converge_prices", _nothing),
    "ruin and recreate (build_plan)": lambda: mock.patch.object(Rounds, "build_plan", _nothing),
    "groups of rivals (solve_neighbourhoods)": lambda: mock.patch.object(
        Rounds, "solve_neighbourhoods", _nothing
    ),
    "fleets beside all others (refit_fleets)": lambda: mock.patch.object(Rounds, "refit_fleets", _nothing),
    "runs with what waits (improve_dependent_runs)": lambda: mock.patch.object(
        Rounds, "improve_dependent_runs", _nothing
    ),
    "fleets planned with minimum terms": lambda: mock.patch.object(
        solve, "fleets_for_terms", return_value=[]
    ),
    "nodes free by the hour (openings)": lambda: mock.patch.object(moves, "remaining_by_hour", _nothing),
}


def planned(asked: tuple[str, int, float, str]) -> tuple[float, float]:
    """Cost and bound of one instance without one part."""
    size, seed, limit_s, part = asked
    rng = random.Random(f"{size}-{seed}")
    offers, request = make_offers(rng, SIZES[size].offers), make_request(rng, SIZES[size])
    options = PlanOptions(limit_s, 0.001, seed=1, baselines=False, workers=1, limit_clock=LimitClock.CPU)
    planner = JointPlanner(Estimator(load_gpus(), load_calibration()))
    with PARTS[part]() if part in PARTS else mock.MagicMock():
        plan = planner.plan(request, offers, START, options)
    return float(plan.objective_usd), float(plan.bound_usd or 0)


def rows(
    size: str, seeds: range, limit_s: float, jobs: int, parts: list[str]
) -> Iterator[tuple[str, list[float], list[float]]]:
    """For each part what cost more and bound less without it, as shares, by seed.

    All that is compared with one another is planned one after the other: a machine that others use as well is
    not equally fast all day.
    """
    asked = [(size, seed, limit_s, part) for seed in seeds for part in (WHOLE, *parts)]
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=fresh, max_tasks_per_child=1) as pool:
        found = dict(zip(asked, pool.map(planned, asked), strict=True))
    for part in parts:
        pairs = [(found[size, s, limit_s, part], found[size, s, limit_s, WHOLE]) for s in seeds]
        yield part, [a[0] / b[0] - 1 for a, b in pairs], [1 - a[1] / b[1] for a, b in pairs]


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ablations", description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), default="XS")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds of the processor")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", nargs="*", choices=list(PARTS), help="only these")
    wish = parser.parse_args()
    table = Table("without", "cost: mean", "worst", "bound: mean", "worst")
    seeds = range(1, wish.seeds + 1)
    for part, more, less in rows(wish.size, seeds, wish.time_limit, wish.jobs, wish.part or list(PARTS)):
        figures = (statistics.mean(more), max(more), statistics.mean(less), max(less))
        table.add_row(part, *(f"{100 * figure:+.2f} %" for figure in figures))
        print(part, *(f"{100 * figure:+.2f} %" for figure in figures), flush=True)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
