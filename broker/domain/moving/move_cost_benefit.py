"""Cost-benefit of a move: the future cost of staying against the future cost at the new place. Pure.

Sunk cost is on neither side (``cost_of_keeping``); lateness and delay are on both. The one-time cost of the
move is separate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import ZERO, price_words, to_cents, usd_words
from broker.domain.basics.window import Segment
from broker.domain.holding.cost_of_keeping import HeldCapacity, overlap_usd, stay_usd
from broker.domain.holding.holding_orders import Intent, intents_of
from broker.domain.market.billing import holding_cost_usd
from broker.domain.market.launch_statistics import LAUNCH_PRIOR
from broker.domain.market.offer import Offer, SizedId, StockLevel
from broker.domain.moving.move_risks import find_risks
from broker.domain.moving.moving import find_change
from broker.domain.moving.moving_costs import MovingTerms, egress_usd, rework_usd, since_checkpoint, usable_at
from broker.domain.moving.reoptimization import Move, MovingCost, PriceMove
from broker.domain.planning.delay_cost import average_usd_per_hour, find_wait, later_usd
from broker.domain.planning.plan import Placement, Plan, recourses_usd
from broker.domain.planning.workload import PlanRequest, Serving, Training, Workload, WorkloadKind

HOUR = timedelta(hours=1)
PATIENCE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class PastMove:
    """An earlier move of a workload, after which its cooldown runs."""

    workload: str
    at: datetime


@dataclass(frozen=True, slots=True)
class MoveContext:
    """The inputs of a decision.

    ``request`` has the workloads that may move (``Remaining.request``); ``plan`` is in force. ``offers`` are
    those on sale now, by id; ``prices_then`` are prices when the plan was made, in USD per node-hour.
    ``must_leave`` are workloads that cannot stay as they are, with the reason; of those in ``short`` what is
    held works. ``kept`` are further reservations by workload, which stay whatever is decided.
    """

    request: PlanRequest
    plan: Plan
    held: tuple[HeldCapacity, ...]
    offers: Mapping[str, Offer] = field(hash=False)
    prices_then: Mapping[str, Decimal] = field(hash=False)
    now: datetime
    past: tuple[PastMove, ...] = ()
    must_leave: Mapping[str, str] = field(default_factory=dict, hash=False)
    short: frozenset[str] = frozenset()
    kept: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def held_by(self, workload: str) -> tuple[HeldCapacity, ...]:
        """Current and future holdings of one workload."""
        return tuple(one for one in self.held if one.workload == workload and one.end > self.now)

    def stays_at(self, held: HeldCapacity) -> Decimal | None:
        """Future cost of keeping ``held`` in USD; None if it is not bought and no longer on sale."""
        today = self.offers.get(held.offer.offer_id)
        return stay_usd(held, self.now, None if today is None else today.in_size_of(held.offer))


@dataclass(frozen=True, slots=True)
class Counted:
    """Future costs of one workload in USD: if it stays (None: it cannot), and as the new plan places it.

    ``move`` is None if nothing changes.
    """

    workload: Workload
    stay: Decimal | None
    to: Decimal
    move: Move | None


def count(situation: MoveContext, new: Plan, workload: Workload, terms: MovingTerms) -> Counted:
    """The future cost of ``workload`` if it stays, and if it goes where ``new`` places it."""
    name, held = workload.name, situation.held_by(workload.name)
    placed, old = new.placements_of(name), situation.plan.placements_of(name)
    stay = _stay(situation, workload, held, old)
    stay_delay, to_delay = _delays_usd(situation, new, workload)
    stay = None if stay is None else stay + stay_delay
    if not placed:
        stay = stay if held or old else workload.unplaced_usd or ZERO
        return Counted(workload, stay, stay or ZERO, None)
    if stay is not None and _keeps_its_place(situation, new, name):
        return Counted(workload, stay, stay, None)
    leaving, to = _going(situation, new, held, placed)
    to += _beside_bill_usd(workload, placed, situation.now) + to_delay
    return Counted(workload, stay, to, _move(situation, workload, placed, leaving, stay, to, terms))


def _keeps_its_place(situation: MoveContext, new: Plan, name: str) -> bool:
    """Whether ``new`` places a workload on the nodes that it holds or was planned on."""
    held = situation.held_by(name)
    before = _peaks((h.offer.sized_id, h.segment) for h in held) if held else None
    return _shape(new.placements_of(name)) == (before or _shape(situation.plan.placements_of(name)))


def _delays_usd(situation: MoveContext, new: Plan, workload: Workload) -> tuple[Decimal, Decimal]:
    """The additional cost of delay if the workload stays, and if it goes.

    For a service it is the cost of its own wait. Services that wait for a run and keep their place have no
    move of their own, so the run counts their cost of delay, minus the cost of the hours not held.
    """
    if isinstance(workload, Serving):
        later = _later_usd(situation.plan, new, workload, ZERO)
        return max(ZERO, -later), max(ZERO, later)
    kept = (
        _later_usd(situation.plan, new, service, _average_usd_per_hour(situation, service))
        for service in situation.request.followers(workload.name)
        if _keeps_its_place(situation, new, service.name)
    )
    later = sum(kept, ZERO)
    return max(ZERO, -later), max(ZERO, later)


def _later_usd(old: Plan, new: Plan, service: Serving, saved_usd_per_hour: Decimal) -> Decimal:
    before, after = find_wait(old, service.name), find_wait(new, service.name)
    if before is None or after is None:
        return ZERO
    return later_usd(before, after, max(ZERO, before.usd_per_hour - saved_usd_per_hour))


def _average_usd_per_hour(situation: MoveContext, service: Serving) -> Decimal:
    wait = find_wait(situation.plan, service.name)
    if wait is None:
        return ZERO
    cost = sum((p.cost_usd for p in situation.plan.placements_of(service.name)), ZERO)
    return average_usd_per_hour(cost, wait.start, service.ends_by(situation.request.horizon.end))


def leaving_usd(situation: MoveContext, terms: MovingTerms) -> dict[str, Decimal]:
    """The cost of leaving by workload, which makes a search at today's prices agree with ``count``.

    A search prices held capacity as if it were bought today. The cost of leaving is the part of that price
    that is sunk or was bought at a lower price, plus the cost of the handover.
    """
    found: dict[str, Decimal] = {}
    until = situation.now + terms.handover + LAUNCH_PRIOR.wait_hours * HOUR
    for workload in situation.request.workloads:
        held = situation.held_by(workload.name)
        if not held or workload.name in situation.must_leave.keys() - situation.short:
            continue
        stay = sum((situation.stays_at(one) or ZERO for one in held), ZERO)
        today = sum((_today_usd(one, situation) for one in held), ZERO)
        handover = sum((overlap_usd(one, situation.now, until, terms.resale_share) for one in held), ZERO)
        found[workload.name] = max(ZERO, to_cents(today - stay + handover))
    return found


def _today_usd(held: HeldCapacity, situation: MoveContext) -> Decimal:
    offer = situation.offers.get(held.offer.offer_id, held.offer).in_size_of(held.offer)
    start = max(held.start, situation.now)
    return holding_cost_usd(offer, (Segment(start, held.end, held.nodes),)) if start < held.end else ZERO


def _stay(
    situation: MoveContext, workload: Workload, held: Sequence[HeldCapacity], old: Sequence[Placement]
) -> Decimal | None:
    if workload.name in situation.must_leave:
        return None
    if held:
        costs = [situation.stays_at(one) for one in held]
    elif old:
        costs = [planned_usd(placement, situation.offers, situation.now) for placement in old]
    else:
        return workload.unplaced_usd
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    return to_cents(sum(known, ZERO)) + _beside_bill_usd(workload, old, situation.now)


def planned_usd(placement: Placement, offers: Mapping[str, Offer], now: datetime) -> Decimal | None:
    """Cost of the rest of a placement without holdings, at today's prices; None if it is not on sale.

    A run is priced as a whole, since it has not begun; a fleet only after ``now``.
    """
    offer = placement.offer_among(offers)
    most = max((segment.nodes for segment in placement.segments), default=placement.nodes)
    if offer is None or not _has_stock(offer, most):
        return None
    segments: Sequence[Segment] = placement.segments
    if placement.kind == WorkloadKind.SERVING and offer.window is None:
        segments = [replace(s, start=max(s.start, now)) for s in segments if s.end > now]
    return to_cents(holding_cost_usd(offer, segments)) + placement.transfer_usd


def _has_stock(offer: Offer, nodes: int) -> bool:
    if offer.stock.level is StockLevel.NONE:
        return False
    return offer.stock.nodes is None or nodes <= offer.stock.nodes


def _going(
    situation: MoveContext, new: Plan, held: Sequence[HeldCapacity], placed: tuple[Placement, ...]
) -> tuple[tuple[HeldCapacity, ...], Decimal]:
    """The holdings that are released if ``placed`` takes over, and the future cost after that."""
    if not held:
        return (), sum((p.cost_usd for p in placed), ZERO)
    part = replace(new, placements=placed)
    change = find_change(held, intents_of(part, situation.offers, situation.now, PATIENCE))
    kept = [situation.stays_at(one) or ZERO for one in held if one not in change.leaving]
    bought = [_cost_usd(intent) for intent in change.wanted]
    return change.leaving, to_cents(sum(kept, ZERO) + sum(bought, ZERO))


def _cost_usd(intent: Intent) -> Decimal:
    assert intent.end is not None
    return holding_cost_usd(intent.offer, (Segment(intent.start, intent.end, intent.nodes),))


def late_usd(workload: Workload, placements: Sequence[Placement]) -> Decimal:
    """Cost of lateness in USD of a run with ``placements``."""
    if not isinstance(workload, Training) or workload.late_usd_per_hour is None or not placements:
        return ZERO
    ends = (
        min(segment.start for segment in p.segments) + p.estimate.value.get("hours", 0.0) * HOUR
        for p in placements
    )
    late = max(ends) - workload.deadline
    return to_cents(workload.late_usd_per_hour * Decimal(max(0.0, late / HOUR)))


def _beside_bill_usd(workload: Workload, placements: Sequence[Placement], now: datetime) -> Decimal:
    """What counts beside the bill of ``placements`` after ``now``: lateness, and expected costs."""
    again = (p.relaunch.expected_usd_after(p.segments, now) for p in placements if p.relaunch is not None)
    return late_usd(workload, placements) + recourses_usd(placements) + sum(again, ZERO)


def _shape(placements: Iterable[Placement]) -> dict[SizedId, int]:
    """The peak number of nodes by offer and size."""
    return _peaks((p.sized_id, segment) for p in placements for segment in p.segments)


def _peaks(parts: Iterable[tuple[SizedId, Segment]]) -> dict[SizedId, int]:
    steps: dict[SizedId, list[tuple[datetime, int]]] = {}
    for key, segment in parts:
        steps.setdefault(key, []).extend(((segment.start, segment.nodes), (segment.end, -segment.nodes)))
    peaks = {}
    for key, found in steps.items():
        level = peak = 0
        for _, step in sorted(found):
            level += step
            peak = max(peak, level)
        peaks[key] = peak
    return peaks


def _move(
    situation: MoveContext,
    workload: Workload,
    placed: Sequence[Placement],
    leaving: Sequence[HeldCapacity],
    stay: Decimal | None,
    to: Decimal,
    terms: MovingTerms,
) -> Move:
    now, offers, held = situation.now, situation.offers, situation.held_by(workload.name)
    old = situation.plan.placements_of(workload.name)
    cost, rework = _cost(situation, workload, placed, leaving, terms)
    here = {one.offer.offer_id for one in held} or {p.offer_id for p in old}
    there = {p.offer_id for p in placed}
    prices = tuple(price_move(key, situation) for key in (*sorted(here), *sorted(there - here)))
    words = "; ".join(_price_words(price) for price in prices)
    if stay is None:
        words += (
            f"; {situation.must_leave.get(workload.name, 'it can no longer be had where it was planned')}"
            f"; {_more_words(to - rework + cost.total_usd - _as_ordered_usd(situation, workload, held, old))}"
        )
    zones = len({(p.provider, p.zone or p.region) for p in old})
    stays = (one.reservation_id for one in held if one not in leaving)
    return Move(
        workload=workload.name,
        from_offers=tuple(sorted(here)),
        to_offers=tuple(sorted(there)),
        saving_usd=ZERO if stay is None else stay - (to - rework),
        why=words,
        stay_usd=stay,
        cost=cost,
        prices=prices,
        risks=find_risks(placed, offers, now, zones_before=zones),
        leaves=tuple(one.reservation_id for one in leaving if one.reservation_id is not None),
        keeps=(*situation.kept.get(workload.name, ()), *(key for key in stays if key is not None)),
    )


def _cost(
    situation: MoveContext,
    workload: Workload,
    placed: Sequence[Placement],
    leaving: Sequence[HeldCapacity],
    terms: MovingTerms,
) -> tuple[MovingCost, Decimal]:
    """The one-time cost of the move, and its rework, which the cost at the new place already includes."""
    now, held = situation.now, situation.held_by(workload.name)
    until = usable_at(placed, situation.offers, now, terms)
    overlap = sum((overlap_usd(one, now, until, terms.resale_share) for one in leaving), ZERO)
    began = [one.active_since for one in leaving if one.active_since is not None and one.is_in_use(now)]
    rework = ZERO
    if not isinstance(workload, Serving) and began:
        rework = rework_usd(since_checkpoint(workload, min(began), until, terms), placed)
    egress = egress_usd(workload, [one for one in held if one.is_bought], placed, terms)
    return MovingCost(to_cents(overlap), rework, egress), rework


def price_move(offer_id: str, situation: MoveContext) -> PriceMove:
    """An offer's price when the plan was made and now."""
    offer = situation.offers.get(offer_id)
    after = None if offer is None else offer.price_usd_per_node_hour
    return PriceMove(offer_id, situation.prices_then.get(offer_id), after)


