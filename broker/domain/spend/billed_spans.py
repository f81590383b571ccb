"""Billed spans: the time for which each unit is billed, its exact cost, and the cost by time in cents.

Only a lease that a provider confirmed causes cost. Capacity that is not bought yet is projected from now on,
because time before its purchase costs nothing.

Two rules say when a cost counts, for every provider.

*Billed* cost counts when the provider bills it: a window at its order or from its start on, as its terms say
(``WindowTerms.billed``), a minimum term at the start of the lease, each increment as it begins. *Amortized*
cost counts over the time of use: the cost of a window, and of each block of more than an hour that is billed
at once (a minimum term, a day, a month), is spread evenly up to its end, even if it is left earlier. The cost
of a shorter increment counts when it begins (``billing.Meter``).

A credit (the refund or the resale of time that was given up) ends this spreading at the release. Later days
cost nothing, and what the credit does not recover is a cost of the day of the release. A credit that exceeds
the cost of the time given up reduces the days before the release, the latest first (``Surrender``).

The spans of a placement are rounded once, together. Cents come from running totals, so parts sum exactly.
These are rounded at the end of a month, as its invoice is, and rounded down within it, so later events do not
change past cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from itertools import accumulate, pairwise

from broker.domain.basics.money import CENT, ZERO, to_cents
from broker.domain.basics.window import Segment, Window
from broker.domain.holding.lease_money import billed_offer
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.billing import MICROS_PER_HOUR, Meter, billed_seconds, days, holding_cost_usd
from broker.domain.market.exchange import DayRate
from broker.domain.market.offer import CancelRule, Offer
from broker.domain.spend.spend import ChargeBasis

SHORTEST = SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class BilledSpan:
    """The time for which one unit is billed, and its exact cost ``usd``.

    ``segment`` is the billed time; ``held`` is the part of it in which the unit is held, and the rest is the
    remainder of a prepaid block. ``owed``: the whole cost is due, whatever happens next. ``is_open_ended``:
    the lease has no end, and ``segment`` ends with the projection.
    """

    reservation: Reservation
    unit: Unit
    segment: Segment
    held: Window
    usd: Decimal
    owed: bool
    is_open_ended: bool = False

    @property
    def is_confirmed(self) -> bool:
        """Whether the provider confirmed the lease."""
        return self.unit.reference is not None

    @property
    def meter(self) -> Meter | None:
        """The meter by which it is billed; None for windows, whose cost is even over their time."""
        offer = self.offer
        return None if offer.window is not None else Meter.of(offer)

    @property
    def offer(self) -> Offer:
        """The ordered offer, at the rate that the provider charges."""
        return billed_offer(self.reservation, self.unit)


@dataclass(frozen=True, slots=True)
class Surrender:
    """The release of a unit at ``left_at`` against a credit.

    ``most_cents`` is what its cost before the release may come to: what it costs in all, less the credit.
    """

    left_at: datetime
    most_cents: int


def surrender_of(span: BilledSpan, usd: Decimal) -> Surrender | None:
    """How a span that costs ``usd`` was given up; None if it was not, or if its provider credits nothing."""
    credit_usd, left_at = span.unit.credit_usd, span.unit.gone_at or span.reservation.released_at
    if not span.owed or credit_usd is None or credit_usd < 0 or left_at is None:
        return None
    return Surrender(left_at, max(0, int((usd - to_cents(credit_usd)) / CENT)))


def _spans(reservation: Reservation, now: datetime, until: datetime | None) -> Iterator[BilledSpan]:
    terms = reservation.offer.window
    for unit in reservation.units:
        held = _held(reservation, unit, now, until)
        if held is None:
            continue
        bought_whole = terms is not None and terms.is_prepaid and unit.reference is not None
        owed = bought_whole or unit.state is UnitState.GONE
        if terms is None and reservation.end is None and unit.state is not UnitState.GONE:
            yield _open_ended(reservation, unit, held, now)
        else:
            segment = _paid_segment(reservation.offer, held, unit.nodes)
            yield BilledSpan(reservation, unit, segment, held, _bill_usd(reservation, unit, held), owed)


def _open_ended(reservation: Reservation, unit: Unit, held: Window, now: datetime) -> BilledSpan:
    """The span of a lease without an end: up to the end of ``held`` or of the block that is billed now."""
    begun = Window(held.start, max(min(now, held.end), held.start + MICROSECOND))
    offer = billed_offer(reservation, unit)
    paid = _paid_segment(offer, begun, unit.nodes)
    segment = paid if paid.end >= held.end else Segment(held.start, held.end, unit.nodes)
    usd = unit.nodes * _node_usd(offer, segment.start, segment.window.duration // MICROSECOND)
    return BilledSpan(reservation, unit, segment, held, usd, owed=False, is_open_ended=True)


def _bill_usd(reservation: Reservation, unit: Unit, held: Window) -> Decimal:
    """Cost in USD: the provider's bill for a whole window if it is known, else the cost at the unit's rate.

    A contract price overrides the provider's bill, which is at list price.
    """
    offer, whole = billed_offer(reservation, unit), (reservation.start, reservation.end)
    if unit.paid_usd is not None and offer.contract is None and (held.start, held.end) == whole:
        return unit.paid_usd
    if offer.window is None and _rates_of(offer):
        paid_us = Meter.of(offer).paid_us(held.duration // MICROSECOND)
        return unit.nodes * _node_usd(offer, held.start, paid_us)
    return holding_cost_usd(offer, (Segment(held.start, held.end, unit.nodes),))


def _paid_segment(offer: Offer, held: Window, nodes: int) -> Segment:
    """``held``, extended to the end of the prepaid block in which it ends."""
    end = held.end
    if offer.window is None:
        end = held.start + Meter.of(offer).paid_us(held.duration // MICROSECOND) * MICROSECOND
    return Segment(held.start, end, nodes)


def _held(reservation: Reservation, unit: Unit, now: datetime, until: datetime | None) -> Window | None:
    """The time for which the unit is held as far as its bill is concerned; None if it is not billed."""
    confirmed = unit.reference is not None
    if unit.state is UnitState.GONE and (not confirmed or unit.paid_usd == ZERO):
        return None
    if not confirmed and (not reservation.is_open or _is_leaving(reservation, unit)):
        return None
    if reservation.offer.window is not None and reservation.offer.window.waits:
        return _waiting(reservation, unit, now)
    if not confirmed:
        start, end = max(reservation.start, now), reservation.end or until or now
        return Window(start, end) if start < end else None
    start = reservation.start
    if reservation.offer.window is None and unit.ordered_at is not None:
        start = unit.began_at or max(start, unit.ordered_at)
    lasts = _billed_end(reservation, unit, start, now, until)
    return None if lasts is None else Window(start, max(lasts, start + SHORTEST))


def _waiting(reservation: Reservation, unit: Unit, now: datetime) -> Window | None:
    """The billed time of a window that begins when capacity appears; before that its expected time."""
    granted, gone_at = reservation.granted, _left_at(reservation, unit)
    if granted is None:
        is_over = unit.state is UnitState.GONE or not reservation.is_open or gone_at is not None
        if is_over or reservation.end is None:
            return None
        start = max(reservation.start, now)
        return Window(start, start + (reservation.end - reservation.start))
    end = granted.end if gone_at is None else min(gone_at, granted.end)
    return Window(granted.start, max(end, granted.start + SHORTEST))


def _left_at(reservation: Reservation, unit: Unit) -> datetime | None:
    """When a unit was left; for a window whose provider did not refuse to end it, when that was asked."""
    gone_at = unit.gone_at or reservation.released_at
    if gone_at is None and reservation.offer.window is not None and not reservation.tries:
        return unit.leaving_at
    return gone_at


def _is_leaving(reservation: Reservation, unit: Unit) -> bool:
    return reservation.state is ReservationState.RELEASING or unit.leaving_at is not None


def _billed_end(
    reservation: Reservation, unit: Unit, start: datetime, now: datetime, until: datetime | None
) -> datetime | None:
    """When the bill of a confirmed unit, which begins at ``start``, ends; None if nothing is billed.

    A lease without an end is projected up to ``until``, and one that is being released not at all.
    """
    gone_at = _left_at(reservation, unit)
    if reservation.offer.window is not None and reservation.end is not None:
        cancel = reservation.offer.window.cancel
        if gone_at is None or cancel in (CancelRule.NEVER, CancelRule.RESELL):
            return reservation.end
        if cancel is CancelRule.UNTIL:
            return None if gone_at < reservation.start else reservation.end
        return None if gone_at < reservation.start else min(gone_at, reservation.end)
    if unit.state is UnitState.GONE:
        return gone_at or now
    if _is_leaving(reservation, unit):
        return _leaving_end(reservation, unit, start, now)
    return max(now, reservation.end or until or now)


def _leaving_end(reservation: Reservation, unit: Unit, start: datetime, now: datetime) -> datetime:
    """Up to when a lease is billed whose release was asked: ``now``.

    A prepaid block that has begun is its last, unless the provider refuses, or the lease was seen running
    after the block.
    """
    asked_us = max(0, ((unit.leaving_at or now) - start) // MICROSECOND - 1)
    block = Meter.of(billed_offer(reservation, unit)).prepaid_block(asked_us)
    if block is None or reservation.tries:
        return now
    paid_until = start + block[1] * MICROSECOND
    runs_on = unit.seen_at is not None and unit.seen_at >= paid_until
    return now if runs_on else min(now, paid_until)


def rounded_spans(
    reservations: Sequence[Reservation], now: datetime, until: datetime | None = None
) -> tuple[tuple[BilledSpan, Decimal], ...]:
    """Every span with its share, in whole cents, of its placement's rounded cost.

    ``reservations`` must contain all reservations of a plan or none, since a placement is rounded once.
    Leases without an end are projected up to ``until`` (None: not projected). Their total cost is unknown, so
    each is rounded on its own.
    """
    groups: defaultdict[tuple[str, ...], list[BilledSpan]] = defaultdict(list)
    found: list[tuple[BilledSpan, Decimal]] = []
    for reservation in reservations:
        for span in _spans(reservation, now, until):
            if span.is_open_ended:
                found.append((span, _running_cents(span, span.segment.end) * CENT))
            else:
                groups[_placement_key(reservation)].append(span)
    for spans in groups.values():
        spans.sort(key=_first_over)
        found.extend(zip(spans, _shares([span.usd for span in spans]), strict=True))
    return tuple(found)


def _first_over(span: BilledSpan) -> tuple[datetime, datetime, str, int]:
    """Sort key by end, so that later events and the order of reading do not change past shares."""
    segment = span.segment
    return segment.end, segment.start, span.reservation.reservation_id, span.unit.ordinal


def _shares(exact: Sequence[Decimal]) -> tuple[Decimal, ...]:
    """Whole cents that sum to the rounded sum of ``exact``; a share does not depend on later ones."""
    sums = [to_cents(usd) for usd in accumulate(exact, initial=ZERO)]
    return tuple(after - before for before, after in pairwise(sums))


def _placement_key(reservation: Reservation) -> tuple[str, ...]:
    if reservation.plan_id is None:
        return (reservation.reservation_id,)
    return (reservation.plan_id, reservation.offer.offer_id, reservation.workload or "")


def parts_of(span: BilledSpan, now: datetime) -> tuple[tuple[Segment, ChargeBasis], ...]:
    """A span cut into its owed part (actual) and its expected part (projected)."""
    segment, owed_until = span.segment, _owed_until(span, now)
    if owed_until >= segment.end:
        return ((segment, ChargeBasis.ACTUAL),)
    if owed_until <= segment.start:
        return ((segment, ChargeBasis.PROJECTED),)
    owed = Segment(segment.start, owed_until, segment.nodes)
    coming = Segment(owed_until, segment.end, segment.nodes)
    return ((owed, ChargeBasis.ACTUAL), (coming, ChargeBasis.PROJECTED))


def _owed_until(span: BilledSpan, now: datetime) -> datetime:
    """The end of the time whose cost is owed at ``now``; the span's start if nothing is owed."""
    start = span.segment.start
    if span.owed:
        return span.segment.end
    if not span.is_confirmed or now < start:
        return start
    meter = span.meter
    return now if meter is None else start + meter.paid_us((now - start) // MICROSECOND) * MICROSECOND


def cents_until(span: BilledSpan, usd: Decimal, instant: datetime) -> int:
    """Amortized cost before ``instant`` in whole cents, out of the rounded cost ``usd`` of the span."""
    if instant <= span.segment.start:
        return 0
    if instant >= span.segment.end:
        return int(usd / CENT)
    return min(_running_cents(span, instant), int(usd / CENT))


def _running_cents(span: BilledSpan, instant: datetime) -> int:
    """Whole cents of the cost before ``instant``: rounded at the ends of months, and else rounded down."""
    cents = int(_exact_usd(span, instant) / CENT)
    month = instant.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return cents if month <= span.segment.start else max(cents, int(to_cents(_exact_usd(span, month)) / CENT))


def _exact_usd(span: BilledSpan, instant: datetime) -> Decimal:
    segment = span.segment
    elapsed_us = (instant - segment.start) // MICROSECOND
    if span.meter is None:
        return span.usd * elapsed_us / (segment.window.duration // MICROSECOND)
    return segment.nodes * _node_usd(span.offer, segment.start, elapsed_us)


def amortized_cents_until(span: BilledSpan, usd: Decimal, instant: datetime) -> int:
    """As ``cents_until``, less what a later credit gives back of it; nothing is added after a release."""
    left = surrender_of(span, usd)
    if left is None:
        return cents_until(span, usd, instant)
    return min(left.most_cents, cents_until(span, usd, min(instant, left.left_at)))


def reduced_days(span: BilledSpan, usd: Decimal) -> Iterator[tuple[Window, int]]:
    """The days before a release of which its credit gives something back, with the cents that it gives."""
    left = surrender_of(span, usd)
    if left is None or left.left_at <= span.segment.start:
        return
    for day in days(Window(span.segment.start, min(left.left_at, span.segment.end))):
        billed = cents_until(span, usd, day.end) - cents_until(span, usd, day.start)
        kept = amortized_cents_until(span, usd, day.end) - amortized_cents_until(span, usd, day.start)
        if billed != kept:
            yield day, billed - kept


def _rates_of(offer: Offer) -> tuple[DayRate, ...]:
    """The exchange rates since the one of the offer's price."""
    return () if offer.native.exchange is None else offer.native.exchange.moved


def _node_usd(offer: Offer, start: datetime, held_us: int) -> Decimal:
    """As ``_metered_usd``; what is billed in another currency counts at the rate of the day of its bill."""
    rates = _rates_of(offer)
    if not rates:
        return _metered_usd(offer, held_us)
    assert offer.native.exchange is not None
    first = offer.native.exchange.rates[0].usd_per_unit
    usd, before_us, factor = ZERO, 0, Decimal(1)
    for rate in rates:
        since_us = _billed_since(offer, (datetime.combine(rate.since, time(), UTC) - start) // MICROSECOND)
        until_us = min(max(since_us, before_us), held_us)
        usd += factor * (_metered_or_none(offer, until_us) - _metered_or_none(offer, before_us))
        before_us, factor = until_us, rate.usd_per_unit / first
    return usd + factor * (_metered_or_none(offer, held_us) - _metered_or_none(offer, before_us))


def _billed_since(offer: Offer, at_us: int) -> int:
    """``at_us``, or the end of the prepaid block that it is in, which was billed before."""
    if at_us <= 0:
        return 0
    block = Meter.of(offer).prepaid_block(at_us)
    return at_us if block is None or block[0] == at_us else block[1]


def _metered_or_none(offer: Offer, held_us: int) -> Decimal:
    return _metered_usd(offer, held_us) if held_us > 0 else ZERO


def _metered_usd(offer: Offer, held_us: int) -> Decimal:
    """Amortized cost in USD of one node's first ``held_us`` microseconds; the first block includes fees."""
    meter = Meter.of(offer)
    first_us = meter.first_us
    hours_usd = offer.price_usd_per_node_hour * meter.amortized_us(held_us) / MICROS_PER_HOUR
    fee_usd = offer.upfront_usd or ZERO
    if fee_usd and meter.prepaid_block(0) is not None and held_us < first_us:
        fee_usd = fee_usd * held_us / first_us
    return hours_usd + fee_usd


def prepaid_block(span: BilledSpan, instant: datetime) -> Window | None:
    """The prepaid block that contains ``instant``; None outside such blocks, and in windows."""
    meter, start = span.meter, span.segment.start
    block = None if meter is None else meter.prepaid_block((instant - start) // MICROSECOND)
    return None if block is None else Window(start + block[0] * MICROSECOND, start + block[1] * MICROSECOND)


def rounded_up_node_seconds(span: BilledSpan) -> int:
    """Node-seconds that are billed after the span: the rest of an increment or minimum term."""
    offer, segment = span.reservation.offer, span.segment
    if offer.is_sold_whole:
        return 0
    paid_s = segment.window.duration // SECOND
    return max(0, billed_seconds(offer, span.held) - paid_s) * segment.nodes


def used_part(span: BilledSpan) -> Window | None:
    """The part of a span that was wanted, usable and not given back; outside windows what was wanted."""
    row, held = span.reservation, span.held
    if row.offer.window is None:
        since = max(held.start, row.wish.start) if row.is_held_early else held.start
        return Window(since, held.end) if since < held.end else None
    part: Window | None = row.usable
    wanted = row.wish.window
    if part is not None and wanted is not None:
        part = part.intersection(wanted)
    gone_at = _left_at(row, span.unit)
    if part is None or gone_at is None:
        return part
    return part.intersection(Window(part.start, gone_at)) if gone_at > part.start else None
