"""From plans and reservations to charges, to the cent.

A placement and its reservations are rounded once, together, so that a plan that is held as planned
costs exactly what it said. Windows are owed in full from their purchase and shown over their days;
the rest is owed up to now and expected until its end.

Leaving a window early changes its bill by its seller's terms: nothing (``never``), all of it until its
start (``until``), the hours that are left (``any_time``), what a buyer paid for the rest (``resell``). What
a seller gives back or charges for leaving is a charge of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.billing import holding_cost_usd, spread_by_day
from broker.domain.money import ZERO, split_cents, to_cents
from broker.domain.offer import CancelRule
from broker.domain.plan import Plan
from broker.domain.reservation import Reservation, Unit, UnitState
from broker.domain.spend import Charge, ChargeBasis
from broker.domain.window import Segment, Window
from broker.domain.workload import WorkloadKind

SHORTEST = timedelta(seconds=1)


def plan_charges(plan: Plan, team: str, plan_id: str) -> tuple[Charge, ...]:
    """What ``plan`` is expected to cost, day by day; sums to its cost exactly."""
    return tuple(
        Charge(
            window=window,
            team=team,
            workload=placement.workload,
            kind=placement.kind,
            provider=placement.provider,
            sku=placement.sku,
            tier=placement.tier,
            usd=usd,
            basis=ChargeBasis.PROJECTED,
            plan_id=plan_id,
        )
        for placement in plan.placements
        for window, usd in spread_by_day(placement.cost_usd, placement.segments)
    )


@dataclass(frozen=True, slots=True)
class Stretch:
    """One unit's time on the bill; ``owed`` when it is due whatever happens next. ``usd`` is exact."""

    reservation: Reservation
    unit: Unit
    segment: Segment
    usd: Decimal
    owed: bool


def _stretches(reservation: Reservation, now: datetime) -> Iterator[Stretch]:
    for unit in reservation.units:
        segment = _billed_segment(reservation, unit, now)
        if segment is not None:
            terms = reservation.offer.window
            bought = terms is not None and not terms.waits and unit.reference is not None
            owed = bought or unit.state is UnitState.GONE
            cost_usd = _bill_usd(reservation, unit, segment)
            yield Stretch(reservation, unit, segment, cost_usd, owed)


def _bill_usd(reservation: Reservation, unit: Unit, segment: Segment) -> Decimal:
    """What the seller billed for a whole window, where it says so; else what the offer's price makes.

    A contract's price stands against the seller's list, so it counts for more than what the list billed.
    """
    offer, whole = reservation.offer, (reservation.start, reservation.end)
    if unit.paid_usd is not None and offer.contract is None and (segment.start, segment.end) == whole:
        return unit.paid_usd
    return holding_cost_usd(offer, (segment,))


def _billed_segment(reservation: Reservation, unit: Unit, now: datetime) -> Segment | None:
    bought = unit.reference is not None
    if unit.state is UnitState.GONE and (not bought or unit.paid_usd == ZERO):
        return None
    if not bought and not reservation.is_open:
        return None
    if reservation.offer.window is not None and reservation.offer.window.waits:
        return _waiting_segment(reservation, unit, now)
    start, end = reservation.start, _billed_end(reservation, unit, now)
    if reservation.offer.window is None and unit.ordered_at is not None:
        start = unit.began_at or max(start, unit.ordered_at) if bought else start
    if end is None:
        return None
    return Segment(start, max(end, start + SHORTEST), unit.nodes)


def _waiting_segment(reservation: Reservation, unit: Unit, now: datetime) -> Segment | None:
    """What began when capacity appeared is billed from then on; what still waits is expected to."""
    granted, gone_at = reservation.granted, unit.gone_at or reservation.released_at
    if granted is None:
        if unit.state is UnitState.GONE or reservation.end is None or not reservation.is_open:
            return None
        start = max(reservation.start, now)
        return Segment(start, start + (reservation.end - reservation.start), unit.nodes)
    end = granted.end if gone_at is None else min(gone_at, granted.end)
    return Segment(granted.start, max(end, granted.start + SHORTEST), unit.nodes)


def _billed_end(reservation: Reservation, unit: Unit, now: datetime) -> datetime | None:
    """When the unit's bill ends; None when nothing is billed."""
    gone_at = unit.gone_at or reservation.released_at
    if reservation.offer.window is not None and reservation.end is not None:
        cancel = reservation.offer.window.cancel
        if gone_at is None or cancel in (CancelRule.NEVER, CancelRule.RESELL):
            return reservation.end
        if cancel is CancelRule.UNTIL:
            return None if gone_at < reservation.start else reservation.end
        return None if gone_at < reservation.start else min(gone_at, reservation.end)
    if unit.state is UnitState.GONE:
        return gone_at or now
    if unit.reference is None:
        return reservation.end
    return now if reservation.end is None else max(now, reservation.end)


