"""Speed of the performance core: ``python -m tests.bench.performance [--offers N] [--llm-analysis PYTHON]``.

CPU seconds of one core, the best of some repeats; figures of one run on one machine, for reading beside each
other. Nothing here passes or fails. ``--llm-analysis``: the Python of an environment that has llm-analysis.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.estimate import Estimate
from broker.domain.market.sku import Sku
from broker.domain.planning.workload import Serving, Training
from optimizer.calibration.own.predictions import predict_rows
from optimizer.calibration.tables.rows import is_serving
from optimizer.memo_cache import MemoCache
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator, ServingTable, TrainingTable
from tests.bench.calibration.bundled import bundled_rows
from tests.bench.company import Market, draw_market
from tests.bench.estimator_peers import peer_table
from tests.bench.instances import Size, make_request

NODE_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SINGLE_CASES = 200
TABLE_WIDTH = 110
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Singles:
    """Single estimates a second: a given layout, and the best of all layouts."""

    training: float
    serving: float
    searched_training: float
    searched_serving: float


@dataclass(frozen=True, slots=True)
class Line:
    """Candidates of one kind of workload, how many were evaluated, seconds of estimates and prices."""

    name: str
    workloads: int
    candidates: int
    evaluated: int
    estimate_s: float
    price_s: float

    def cells(self) -> tuple[str, ...]:
        """With rates: evaluated over estimates, effective over estimates and prices."""
        return (
            self.name,
            f"{self.workloads}",
            f"{self.candidates / 1e6:,.1f}",
            f"{self.evaluated / 1e6:,.3f}",
            f"{self.estimate_s:.3f}",
            f"{self.price_s:.3f}",
            f"{self.evaluated / self.estimate_s / 1e6:,.1f}",
            f"{self.candidates / (self.estimate_s + self.price_s) / 1e6:,.0f}",
        )


def main() -> int:
    """Prints every table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.performance", description=__doc__)
    parser.add_argument("--offers", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--services", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--llm-analysis", metavar="PYTHON", help="a Python that has llm-analysis installed")
    wish = parser.parse_args()
    console = Console(width=TABLE_WIDTH)
    estimator = Estimator(load_gpus(), load_calibration())
    market = draw_market(random.Random(wish.seed), wish.offers)
    request = make_request(random.Random(wish.seed), Size(wish.runs, wish.services, 0))
    runs = [w for w in request.workloads if isinstance(w, Training)]
    services = [w for w in request.workloads if isinstance(w, Serving)]
    console.print(market_table(estimator, runs, services, market, wish.repeats))
    singles = single_rates(estimator, runs, services, market, wish.repeats)
    console.print(single_table(singles))
    console.print(rows_table(wish.repeats))
    console.print(peer_table(singles.training, singles.serving, wish.llm_analysis))
    return 0


def best_of(repeats: int, work: Callable[[], T]) -> tuple[float, T]:
    """Least CPU seconds of ``work``, and what it gives."""
    seconds = np.inf
    for _ in range(repeats):
        began = time.process_time()
        result = work()
        seconds = min(seconds, time.process_time() - began)
    return seconds, result


def market_table(
    estimator: Estimator,
    runs: Sequence[Training],
    services: Sequence[Serving],
    market: Market,
    repeats: int,
) -> Table:
    """A whole market: every workload on every offer in every layout, down to USD a run and a request."""
    table = Table(
        "whole market",
        "workloads",
        "candidates M",
        "evaluated M",
        "estimates s",
        "prices s",
        "evaluated M/s",
        "effective M/s",
        title=f"{market.sku_of.size:,} offers of {market.sku_of_kind.size} kinds of hardware",
        caption="candidate: workload × offer × layout (node count and degrees; number format and degrees); "
        "evaluated: distinct ones, as offers of one hardware, workloads of one physics share an evaluation; "
        "effective: all candidates over estimates and prices, each offer priced in USD a run or a request",
    )
    train_s, trained = best_of(repeats, lambda: estimator.training(runs, market.skus, NODE_COUNTS))
    serve_s, served = best_of(repeats, lambda: estimator.serving(services, market.skus))
    price_runs_s, _ = best_of(repeats, lambda: run_prices(trained, len(runs), market))
    price_requests_s, _ = best_of(repeats, lambda: request_prices(served, market))
    lines = [
        Line("training", len(runs), *_counts(trained, runs, market), train_s, price_runs_s),
        Line("serving", len(services), *_counts(served, services, market), serve_s, price_requests_s),
    ]
    sums = [sum(getattr(line, field.name) for line in lines) for field in fields(Line)[1:]]
    for line in (*lines, Line("both", *sums)):
        table.add_row(*line.cells())
    return table


