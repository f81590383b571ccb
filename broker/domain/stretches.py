"""Stretches: each unit's time on the bill, its exact cost, and the cents of it by time.

A placement's stretches are rounded once, together. What is billed by the hour has cost, at any instant
before its end, its hours at the offer's price and what was paid at its start: nothing that comes later
changes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.billing import billed_seconds, holding_cost_usd
from broker.domain.money import CENT, ZERO, split_cents, to_cents
from broker.domain.offer import CancelRule
from broker.domain.reservation import Reservation, Unit, UnitState
from broker.domain.spend import ChargeBasis
from broker.domain.window import Segment, Window

SHORTEST = SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)
MICROS_PER_HOUR = 3_600_000_000


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


def _shares(exact: Sequence[Decimal]) -> tuple[Decimal, ...]:
    """The rounded sum of ``exact`` in whole cents: each at least its own, the rest by largest remainder."""
    total, wholes = int(to_cents(sum(exact, ZERO)) / CENT), [int(usd / CENT) for usd in exact]
    order = sorted(range(len(exact)), key=lambda i: (wholes[i] * CENT - exact[i], i))
    for i in order[: total - sum(wholes)]:
        wholes[i] += 1
    return tuple(cents * CENT for cents in wholes)


def _placement_key(reservation: Reservation) -> tuple[str, ...]:
    if reservation.plan_id is None:
        return (reservation.reservation_id,)
    return (reservation.plan_id, reservation.offer.offer_id, reservation.workload or "")


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
    if stretch.reservation.offer.is_sold_whole:
        weights = [(part.end - part.start) // MICROSECOND for part in (past, coming)]
        past_usd, coming_usd = split_cents(usd, weights)
    else:
        past_usd = cents_until(stretch, usd, now) * CENT
        coming_usd = usd - past_usd
    return ((past, ChargeBasis.ACTUAL, past_usd), (coming, ChargeBasis.PROJECTED, coming_usd))


def cents_until(stretch: Stretch, usd: Decimal, instant: datetime) -> int:
    """Whole cents of ``usd`` that a stretch has cost by ``instant``: fees, and hours at the offer's price;
    of what is bought ahead a share by time; at its end all of it."""
    offer, segment = stretch.reservation.offer, stretch.segment
    if instant <= segment.start:
        return 0
    if instant >= segment.end:
        return int(usd / CENT)
    micros = (instant - segment.start) // MICROSECOND
    if offer.window is not None:
        exact = stretch.usd * micros / (segment.window.duration // MICROSECOND)
    else:
        hours_usd = offer.price_usd_per_node_hour * micros / MICROS_PER_HOUR
        exact = (hours_usd + (offer.upfront_usd or ZERO)) * segment.nodes
    return int(min(exact, usd) / CENT)


def rounded_up_node_seconds(stretch: Stretch) -> int:
    """Node-seconds that are billed beyond those held: an increment's rest, or a minimum term's."""
    offer, segment = stretch.reservation.offer, stretch.segment
    if offer.is_sold_whole:
        return 0
    held = segment.window.duration // SECOND
    return max(0, billed_seconds(offer, segment.window) - held) * segment.nodes


def used_part(stretch: Stretch) -> Window | None:
    """The part of a stretch that was wanted, usable and not given back; outside windows all that is held."""
    row = stretch.reservation
    if row.offer.window is None:
        return stretch.segment.window
    part: Window | None = row.usable
    wanted = row.wish.window
    if part is not None and wanted is not None:
        part = part.intersection(wanted)
    gone_at = stretch.unit.gone_at or row.released_at
    if part is None or gone_at is None:
        return part
    return part.intersection(Window(part.start, gone_at)) if gone_at > part.start else None
