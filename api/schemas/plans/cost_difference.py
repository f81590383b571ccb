"""Two plans side by side: cost, end, GPUs and places of each workload. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

from pydantic import BaseModel

from api.schemas.base.parts import Money
from api.schemas.base.times import Instant
from broker.domain.basics.money import ZERO
from broker.domain.planning.plan import Placement, Plan


class WorkloadDifference(BaseModel):
    """One workload in two plans; null where a plan does not place it. ``until``: when its capacity ends."""

    workload: str
    cost_usd: tuple[Money | None, Money | None]
    until: tuple[Instant | None, Instant | None]
    gpus: tuple[str | None, str | None]
    places: tuple[str | None, str | None]


class CostDifferenceForm(BaseModel):
    """The second plan against the first: ``difference_usd`` below zero means that the second is cheaper."""

    cost_usd: tuple[Money, Money]
    difference_usd: Money
    workloads: list[WorkloadDifference]


def held(placement: Placement) -> tuple[datetime, datetime]:
    """From when and until when any of its nodes is held."""
    starts, ends = zip(*((one.start, one.end) for one in placement.segments), strict=True)
    return min(starts), max(ends)


def place_of(placement: Placement) -> str:
    """Seller and place in words."""
    return f"{placement.provider} {placement.zone or placement.region}"


def compare_plans(first: Plan, second: Plan) -> CostDifferenceForm:
    """What the second plan does otherwise, workload by workload in the order of the first."""
    sides = [_by_workload(plan) for plan in (first, second)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    return CostDifferenceForm(
        cost_usd=(first.cost_usd, second.cost_usd),
        difference_usd=second.cost_usd - first.cost_usd,
        workloads=[
            WorkloadDifference(
                workload=name,
                cost_usd=(_cost(sides[0].get(name)), _cost(sides[1].get(name))),
                until=(_until(sides[0].get(name)), _until(sides[1].get(name))),
                gpus=(_gpus(sides[0].get(name)), _gpus(sides[1].get(name))),
                places=(_places(sides[0].get(name)), _places(sides[1].get(name))),
            )
            for name in names
        ],
    )


Rows = list[Placement] | None


def _by_workload(plan: Plan) -> dict[str, list[Placement]]:
    rows = defaultdict(list)
    for one in plan.placements:
        rows[one.workload].append(one)
    return dict(rows)


def _cost(rows: Rows) -> Decimal | None:
    return None if rows is None else sum((one.cost_usd for one in rows), ZERO)


def _until(rows: Rows) -> datetime | None:
    return None if rows is None else max(held(one)[1] for one in rows)


def _gpus(rows: Rows) -> str | None:
    return _joined(f"{one.gpus} {one.gpu}" for one in rows) if rows else None


def _places(rows: Rows) -> str | None:
    return _joined(place_of(one) for one in rows) if rows else None


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))
