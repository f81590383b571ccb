"""What a new look at a plan means: what may still move, what the old plan costs today, what is worth it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from broker.domain.billing import holding_cost_usd
from broker.domain.market import ChangeKind, OfferChange
from broker.domain.money import ZERO, format_usd, to_cents
from broker.domain.offer import Offer, StockLevel
from broker.domain.plan import Placement, Plan
from broker.domain.reoptimization import Move, ProposalState
from broker.domain.reservation import Reservation, ReservationState, UnitState
from broker.domain.window import Segment
from broker.domain.workload import PlanRequest, Serving, Workload, WorkloadKind


@dataclass(frozen=True, slots=True)
class Thresholds:
    """A saving is worth a move from both on: ``min_saving_usd``, and a share of the old cost."""

    min_saving_usd: Decimal = Decimal(10)
    min_saving_share: Decimal = Decimal("0.02")


def find_under_way(
    plan: Plan, reservations: Iterable[Reservation], now: datetime
) -> dict[str, datetime | None]:
    """Workloads that stay where they are, with the last end of what they hold.

    Those are runs that have begun, and everything on windows that are bought: both are sunk.
    """
    kinds = {placement.workload: placement.kind for placement in plan.placements}
    found: dict[str, datetime | None] = {}
    for reservation in reservations:
        if reservation.workload not in kinds or not _is_bought(reservation):
            continue
        moves_freely = (
            reservation.offer.window is None and kinds[reservation.workload] is WorkloadKind.SERVING
        )
        if not moves_freely and (reservation.offer.window is not None or reservation.start <= now):
            ends = [end for end in (found.get(reservation.workload), reservation.end) if end is not None]
            found[reservation.workload] = max(ends, default=None)
    return found


def _is_bought(reservation: Reservation) -> bool:
    bought = any(unit.state in (UnitState.HELD, UnitState.ORDERING) for unit in reservation.units)
    return reservation.is_open and reservation.state is not ReservationState.RELEASING and bought


def remaining_request(
    request: PlanRequest, plan: Plan, under_way: Mapping[str, datetime | None]
) -> PlanRequest:
    """``request`` without the workloads under way and without their money.

    A service that waits for a run under way starts at the end of what the run holds.
    """
    rest = tuple(_unchained(w, under_way) for w in request.workloads if w.name not in under_way)
    bound = sum((p.cost_usd for p in plan.placements if p.workload in under_way), ZERO)
    budget = None if request.budget_usd is None else request.budget_usd - bound
    return replace(request, workloads=rest, budget_usd=budget)


def _unchained(workload: Workload, under_way: Mapping[str, datetime | None]) -> Workload:
    if not isinstance(workload, Serving) or workload.starts_after is None:
        return workload
    if workload.starts_after not in under_way:
        return workload
    return replace(workload, starts_after=None, starts_at=under_way[workload.starts_after])


def remaining_cost_usd(
    placement: Placement, offers: Mapping[str, Offer], now: datetime, *, is_held: bool
) -> Decimal | None:
    """What the rest of ``placement`` costs at today's prices; None when it can no longer be bought.

    A run that has not begun is still ahead as a whole; of a fleet, what is left after ``now``.
    """
    offer = offers.get(placement.offer_id)
    bought = max((segment.nodes for segment in placement.segments), default=placement.nodes)
    if offer is None or not (is_held or _has_stock(offer, bought)):
        return None
    segments: Sequence[Segment] = placement.segments
    if placement.kind is WorkloadKind.SERVING and offer.window is None:
        segments = [replace(s, start=max(s.start, now)) for s in segments if s.end > now]
    return to_cents(holding_cost_usd(offer, segments))


def _has_stock(offer: Offer, nodes: int) -> bool:
    if offer.stock.level is StockLevel.NONE:
        return False
    return offer.stock.nodes is None or nodes <= offer.stock.nodes


def remaining_plan_cost_usd(
    plan: Plan, names: Iterable[str], offers: Mapping[str, Offer], now: datetime, held: Iterable[str]
) -> Decimal | None:
    """Today's cost of the rest of workloads ``names``; ``held``: those whose capacity we have."""
    wanted, mine = frozenset(names), frozenset(held)
    costs = [
        remaining_cost_usd(placement, offers, now, is_held=placement.workload in mine)
        for placement in plan.placements
        if placement.workload in wanted
    ]
    known = [cost for cost in costs if cost is not None]
    return sum(known, ZERO) if len(known) == len(costs) else None


