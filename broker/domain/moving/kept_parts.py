"""What stays of a workload that is short of nodes: its working parts are kept, and only the rest is planned
again. Pure.

The parts of a batch work independently, and so do the stretches of a run, one after the other. What a part
lacks is judged by node-hours: those that are held, or ordered later and not refused, against those that are
planned. A service has one capacity; its search starts from the offers on which it holds nodes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Protocol, TypeVar

from broker.domain.basics.money import ZERO, to_cents
from broker.domain.holding.cost_of_keeping import HeldCapacity
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.offer import Offer
from broker.domain.moving.remaining import requests_planned, tokens_of
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import Batch, PlanRequest, Serving, Training, Workload, WorkloadKind

HOUR = timedelta(hours=1)
LONGEST_LAUNCH = timedelta(minutes=30)
LEAST_MISSING = 0.01
"""A smaller share of a part's node-hours is no shortage: orders begin seconds late."""


@dataclass(frozen=True, slots=True)
class ShortWork:
    """A workload that lacks nodes: the parts that are ``kept``, their holdings, and what is ``missing``."""

    workload: Workload
    kept: tuple[Placement, ...]
    rows: tuple[HeldCapacity, ...]
    missing: tuple[Placement, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Shortages:
    """The short workloads of a plan, by name."""

    by_name: Mapping[str, ShortWork] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[HeldCapacity, ...]:
        """The holdings that are kept."""
        return tuple(row for short in self.by_name.values() for row in short.rows)

    @property
    def reasons(self) -> dict[str, str]:
        """Why each workload is planned again."""
        return {name: short.reason for name, short in self.by_name.items()}

    @property
    def kept_ids(self) -> dict[str, tuple[str, ...]]:
        """The reservations that are kept, by workload."""
        return {
            name: tuple(row.reservation_id for row in short.rows if row.reservation_id is not None)
            for name, short in self.by_name.items()
        }

    def without(self, names: Collection[str]) -> Shortages:
        """The shortages of other workloads."""
        return Shortages({name: short for name, short in self.by_name.items() if name not in names})

    def loose(self, held: Iterable[HeldCapacity]) -> tuple[HeldCapacity, ...]:
        """The holdings that may still be given up."""
        kept = self.rows
        return tuple(one for one in held if one not in kept)

    def working(self, plan: Plan) -> Plan:
        """``plan`` with the kept parts of short workloads alone."""
        return _with_parts(plan, {name: short.kept for name, short in self.by_name.items()})

    def lacking(self, plan: Plan) -> Plan:
        """``plan`` with the missing parts of short workloads alone."""
        return _with_parts(plan, {name: short.missing for name, short in self.by_name.items()})

    def joined(self, new: Plan, moved: Collection[str]) -> Plan:
        """``new``, a plan of what is missing, with the kept parts of the workloads that moved."""
        parts: dict[str, tuple[Placement, ...]] = {}
        for name, short in self.by_name.items():
            if name in moved:
                parts[name] = _in_order(short.workload, (*short.kept, *new.placements_of(name)))
        return _with_parts(new, parts)

    def rest_of(self, request: PlanRequest) -> PlanRequest:
        """``request`` with what is missing of short workloads, and the budget that kept parts leave."""
        rest = tuple(
            w if w.name not in self.by_name else _rest_of(self.by_name[w.name]) for w in request.workloads
        )
        kept = sum((part.cost_usd for short in self.by_name.values() for part in short.kept), ZERO)
        budget = None if request.budget_usd is None else request.budget_usd - kept
        return replace(request, workloads=rest, budget_usd=budget)


NO_SHORTAGES = Shortages()


def find_shortages(
    request: PlanRequest, plan: Plan, held: Iterable[HeldCapacity], now: datetime
) -> Shortages:
    """The batches and runs of which some parts are held or will be, and others are missing."""
    rows = tuple(held)
    found = {}
    for workload in request.workloads:
        mine = [one for one in rows if one.workload == workload.name and one.end > now and one.is_expected]
        placed = [p for p in plan.placements_of(workload.name) if max(s.end for s in p.segments) > now]
        if isinstance(workload, Serving) or not any(one.is_bought for one in mine):
            continue
        short = _short_of(workload, placed, mine, now)
        if short is not None:
            found[workload.name] = short
    return Shortages(found)


class HeldNodes(Protocol):
    """Nodes of an offer that are held until an end."""

    @property
    def offer(self) -> Offer:
        """The ordered offer."""
        ...

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        ...

    @property
    def ends_at(self) -> datetime | None:
        """The end of the holding."""
        ...


H = TypeVar("H", bound=HeldNodes)


def parts_held(plan: Plan, rows: Iterable[H]) -> tuple[Plan, tuple[H, ...]]:
    """``plan`` without the parts of batches and runs that ``rows`` hold already, and these rows."""
    left, kept = list(plan.placements), []
    for row in rows:
        held = next((part for part in left if _is_held_by(part, row)), None)
        if held is not None:
            left.remove(held)
            kept.append(row)
    return replace(plan, placements=tuple(left)), tuple(kept)


def _is_held_by(part: Placement, row: HeldNodes) -> bool:
    alike = (part.sized_id, part.nodes, _end_of(part)) == (row.offer.sized_id, row.nodes, row.ends_at)
    return part.kind != WorkloadKind.SERVING and alike


def on_held_offers(plan: Plan, held: Iterable[HeldCapacity], names: Collection[str]) -> Plan:
    """``plan``, of whose services ``names`` only the offers are left on which nodes are bought."""
    bought = {(one.workload, one.offer.sized_id) for one in held if one.is_bought}
    return replace(
        plan,
        placements=tuple(
            p
            for p in plan.placements
            if p.kind != WorkloadKind.SERVING or p.workload not in names or (p.workload, p.sized_id) in bought
        ),
    )


def _short_of(
    workload: Training | Batch, placed: Sequence[Placement], rows: Sequence[HeldCapacity], now: datetime
) -> ShortWork | None:
    kept: list[Placement] = []
    missing: list[Placement] = []
    used: list[HeldCapacity] = []
    for sized_id in dict.fromkeys(p.sized_id for p in placed):
        parts = sorted((p for p in placed if p.sized_id == sized_id), key=_start_of)
        there = sorted((one for one in rows if one.offer.sized_id == sized_id), key=lambda one: one.start)
        share = min(1.0, sum(_row_hours(one, now) for one in there) / sum(map(_node_hours, parts)))
        whole = share > 1 - LEAST_MISSING
        if whole and len(parts) == len(there):
            kept += map(_held_as, parts, there)
            used += there
        elif isinstance(workload, Training):
            missing += parts
        else:
            kept += _shared_out(workload, parts, there, share, now)
            used += there
            missing += [] if whole else [_part_of(part, 1 - share) for part in parts]
    if not kept or not missing or not _has_room(workload, kept):
        return None
    have, of = sum(one.nodes for one in used), sum(p.nodes for p in placed)
    reason = f"{workload.name} holds {min(have, of)} of {of} nodes; what these do not do is planned again"
    return ShortWork(workload, tuple(kept), tuple(used), tuple(missing), reason)


def _has_room(workload: Training | Batch, kept: Sequence[Placement]) -> bool:
    """Whether the workload may stand in one more part."""
    most = workload.parts if isinstance(workload, Batch) else None
    return most is None or len({part.sized_id for part in kept}) < most


def _rest_of(short: ShortWork) -> Workload:
    workload = short.workload
    if isinstance(workload, Batch):
        parts = None if workload.parts is None else workload.parts - len({p.sized_id for p in short.kept})
        return replace(workload, requests=requests_planned(workload, short.missing), parts=parts)
    if isinstance(workload, Training):
        tokens = sum(tokens_of(workload, part) for part in short.missing)
        first, last = min(map(_start_of, short.missing)), max(map(_start_of, short.missing))
        before = [_end_of(part) for part in short.kept if _start_of(part) < first]
        after = [_start_of(part) for part in short.kept if _start_of(part) > last]
        return replace(
            workload,
            tokens=min(workload.tokens, tokens),
            earliest_start=max([workload.earliest_start, *before]),
            deadline=min([workload.deadline, *after]),
        )
    return workload


def _held_as(part: Placement, row: HeldCapacity) -> Placement:
    """A part over the time for which it is held."""
    return replace(part, segments=(row.segment,), nodes=row.nodes)


def _shared_out(
    batch: Batch,
    parts: Sequence[Placement],
    rows: Sequence[HeldCapacity],
    share: float,
    now: datetime,
) -> list[Placement]:
    """A part of each holding, with its share of the requests that the held nodes answer."""
    hours, requests = sum(_row_hours(row, now) for row in rows), share * requests_planned(batch, parts)
    found = []
    for row in rows:
        like = min(parts, key=lambda p: (abs(_start_of(p) - row.start), abs(p.nodes - row.nodes)))
        part = _part_of(like, row.nodes / like.nodes)
        usd = to_cents(holding_cost_usd(row.offer, (row.segment,))) + part.transfer_usd
        answered = math.floor(requests * _row_hours(row, now) / hours)
        part = replace(part, requests=float(answered), segments=(row.segment,), nodes=row.nodes, cost_usd=usd)
        found.append(replace(part, gpus=row.nodes * row.offer.sku.gpus_per_node))
    return found


def _part_of(part: Placement, share: float) -> Placement:
    """A part with a share of its nodes and of what these do."""
    share = min(1.0, share)
    nodes = max(1, round(part.nodes * share))
    usd = to_cents(part.cost_usd * Decimal(str(share)))
    return replace(
        part,
        nodes=nodes,
        gpus=part.gpus * nodes // part.nodes,
        replicas=max(1, part.replicas * nodes // part.nodes),
        segments=tuple(replace(s, nodes=max(1, round(s.nodes * share))) for s in part.segments),
        requests=None if part.requests is None else part.requests * share,
        work_share=part.work_share * share,
        cost_usd=usd,
        paid_unused_usd=to_cents(part.paid_unused_usd * Decimal(str(share))),
        billed_ahead=part.billed_ahead if share == 1.0 else (),
    )


def _in_order(workload: Workload, parts: Iterable[Placement]) -> tuple[Placement, ...]:
    """Parts in order of time, each with its share of the work and, of a batch, its first request."""
    ordered = sorted(parts, key=_start_of)
    if not isinstance(workload, Batch):
        hours = [part.estimate.value.get("hours", 0.0) for part in ordered]
        whole = sum(hours) or 1.0
        return tuple(replace(p, work_share=h / whole) for p, h in zip(ordered, hours, strict=True))
    requests = [requests_planned(workload, (part,)) for part in ordered]
    whole, first = sum(requests) or 1.0, 0.0
    found = []
    for part, count in zip(ordered, requests, strict=True):
        found.append(replace(part, requests=count, first_request=first, work_share=count / whole))
        first += count
    return tuple(found)


def _with_parts(plan: Plan, parts: Mapping[str, Sequence[Placement]]) -> Plan:
    if not parts:
        return plan
    others = (p for p in plan.placements if p.workload not in parts)
    return replace(plan, placements=(*others, *(part for found in parts.values() for part in found)))


def _start_of(part: Placement) -> datetime:
    return min(segment.start for segment in part.segments)


def _end_of(part: Placement) -> datetime:
    return max(segment.end for segment in part.segments)


def _node_hours(part: Placement) -> float:
    return sum(segment.hours * segment.nodes for segment in part.segments)


def _row_hours(row: HeldCapacity, now: datetime) -> float:
    """Node-hours of a holding; those before it was usable count if that took no longer than launches may."""
    usable = max(row.start, row.active_since or now)
    late = usable - row.start if row.is_bought else timedelta(0)
    return (row.segment.hours - (late / HOUR if late > LONGEST_LAUNCH else 0.0)) * row.nodes
