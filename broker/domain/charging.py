"""From plans and reservations to charges, to the cent.

A placement and its reservations are rounded once, together, so that a plan that is held as planned
costs exactly what it said. Windows are owed in full from their purchase and shown over their days;
the rest is owed up to now and expected until its end.

What is billed by the hour costs a day what its hours cost, at the offer's price, and that stays so: what
is rounded up to an increment, and the rest of a minimum term, is of the last day held so far (today, while
it runs).

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

from broker.domain.billing import billed_seconds, days, held_by_day, holding_cost_usd, spread_by_day
from broker.domain.money import CENT, ZERO, split_cents, to_cents
from broker.domain.offer import CancelRule, Tier
from broker.domain.plan import Placement, Plan
from broker.domain.reservation import Reservation, Unit, UnitState
from broker.domain.spend import EGRESS, Charge, ChargeBasis
from broker.domain.window import Segment, Window
from broker.domain.workload import WorkloadKind

SHORTEST = SECOND = timedelta(seconds=1)
MICROSECOND = timedelta(microseconds=1)
MICROS_PER_HOUR = 3_600_000_000
ONE = Decimal(1)


def plan_charges(plan: Plan, team: str, plan_id: str) -> tuple[Charge, ...]:
    """What ``plan`` is expected to cost, day by day; sums to its cost exactly."""
    return tuple(charge for placement in plan.placements for charge in _planned(placement, team, plan_id))


def _planned(placement: Placement, team: str, plan_id: str) -> Iterator[Charge]:
    """Charges of a placement; of each day the same share is paid for nothing; copies of data are apart."""
    yield from _copied(placement, team, plan_id)
    rows = held_by_day(placement.segments)
    weights = [held for _, held in rows]
    gpus_per_node = max(1, placement.gpus // placement.nodes)
    costs = split_cents(placement.capacity_usd, weights)
    unused = split_cents(min(placement.paid_unused_usd, placement.capacity_usd), weights)
    ahead = placement.tier is Tier.WINDOW
    for (window, held), usd, idle_usd in zip(rows, costs, unused, strict=True):
        gpu_seconds = held * gpus_per_node
        yield Charge(
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
            offer_id=placement.offer_id,
            gpu=placement.gpu,
            region=placement.region,
            gpu_seconds=gpu_seconds,
            idle_gpu_seconds=int(gpu_seconds * min(idle_usd / usd, ONE)) if usd else 0,
            idle_usd=min(idle_usd, usd),
            paid_at=rows[0][0].start if ahead else None,
        )


def _copied(placement: Placement, team: str, plan_id: str) -> Iterator[Charge]:
    """Data that leaves a provider for a placement, on the first day, billed by whom it leaves.

    Only ever expected: no seller's API tells what left it.
    """
    for transfer in placement.transfers:
        if transfer.usd:
            yield Charge(
                window=held_by_day(placement.segments)[0][0],
                team=team,
                workload=placement.workload,
                kind=placement.kind,
                provider=transfer.provider,
                sku=EGRESS,
                tier=Tier.ON_DEMAND,
                usd=transfer.usd,
                basis=ChargeBasis.PROJECTED,
                plan_id=plan_id,
                region=transfer.region,
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
        part = _Part(window, -usd, 0, 0, None)
        yield _charge(reservation, kinds, part, ChargeBasis.ACTUAL)


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


@dataclass(frozen=True, slots=True)
class _Part:
    """A day of a stretch: money, GPU-seconds billed, those that were wanted and had, and when it is due."""

    window: Window
    usd: Decimal
    gpu_seconds: int
    used_gpu_seconds: int
    paid_at: datetime | None

    @property
    def idle_usd(self) -> Decimal:
        """The part of the money that went to GPU-seconds without use."""
        idle = self.gpu_seconds - self.used_gpu_seconds
        if not idle or self.usd <= 0:
            return ZERO
        return split_cents(self.usd, (idle, self.used_gpu_seconds))[0]


def _charges(
    stretch: Stretch, usd: Decimal, kinds: Mapping[str, WorkloadKind], now: datetime
) -> Iterator[Charge]:
    per_node = stretch.reservation.offer.sku.gpus_per_node
    used, paid_at = used_part(stretch), _paid_at(stretch)
    for segment, basis, part_usd in parts_of(stretch, usd, now):
        for window, day_usd in days_of(stretch, segment, part_usd, usd):
            held = window.duration // SECOND * segment.nodes
            billed = held + (rounded_up_node_seconds(stretch) if window.end == stretch.segment.end else 0)
            busy = min(held, _shared_node_seconds(window, used, segment.nodes))
            part = _Part(window, day_usd, billed * per_node, busy * per_node, paid_at)
            yield _charge(stretch.reservation, kinds, part, basis)


def rounded_up_node_seconds(stretch: Stretch) -> int:
    """Node-seconds that are billed beyond those held: an increment's rest, or a minimum term's."""
    offer, segment = stretch.reservation.offer, stretch.segment
    if offer.is_sold_whole:
        return 0
    held = segment.window.duration // SECOND
    return max(0, billed_seconds(offer, segment.window) - held) * segment.nodes


def days_of(
    stretch: Stretch, segment: Segment, part_usd: Decimal, usd: Decimal
) -> tuple[tuple[Window, Decimal], ...]:
    """The UTC days of one of ``parts_of(stretch, usd, …)``, which costs ``part_usd``, with their money."""
    if stretch.reservation.offer.is_sold_whole:
        return spread_by_day(part_usd, (segment,))
    windows = tuple(days(segment.window))
    sums = [cents_until(stretch, usd, window.end) for window in windows]
    before = [cents_until(stretch, usd, segment.start), *sums]
    return tuple(
        (window, (until - since) * CENT) for window, since, until in zip(windows, before, sums, strict=False)
    )


def cents_until(stretch: Stretch, usd: Decimal, instant: datetime) -> int:
    """Whole cents of ``usd`` that a stretch billed by the hour has cost by ``instant``: fees, and its hours
    at the offer's price; at its end all of it."""
    offer, segment = stretch.reservation.offer, stretch.segment
    if instant <= segment.start:
        return 0
    if instant >= segment.end:
        return int(usd / CENT)
    micros = (instant - segment.start) // MICROSECOND
    exact = offer.price_usd_per_node_hour * micros / MICROS_PER_HOUR + (offer.upfront_usd or ZERO)
    return int(min(exact * segment.nodes, usd) / CENT)


