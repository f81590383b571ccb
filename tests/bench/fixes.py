"""``python -m tests.bench.fixes MARKET.json``: fixes of forty documents that cannot be placed as they stand.

Each document asks for something ordinary and one thing that no offer of the market gives. It is planned; each
fix that the plan proposes is applied to the document, which is planned again. A fix holds if its workload is
placed then. It is minimal if the document with a twentieth less of each changed number (an integer: by one at
least; a time: by an hour at least) does not place it, or only for more money than the fix tells, as some
fixes ask for more because that is much cheaper.
Nothing passes or fails; the table tells each document, and the last lines count.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from api.schemas.market.market import read_market
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_gpus
from broker.domain.basics.errors import InputError
from broker.domain.basics.money import ZERO
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Fix, Plan
from broker.domain.planning.workload import PlanRequest
from broker.domain.planning.workload_document import to_document
from broker.ports.planning import PlanOptions
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.planner import JointPlanner
from tests.json_patch import patched

LESS = 0.05
"""Share of a change that is taken back to see whether the change is minimal."""
DEARER = Decimal("1.01")
PRICE = 500_000
Document = dict[str, Any]


def _service(model: str, **changes: Any) -> Document:
    base = {
        "name": "it",
        "kind": "serving",
        "model": model,
        "traffic": {
            "shape": "flat",
            "peak_requests_per_s": 2,
            "input_tokens": 1500,
            "output_tokens": 250,
        },
        "slo": {"ttft_p95_ms": 1500, "itl_p95_ms": 60},
        "unplaced_usd": PRICE,
    }
    return base | changes


def _run(model: str, **changes: Any) -> Document:
    base = {
        "name": "it",
        "kind": "training",
        "model": model,
        "tokens": 1.5e8,
        "sequence_length": 4096,
        "global_batch_tokens": 524288,
        "deadline": "+5d",
        "unplaced_usd": PRICE,
    }
    return base | changes


def _batch(model: str, **changes: Any) -> Document:
    base = {
        "name": "it",
        "kind": "batch",
        "model": model,
        "requests": 40000,
        "input_tokens": 1200,
        "output_tokens": 300,
        "deadline": "+2d",
        "unplaced_usd": PRICE,
    }
    return base | changes


def _slo(ttft_ms: float, itl_ms: float) -> Document:
    return {"ttft_p95_ms": ttft_ms, "itl_p95_ms": itl_ms}


def documents() -> Iterator[tuple[str, Document]]:
    """Name and document of each case: seven days, one workload, one thing that is too much."""
    small, large = "Llama-3.1-8B", "Llama-3.3-70B"
    moon = {"regions": ["us-moon-*"]}
    for name, workload in (
        ("first token 20 ms, 8B", _service(small, slo=_slo(20, 60))),
        ("first token 60 ms, 70B", _service(large, slo=_slo(60, 60))),
        ("first token 5 ms, 8B", _service(small, slo=_slo(5, 40))),
        ("token 1 ms, 8B", _service(small, slo=_slo(1500, 1))),
        ("token 4 ms, 70B", _service(large, slo=_slo(1500, 4))),
        ("token 6 ms bf16, 70B", _service(large, slo=_slo(1500, 6), precisions=["bf16"])),
        ("both latencies, 8B", _service(small, slo=_slo(8, 1.5))),
        ("both latencies, 32B", _service("Qwen3-32B", slo=_slo(30, 3))),
        ("70B on one GPU at bf16", _run(large, gpus={"max": 1})),
        ("70B on two GPUs", _run(large, gpus={"max": 2})),
        ("8B on one GPU in full", _run(small, gpus={"max": 1}, tokens=4.0e10)),
        ("13 GPUs exactly", _run(small, gpus={"min": 13, "max": 13})),
        ("600 GPUs", _run(large, gpus={"min": 600, "max": 600})),
        ("23 GPUs exactly", _run(small, gpus={"min": 23, "max": 23})),
        ("deadline in 2 h, 8B", _run(small, deadline="+2h", tokens=2.0e10, gpus={"max": 16})),
        ("deadline in 6 h, 70B", _run(large, deadline="+6h", tokens=1.0e10, gpus={"max": 64})),
        ("deadline in 1 d, 64 GPUs at most", _run(large, deadline="+1d", tokens=2.0e10, gpus={"max": 64})),
        ("deadline in 3 d, 8 GPUs at most", _run(small, deadline="+3d", tokens=1.0e11, gpus={"max": 8})),
        ("long run in 7 d, 16 GPUs at most", _run(large, deadline="+6d", tokens=3.0e10, gpus={"max": 16})),
        ("starts late", _run(small, earliest_start="+4d", deadline="+98h", tokens=4.0e10, gpus={"max": 32})),
        ("batch in 1 h", _batch(large, deadline="+1h", requests=90000000)),
        ("batch in 3 h, much output", _batch(small, deadline="+3h", requests=400000000, output_tokens=900)),
        ("nowhere, 8B", _service(small, policy=moon)),
        ("nowhere, run", _run(small, policy=moon)),
        ("country without sellers", _service(small, policy={"countries": ["NZ"]})),
        ("compliance that nobody has", _service(small, policy={"compliance": ["fedramp-high"]})),
        (
            "a seller that is small",
            _service(large, policy={"providers": {"only": ["scaleway"]}}, slo=_slo(300, 5)),
        ),
        (
            "fp4 where no Blackwell is",
            _service(large, precisions=["fp4"], policy={"providers": {"only": ["lambda"]}}),
        ),
        ("fp8 run on old GPUs", _run(small, precision="fp8", policy={"providers": {"only": ["ovh"]}})),
        ("spot service", _service(small, policy={"tiers": ["spot"]})),
        ("windows for a service", _service(small, policy={"tiers": ["window"]})),
        ("seven zones in Canada", _service(small, redundancy={"zones": 7}, policy={"countries": ["CA"]})),
        ("nine zones in Finland", _service(small, redundancy={"zones": 9}, policy={"countries": ["FI"]})),
        ("worth $5, 8B", _service(small, unplaced_usd=5)),
        ("worth $20, run", _run(large, unplaced_usd=20, tokens=1.0e9)),
        ("worth $1, batch", _batch(small, unplaced_usd=1)),
        (
            "3,000 requests/s on one seller",
            _service(large, traffic=_busy(3000), policy={"providers": {"only": ["crusoe"]}}),
        ),
        ("4,000 requests/s", _service(large, traffic=_busy(4000), unplaced_usd=50_000_000)),
        (
            "quota of one GPU",
            _run(large, policy={"providers": {"only": ["lambda"]}, "quotas": {"lambda": {"gpus": 1}}}),
        ),
        (
            "quota of two GPUs, service",
            _service(
                large, policy={"providers": {"only": ["scaleway"]}, "quotas": {"scaleway": {"gpus": 1}}}
            ),
        ),
    ):
        yield name, {"team": "bench", "horizon": {"start": "tomorrow", "days": 7}, "workloads": [workload]}


def _busy(requests_per_s: float) -> Document:
    return {
        "shape": "flat",
        "peak_requests_per_s": requests_per_s,
        "input_tokens": 1500,
        "output_tokens": 250,
    }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one fix; ``minimal`` is None where no number was changed."""

    says: str
    places: bool
    minimal: bool | None
    cost_share: float | None
    """Cost of the workload in the new plan over the cost that the fix tells."""


