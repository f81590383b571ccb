"""Benchmarks: ``python -m tests.bench [--size XS|S|M] [--seeds N] [--time-limit S]``.

Figures of one run on one machine, for reading beside each other; nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time

from rich.console import Console
from rich.table import Table

from broker.catalogue import load_gpus
from broker.domain.plan import Plan
from broker.ports import PlanOptions, Progress
from optimizer.performance.calibration import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.planner import JointPlanner
from tests.bench.instances import SIZES, START, make_offers, make_request

NODE_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def main() -> int:
    """Prints every table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="XS")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=30.0)
    wish = parser.parse_args()
    console = Console()
    estimator = Estimator(load_gpus(), load_calibration())
    console.print(estimate_table(estimator))
    console.print(plan_table(JointPlanner(estimator), wish.size, wish.seeds, wish.time_limit))
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    console.print(f"peak memory of this process: {peak_gb:.2f} GB")
    return 0


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


def plan_table(planner: JointPlanner, size: str, seeds: int, time_limit_s: float) -> Table:
    """Cost, bound and gap of each seed, and when the first plan stood."""
    table = Table(
        "size", "seed", "cost + penalty", "bound", "gap", "first plan s", "solve s", "whole s", "left out"
    )
    for seed in range(1, seeds + 1):
        rng = random.Random(f"{size}-{seed}")
        offers, request = make_offers(rng, SIZES[size].offers), make_request(rng, SIZES[size])
        seen: list[Progress] = []
        began = time.perf_counter()
        options = PlanOptions(time_limit_s=time_limit_s, baselines=False)
        plan = planner.plan(request, offers, START, options, seen.append)
        table.add_row(size, str(seed), *_plan_cells(plan, seen, time.perf_counter() - began))
    return table


def _plan_cells(plan: Plan, seen: list[Progress], seconds: float) -> tuple[str, ...]:
    first = next((p.seconds for p in seen if p.incumbent_usd is not None), None)
    return (
        f"${plan.cost_usd + plan.penalty_usd:,.0f}",
        "–" if plan.bound_usd is None else f"${plan.bound_usd:,.0f}",
        "–" if plan.gap is None else f"{100 * plan.gap:.2f} %",
        "–" if first is None else f"{first:.1f}",
        f"{plan.solve_seconds:.1f}",
        f"{seconds:.1f}",
        str(len(plan.unplaced)),
    )


if __name__ == "__main__":
    sys.exit(main())