def owed_usd(reservations: Iterable[Reservation], now: datetime) -> Decimal:
    """What ``reservations`` have cost up to ``now``, minimum terms and bought windows in full."""
    charges = reservation_charges(tuple(reservations), {}, now)
    return sum((charge.usd for charge in charges if charge.basis is ChargeBasis.ACTUAL), ZERO)


def reservation_charges(
    reservations: Sequence[Reservation], kinds: Mapping[str, WorkloadKind], now: datetime
) -> tuple[Charge, ...]:
    """Charges of everything that was bought or is to be bought, rounded once per placement.

    ``kinds``: the kind of each workload by name, where it is known.
    """
    charges = (
        charge
        for stretch, usd in rounded_stretches(reservations, now)
        for charge in _charges(stretch, usd, kinds, now)
    )
    return (*charges, *(credit for row in reservations for credit in _credits(row, kinds)))


def rounded_stretches(
    reservations: Sequence[Reservation], now: datetime
) -> tuple[tuple[Stretch, Decimal], ...]:
    """Every stretch with its share, in whole cents, of its placement's rounded cost.

    ``reservations`` must hold all of a plan, or none of it: a placement is rounded once.
    """
    groups: defaultdict[tuple[str, ...], list[Stretch]] = defaultdict(list)
    for reservation in reservations:
        groups[_placement_key(reservation)].extend(_stretches(reservation, now))
    return tuple(
        pair
        for stretches in groups.values()
        if stretches
        for pair in zip(stretches, _shares([stretch.usd for stretch in stretches]), strict=True)
    )


def credits_of(reservation: Reservation) -> Iterator[tuple[Unit, datetime, Decimal]]:
    """What leaving windows early gave back (below zero: cost), by unit, at the instant of leaving."""
    for unit in reservation.units:
        left_at = unit.gone_at or reservation.released_at
        if unit.credit_usd and left_at is not None:
            yield unit, left_at, to_cents(unit.credit_usd)


def _credits(reservation: Reservation, kinds: Mapping[str, WorkloadKind]) -> Iterator[Charge]:
    for _, left_at, usd in credits_of(reservation):
        window = Window(left_at, left_at + SHORTEST)
        yield _charge(reservation, kinds, window, -usd, ChargeBasis.ACTUAL)


def _shares(exact: Sequence[Decimal]) -> tuple[Decimal, ...]:
    return split_cents(to_cents(sum(exact, ZERO)), exact)


def _placement_key(reservation: Reservation) -> tuple[str, ...]:
    if reservation.plan_id is None:
        return (reservation.reservation_id,)
    return (reservation.plan_id, reservation.offer.offer_id, reservation.workload or "")


def _charges(
    stretch: Stretch, usd: Decimal, kinds: Mapping[str, WorkloadKind], now: datetime
) -> Iterator[Charge]:
    for segment, basis, part_usd in parts_of(stretch, usd, now):
        for window, day_usd in spread_by_day(part_usd, (segment,)):
            yield _charge(stretch.reservation, kinds, window, day_usd, basis)


def _charge(
    reservation: Reservation,
    kinds: Mapping[str, WorkloadKind],
    window: Window,
    usd: Decimal,
    basis: ChargeBasis,
) -> Charge:
    return Charge(
        window=window,
        team=reservation.team,
        workload=reservation.workload or "-",
        kind=kinds.get(reservation.workload or ""),
        provider=reservation.offer.provider,
        sku=reservation.offer.sku.name,
        tier=reservation.offer.tier,
        usd=usd,
        basis=basis,
        plan_id=reservation.plan_id,
        reservation_id=reservation.reservation_id,
    )


def parts_of(
    stretch: Stretch, usd: Decimal, now: datetime
) -> tuple[tuple[Segment, ChargeBasis, Decimal], ...]:
    """A stretch cut at ``now``: what is owed already, and what is expected."""
    segment = stretch.segment
    if stretch.owed or segment.end <= now:
        return ((segment, ChargeBasis.ACTUAL, usd),)
    if segment.start >= now:
        return ((segment, ChargeBasis.PROJECTED, usd),)
    past = Segment(segment.start, now, segment.nodes)
    coming = Segment(now, segment.end, segment.nodes)
    weights = [Decimal((part.end - part.start) // timedelta(microseconds=1)) for part in (past, coming)]
    past_usd, coming_usd = split_cents(usd, weights)
    return ((past, ChargeBasis.ACTUAL, past_usd), (coming, ChargeBasis.PROJECTED, coming_usd))
