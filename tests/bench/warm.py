"""Planning again after prices moved: ``python -m tests.bench.warm [--size XS|S|M] [--time-limit S]``.

A first plan is made cold. Then the prices of 1 % and 10 % of the offers are multiplied by a draw from
0.7 to 1.3, and the plan is made again from the first one, without and with a cost of leaving (a share of
what each workload costs now). The answer at once is the old plan at the new prices with the old bound
carried over; then what changing single places mends (*first repair*), and the bound anew, both with
estimates and gates in their time; then the search goes on. Each row is planned by a planner that
remembers the first plan alone. Beside it the same market is planned cold, within --time-limit; *ratio* is
cold over warm seconds (of the processor, which the limits count as well unless --clock says otherwise: a
busy machine gives the same figures). Figures of one run.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from api.schemas.market.market import read_market
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_gpus
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import LimitClock, PlanOptions, Progress
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.placement.columns.carried import Past
from optimizer.placement.replan.replan import Replanned
from optimizer.placement.replan.warm import WarmStart
from optimizer.planner import JointPlanner
from tests.bench.instances import SIZES, make_offers, make_request

MOVED_SHARES = (0.01, 0.1)
LEAVING_SHARES = (0.0, 0.03)
FACTORS = (0.7, 1.3)


@dataclass(frozen=True, slots=True)
class Scene:
    """What is planned, and how long; ``planner`` made the first plan, and remembers."""

    request: PlanRequest
    offers: Sequence[Offer]
    options: PlanOptions
    estimator: Estimator
    planner: JointPlanner
    cold_limit_s: float = 30.0
    moved_shares: Sequence[float] = MOVED_SHARES


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.warm", description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="XS")
    parser.add_argument("--instance", type=Path, help="a directory with market.json and workloads.json")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--repair-limit", type=float, default=10.0)
    parser.add_argument("--moved", type=float, nargs="+", default=MOVED_SHARES, help="shares of the offers")
    parser.add_argument("--clock", type=LimitClock, choices=list(LimitClock), default=LimitClock.CPU)
    wish = parser.parse_args()
    request, offers = _instance(wish.instance, wish.size, wish.seed)
    estimator = Estimator(load_gpus(), load_calibration())
    options = PlanOptions(wish.time_limit, seed=wish.seed, baselines=False, limit_clock=wish.clock)
    planner = JointPlanner(estimator)
    old = planner.plan(request, offers, request.horizon.start, options)
    repair = replace(options, time_limit_s=wish.repair_limit)
    scene = Scene(request, offers, repair, estimator, planner, wish.time_limit, wish.moved)
    console = Console(width=220)
    console.print(f"cold: ${old.objective_usd:,.0f}, gap {_percent(old.gap)}")
    console.print(warm_table(scene, old, wish.seed))
    return 0


def _instance(folder: Path | None, size: str, seed: int) -> tuple[PlanRequest, Sequence[Offer]]:
    if folder is None:
        rng = random.Random(f"{size}-{seed}")
        offers = make_offers(rng, SIZES[size].offers)
        return make_request(rng, SIZES[size]), offers
    market = read_market((folder / "market.json").read_text(), source=str(folder))
    text = (folder / "workloads.json").read_text()
    return read_workloads(text, source=str(folder), base=None, now=market.as_of), market.offers


def warm_table(scene: Scene, old: Plan, seed: int) -> Table:
    """One row for each share of prices moved and each cost of leaving."""
    table = Table(
        "prices moved",
        "leaving",
        "at once: gap",
        "re-costed",
        "bounded anew: gap",
        "first repair",
        "repaired",
        "gap",
        "s",
        "placed elsewhere",
        "cold",
        "gap",
        "cold s",
        "ratio",
    )
    for share in scene.moved_shares:
        offers = moved(scene.offers, share, random.Random(f"moved-{seed}-{share}"))
        cold_s, cold = _cold(scene, offers)
        for leaving in LEAVING_SHARES:
            cells, warm_s = _cells(scene, offers, old, leaving)
            beside = (*cold, f"{cold_s:.1f}", f"{cold_s / warm_s:.1f}")
            table.add_row(f"{share:.0%}", f"{leaving:.0%}", *cells, *beside)
    return table


def _cold(scene: Scene, offers: Sequence[Offer]) -> tuple[float, tuple[str, str]]:
    """Processor seconds of a plan from nothing, and its cost and gap."""
    began = time.process_time()
    options = replace(scene.options, time_limit_s=scene.cold_limit_s)
    plan = JointPlanner(scene.estimator).plan(scene.request, offers, scene.request.horizon.start, options)
    return time.process_time() - began, (f"${plan.objective_usd:,.0f}", _percent(plan.gap))


def moved(offers: Sequence[Offer], share: float, rng: random.Random) -> list[Offer]:
    """A share of the offers at another price."""
    chosen = set(rng.sample(range(len(offers)), round(share * len(offers))))
    return [
        replace(o, **_repriced(o, Decimal(str(round(rng.uniform(*FACTORS), 3))))) if i in chosen else o
        for i, o in enumerate(offers)
    ]


def _repriced(offer: Offer, factor: Decimal) -> dict[str, Any]:
    found: dict[str, Any] = {
        "price_usd_per_node_hour": (offer.price_usd_per_node_hour * factor).quantize(Decimal("0.0001"))
    }
    if offer.upfront_usd is not None:
        found["upfront_usd"] = (offer.upfront_usd * factor).quantize(Decimal("0.01"))
    return found


def _twin(planner: JointPlanner) -> JointPlanner:
    """A planner with an independent copy of the cache."""
    twin = copy.copy(planner)
    twin._memo = copy.copy(planner._memo)
    twin._memo._answers, twin._memo._newest = planner._memo._answers.copy(), planner._memo._newest.copy()
    return twin


def _cells(scene: Scene, offers: Sequence[Offer], old: Plan, leaving: float) -> tuple[tuple[str, ...], float]:
    costs: defaultdict[str, Decimal] = defaultdict(Decimal)
    for placement in old.placements:
        costs[placement.workload] += placement.cost_usd
    each = {name: cost * Decimal(str(leaving)) for name, cost in costs.items()} if leaving else {}
    seen: list[Progress] = []
    twin = _twin(scene.planner)
    spent = time.process_time()
    found = twin.replan(
        scene.request,
        offers,
        scene.request.horizon.start,
        scene.options,
        WarmStart(old, leaving_usd=each, past=Past(scene.request, scene.offers)),
        seen.append,
    )
    warm_s = time.process_time() - spent
    return (*_first(seen), *_last(found, old, warm_s)), warm_s


def _first(seen: Sequence[Progress]) -> tuple[str, str, str, str]:
    found = [p for p in seen if p.incumbent_usd is not None and p.gap is not None]
    once, mended = (next((p for p in found if p.stage == stage), None) for stage in ("carried", "repaired"))
    # The bound anew is told after the repair.
    after = found[found.index(mended) :] if mended is not None else ()
    anew = next((p for p in after if p.stage == "re-costed"), None)
    return (
        "–" if once is None else f"{once.seconds:.1f} s: {_percent(once.gap)}",
        "–" if once is None else f"${once.incumbent_usd:,.0f}",
        "–" if anew is None else f"{anew.seconds:.1f} s: {_percent(anew.gap)}",
        "–" if mended is None else f"{mended.seconds:.1f} s: ${mended.incumbent_usd:,.0f}",
    )


def _last(found: Replanned, old: Plan, seconds: float) -> tuple[str, str, str, str]:
    plan = found.plan
    stood = {placement.workload for placement in old.placements}
    elsewhere = len(stood - found.kept) / max(1, len(stood))
    return (
        f"${plan.objective_usd:,.0f}",
        _percent(plan.gap),
        f"{seconds:.1f}",
        f"{elsewhere:.1%}",
    )


def _percent(gap: float | None) -> str:
    return "–" if gap is None else f"{100 * gap:.2f} %"


if __name__ == "__main__":
    sys.exit(main())