def _as_ordered_usd(
    situation: MoveContext, workload: Workload, held: Sequence[HeldCapacity], old: Sequence[Placement]
) -> Decimal:
    """The cost that the rest of a workload would have had, as ordered, else as planned."""
    beside = _beside_bill_usd(workload, old, situation.now)
    if held:
        return beside + to_cents(sum((stay_usd(one, situation.now, one.offer) or ZERO for one in held), ZERO))
    return beside + sum((placement.cost_usd for placement in old), ZERO)


def _more_words(more_usd: Decimal) -> str:
    if not to_cents(more_usd):
        return "it costs the same elsewhere"
    return f"it costs {usd_words(abs(more_usd))} {'more' if more_usd > 0 else 'less'} elsewhere"


def _price_words(price: PriceMove) -> str:
    if price.after_usd is None:
        was = "" if price.before_usd is None else f" (it was {price_words(price.before_usd)} a node-hour)"
        return f"{price.offer_id}: no longer offered{was}"
    after = price_words(price.after_usd)
    if price.before_usd is None:
        return f"{price.offer_id}: offered at {after} a node-hour"
    before = price_words(price.before_usd)
    if before == after:
        return f"{price.offer_id}: price unchanged at {after} a node-hour"
    return f"{price.offer_id}: {before} → {after} a node-hour"