class House:
    """Plans documents over one market."""

    def __init__(self, offers: Sequence[Offer], as_of: datetime) -> None:
        self._offers, self._as_of = offers, as_of
        self._planner = JointPlanner(Estimator(load_gpus(), load_calibration()))

    def read(self, document: Document) -> PlanRequest:
        """The request of a document at the market's instant. Raises InputError."""
        return read_workloads(json.dumps(document), source="case", base=None, now=self._as_of)

    def plan(self, request: PlanRequest, gap: float = 0.02) -> Plan:
        """The plan of a request, without what it would cost otherwise."""
        options = PlanOptions(60.0, gap, seed=1, baselines=False)
        return self._planner.plan(request, self._offers, self._as_of, options)

    def try_fix(self, request: PlanRequest, fix: Fix) -> Outcome:
        """Applies a fix, and then nearly the same fix."""
        written = to_document(request)
        document = patched(written, fix.patch)
        plan = self.plan(self.read(document))
        share = float(_cost(plan) / fix.cost_usd) if fix.cost_usd else None
        return Outcome(fix.says, not plan.unplaced, self._is_minimal(written, document, fix.cost_usd), share)

    def _is_minimal(self, written: Document, document: Document, told_usd: Decimal) -> bool | None:
        nearly = less_of(written, document)
        if nearly is None:
            return None
        try:
            plan = self.plan(self.read(nearly))
        except InputError:
            return None
        return bool(plan.unplaced) or _cost(plan) > told_usd * DEARER