def _shared_node_seconds(window: Window, used: Window | None, nodes: int) -> int:
    both = None if used is None else window.intersection(used)
    return 0 if both is None else both.duration // SECOND * nodes


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


def _paid_at(stretch: Stretch) -> datetime | None:
    """When a window is paid: at its order, or with its start while it is not ordered yet."""
    terms = stretch.reservation.offer.window
    if terms is None or terms.waits:
        return None
    if stretch.unit.reference is None:
        return stretch.segment.start
    return stretch.unit.ordered_at or stretch.reservation.created_at


def _charge(
    reservation: Reservation, kinds: Mapping[str, WorkloadKind], part: _Part, basis: ChargeBasis
) -> Charge:
    offer = reservation.offer
    return Charge(
        window=part.window,
        team=reservation.team,
        workload=reservation.workload or "-",
        kind=kinds.get(reservation.workload or ""),
        provider=offer.provider,
        sku=offer.sku.name,
        tier=offer.tier,
        usd=part.usd,
        basis=basis,
        plan_id=reservation.plan_id,
        reservation_id=reservation.reservation_id,
        offer_id=offer.offer_id,
        gpu=offer.sku.gpu,
        region=offer.region,
        gpu_seconds=part.gpu_seconds,
        idle_gpu_seconds=part.gpu_seconds - part.used_gpu_seconds,
        idle_usd=part.idle_usd,
        paid_at=part.paid_at,
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
    if stretch.reservation.offer.is_sold_whole:
        weights = [(part.end - part.start) // MICROSECOND for part in (past, coming)]
        past_usd, coming_usd = split_cents(usd, weights)
    else:
        past_usd = cents_until(stretch, usd, now) * CENT
        coming_usd = usd - past_usd
    return ((past, ChargeBasis.ACTUAL, past_usd), (coming, ChargeBasis.PROJECTED, coming_usd))