def find_moves(
    old: Plan,
    new: Plan,
    offers: Mapping[str, Offer],
    prices_then: Mapping[str, Decimal],
    now: datetime,
    held: Iterable[str],
) -> tuple[Move, ...]:
    """Workloads of ``new`` that go to other offers than in ``old``. Prices are USD per node-hour."""
    moves = []
    for name in dict.fromkeys(placement.workload for placement in new.placements):
        before, after = _offers_of(old, name), _offers_of(new, name)
        if before == after:
            continue
        was = remaining_plan_cost_usd(old, [name], offers, now, held)
        cost = sum((p.cost_usd for p in new.placements_of(name)), ZERO)
        saving = ZERO if was is None else was - cost
        words = "; ".join(_price_words(key, offers, prices_then) for key in dict.fromkeys(before + after))
        if was is None:
            words += "; it can no longer be had where it was planned"
        moves.append(Move(name, before, after, saving, words))
    return tuple(moves)


def _offers_of(plan: Plan, workload: str) -> tuple[str, ...]:
    return tuple(sorted({placement.offer_id for placement in plan.placements_of(workload)}))


def _price_words(offer_id: str, offers: Mapping[str, Offer], then: Mapping[str, Decimal]) -> str:
    before = format_usd(then[offer_id]) if offer_id in then else "not on sale"
    offer = offers.get(offer_id)
    after = "gone" if offer is None else format_usd(offer.price_usd_per_node_hour)
    if before == after:
        return f"{offer_id}: {after} USD per node-hour as before"
    return f"{offer_id}: {before} → {after} USD per node-hour"


def judge(
    old: Plan,
    new: Plan,
    before_usd: Decimal | None,
    after_usd: Decimal,
    moves: Sequence[Move],
    thresholds: Thresholds,
) -> tuple[ProposalState, str]:
    """Whether ``new`` is proposed, and why. Amounts are cost and penalty of the same workloads."""
    left_out = {u.workload for u in new.unplaced} - {u.workload for u in old.unplaced}
    if left_out:
        return ProposalState.REJECTED, f"it would leave out {', '.join(sorted(left_out))}"
    if not moves:
        return ProposalState.UNCHANGED, "every workload stays where it is"
    if before_usd is None:
        return ProposalState.PROPOSED, "the plan can no longer be bought as it is"
    saving = before_usd - after_usd
    if saving <= 0:
        return ProposalState.UNCHANGED, "nothing cheaper was found"
    needed = max(thresholds.min_saving_usd, before_usd * thresholds.min_saving_share)
    if saving < needed:
        words = f"saves {format_usd(saving)} USD, a move needs {format_usd(to_cents(needed))} USD"
        return ProposalState.REJECTED, words
    return ProposalState.PROPOSED, f"saves {format_usd(saving)} of {format_usd(before_usd)} USD"


def is_touched(plan: Plan, changes: Iterable[OfferChange]) -> bool:
    """Whether changes of the market call for a new look at ``plan``.

    Any change of an offer that it uses; elsewhere what may be better now: new offers and price drops.
    """
    used = {placement.offer_id for placement in plan.placements}
    return any(change.offer_id in used or _is_chance(change) for change in changes)


def _is_chance(change: OfferChange) -> bool:
    if change.kind is ChangeKind.NEW:
        return True
    before, after = change.before_usd_per_node_hour, change.after_usd_per_node_hour
    return change.kind is ChangeKind.PRICE and before is not None and after is not None and after < before