def _cost(plan: Plan) -> Decimal:
    return sum((placement.cost_usd for placement in plan.placements), ZERO)


def less_of(before: Document, after: Document) -> Document | None:
    """``after`` with a twentieth less of each change of a number or time; None without one. Changes of
    integers are taken back by one at least."""
    result, changed = copy.deepcopy(after), False

    def walk(old: Any, new: Any, parent: Any, key: Any) -> None:
        nonlocal changed
        if isinstance(new, dict) and isinstance(old, dict):
            for name in new:
                walk(old.get(name), new[name], new, name)
        elif isinstance(new, list) and isinstance(old, list) and len(old) == len(new):
            for index, (one, other) in enumerate(zip(old, new, strict=True)):
                walk(one, other, new, index)
        elif old is not None and old != new and (less := _less(old, new)) is not None:
            parent[key], changed = less, True

    walk(before, result, None, None)
    return result if changed and result != before else None


def _less(old: Any, new: Any) -> Any:
    """A value between: nearer to ``old`` by a twentieth of ``new`` (a number) or of the delay (a time)."""
    if isinstance(new, bool) or isinstance(old, bool):
        return None
    if isinstance(new, int) and isinstance(old, int):
        step = max(1, round(LESS * new))
        return max(old, new - step) if new > old else min(old, new + step)
    if isinstance(new, int | float) and isinstance(old, int | float):
        return max(old, new * (1 - LESS)) if new > old else min(old, new * (1 + LESS))
    if isinstance(new, str) and isinstance(old, str):
        return _less_text(old, new)
    return None


def _less_text(old: str, new: str) -> str | None:
    """The same for a time or an amount of money."""
    try:
        was, then = datetime.fromisoformat(old), datetime.fromisoformat(new)
    except ValueError:
        return _less_amount(old, new)
    delay = then - was
    step = max(timedelta(hours=1), delay * LESS) if delay > timedelta(0) else delay * LESS
    return (then - step).isoformat()


def _less_amount(old: str, new: str) -> str | None:
    try:
        return str(max(Decimal(old), Decimal(new) * (1 - Decimal(str(LESS)))))
    except InvalidOperation:
        return None


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fixes", description=__doc__)
    parser.add_argument("market", type=Path, help="market document, as `broker offers --json` prints it")
    parser.add_argument("--only", help="cases whose names contain this")
    wish = parser.parse_args()
    market = read_market(wish.market.read_text(), source=str(wish.market))
    house, console = House(market.offers, market.as_of), Console(width=200)
    table = Table("case", "obstacle", "fix", "places", "minimal", "cost / told")
    placed, without, outcomes = 0, 0, list[Outcome]()
    for name, document in documents():
        if wish.only and wish.only not in name:
            continue
        request = house.read(document)
        plan = house.plan(request)
        if not plan.unplaced:
            placed += 1
            table.add_row(name, "placed as it is")
            continue
        (left,) = plan.unplaced
        if not left.fixes:
            without += 1
            table.add_row(name, left.reason, "none")
        for fix in left.fixes:
            one = house.try_fix(request, fix)
            outcomes.append(one)
            share = "" if one.cost_share is None else f"{one.cost_share:.2f}"
            table.add_row(name, left.reason, escape(one.says), str(one.places), str(one.minimal), share)
    console.print(table)
    numbered = [one for one in outcomes if one.minimal is not None]
    console.print(
        f"{placed} documents were placed as they are, {without} have no fix; of {len(outcomes)} fixes "
        f"{sum(one.places for one in outcomes)} place their workload; of {len(numbered)} with a number "
        f"{sum(bool(one.minimal) for one in numbered)} are minimal within {LESS:.0%}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