def run_prices(table: TrainingTable, count: int, market: Market) -> NDArray[np.float64]:
    """USD [W, O] of a whole run on each offer, at the cheapest node count."""
    nodes = table.node_counts.astype(np.float64)
    node_hours = (table.hours * nodes).min(axis=2)
    usd = node_hours[:, market.sku_of] * market.usd_per_node_hour
    spot = np.flatnonzero(market.interruptions_per_hour > 0)
    skus, rates = market.sku_of[spot], market.interruptions_per_hour[spot]
    for w in range(count):
        hours = np.full((spot.size, nodes.size), np.inf)
        offer, size = np.nonzero(table.fits[w, skus])
        hours[offer, size] = table.hours_at_each(w, skus[offer], size, rates[offer]) * nodes[size]
        usd[w, spot] = hours.min(axis=1) * market.usd_per_node_hour[spot]
    return cast("NDArray[np.float64]", usd)


def request_prices(table: ServingTable, market: Market) -> NDArray[np.float64]:
    """USD [W, O] of a request on each offer, in the cheapest configuration at its full rate."""
    gpus = np.asarray([config.gpus_per_replica for config in table.configs], dtype=np.float64)
    per_node = np.asarray([sku.gpus_per_node for sku in market.skus], dtype=np.float64)
    per_gpu_s = (table.requests_per_s / gpus).max(axis=2)
    with np.errstate(divide="ignore"):
        node_hours = 1.0 / (3600.0 * per_gpu_s * per_node)
    return cast("NDArray[np.float64]", node_hours[:, market.sku_of] * market.usd_per_node_hour)


def _counts(
    table: TrainingTable | ServingTable, workloads: Sequence[Training | Serving], market: Market
) -> tuple[int, int]:
    """Candidates of all workloads and offers; those of distinct workloads and kinds of hardware."""
    first: dict[object, int] = {}
    for index, w in enumerate(workloads):
        first.setdefault(_physics_of(w), index)
    distinct = np.ix_(np.asarray(list(first.values())), market.sku_of_kind)
    return int(table.candidates[:, market.sku_of].sum()), int(table.candidates[distinct].sum())


def _physics_of(workload: Training | Serving) -> object:
    w = workload
    if isinstance(w, Training):
        return w.model, w.sequence_length, w.global_batch_tokens, w.precision
    return w.model, w.traffic.input_tokens, w.traffic.output_tokens, w.slo, w.precisions


def single_rates(
    estimator: Estimator,
    runs: Sequence[Training],
    services: Sequence[Serving],
    market: Market,
    repeats: int,
) -> Singles:
    """Full estimates, one question at a time, none remembered; cases drawn from those that fit."""
    fresh = Estimator(estimator.gpus, estimator.calibration, memo=MemoCache(0))
    rng = np.random.default_rng(1)
    trained = estimator.training(runs, market.skus, NODE_COUNTS)
    served = estimator.serving(services, market.skus)
    given = [
        (runs[w], market.skus[s], NODE_COUNTS[n], trained.layout(w, s, n)) for w, s, n in _drawn(rng, trained)
    ]
    configured = [
        (services[w], market.skus[s], served.configs[c].precision, served.layout(w, s, c), 20.0)
        for w, s, c in _drawn(rng, served)
    ]

    def searched_run(run: Training, sku: Sku, nodes: int) -> Estimate:
        return estimator.training([run], [sku], [nodes]).estimate(0, 0, 0)

    def searched_service(service: Serving, sku: Sku) -> Estimate:
        found = estimator.serving([service], [sku])
        return found.estimate(0, 0, int(np.argmax(found.requests_per_s[0, 0])), 20.0)

    return Singles(
        _rate(repeats, fresh.training_at, given),
        _rate(repeats, fresh.serving_at, configured),
        _rate(repeats, searched_run, [case[:3] for case in given]),
        _rate(repeats, searched_service, [case[:2] for case in configured]),
    )


def _drawn(rng: np.random.Generator, table: TrainingTable | ServingTable) -> list[list[int]]:
    found = np.argwhere(table.fits)
    return cast("list[list[int]]", found[rng.integers(0, len(found), SINGLE_CASES)].tolist())


def _rate(repeats: int, question: Callable[..., object], cases: Sequence[tuple[object, ...]]) -> float:
    """Answers per CPU second."""
    seconds, _ = best_of(repeats, lambda: [question(*case) for case in cases])
    return len(cases) / seconds


def single_table(singles: Singles) -> Table:
    """One workload on one SKU, to a full estimate with breakdown and interval."""
    table = Table("single full estimates a second", "training", "serving")
    table.add_row("given layout", f"{singles.training:,.0f}", f"{singles.serving:,.0f}")
    table.add_row(
        "best of all layouts", f"{singles.searched_training:,.0f}", f"{singles.searched_serving:,.0f}"
    )
    return table


def rows_table(repeats: int) -> Table:
    """Rows of published tables, as ``broker perf predict`` answers them (reading and writing files aside)."""
    table = Table("predicted rows", "rows", "seconds", "rows/s")
    rows = bundled_rows()
    for name, some in (
        ("training", [row for row in rows if not is_serving(row)]),
        ("serving", [row for row in rows if is_serving(row)]),
    ):
        seconds, _ = best_of(
            repeats, partial(predict_rows, some, load_calibration(), load_gpus(), load_models())
        )
        table.add_row(name, f"{len(some):,}", f"{seconds:.2f}", f"{len(some) / seconds:,.0f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
