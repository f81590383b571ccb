"""From plans and reservations to charges, exact to the cent.

The reservations of a placement are rounded once, together, so that a plan that is held as planned costs
exactly its planned cost. Capacity that is billed in advance (a prepaid window, a minimum term) is owed in
full from its purchase, and its cost is amortized over its days. Other cost accrues as it is billed, and is
expected until the end. The cost of a past day does not change. ``broker.domain.spend.billed_spans`` has the
rules.

If a window is left early, its bill is reduced by its terms of cancellation: by nothing (``never``), by all
of it before its start (``until``), or by the remaining hours (``any_time``). With ``resell`` the bill stays,
and the resale is a credit. Every credit or fee for leaving is a separate charge.

A credit moves the amortized cost of the time that was given up to the release (``billed_spans``); it still
counts as billed when it was. The credit's GPU-seconds are those that it pays back, and are negative.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.money import CENT, ZERO, split_cents, to_cents
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Reservation, Unit, UnitState
from broker.domain.market.billing import days, held_by_day
from broker.domain.market.offer import Tier
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.billed_spans import (
    MICROSECOND,
    SECOND,
    SHORTEST,
    BilledSpan,
    Surrender,
    amortized_cents_until,
    cents_until,
    parts_of,
    prepaid_block,
    rounded_spans,
    rounded_up_node_seconds,
    surrender_of,
    used_part,
)
from broker.domain.spend.spend import EGRESS, Charge, ChargeBasis

DAY = timedelta(days=1)


def plan_charges(plan: Plan, team: str, plan_id: str) -> tuple[Charge, ...]:
    """The projected charges of ``plan`` by day; they sum to its cost exactly."""
    return tuple(charge for placement in plan.placements for charge in _planned(placement, team, plan_id))


def _planned(placement: Placement, team: str, plan_id: str) -> Iterator[Charge]:
    """Charges of a placement; the cost of idle time is spread over them, and transfers are separate."""
    yield from _copied(placement, team, plan_id)
    gpus_per_node = max(1, placement.gpus // placement.nodes)
    parts = [*_used_then_billed(placement), *_billed_then_used(placement)]
    parts.sort(key=lambda part: (part.window.start, part.paid_at or part.window.start))
    idle = min(placement.paid_unused_usd, placement.capacity_usd)
    shares = split_cents(idle, [int(part.usd / CENT) for part in parts])
    for part, share in zip(parts, shares, strict=True):
        usd, gpu_seconds = part.usd, part.node_seconds * gpus_per_node
        idle_usd = min(share, usd)
        yield Charge(
            window=part.window,
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
            idle_gpu_seconds=int(gpu_seconds * idle_usd / usd) if usd else 0,
            idle_usd=idle_usd,
            paid_at=part.paid_at,
        )


@dataclass(frozen=True, slots=True)
class _Planned:
    """Cost of a placement, not yet reserved, in a part of a day. ``paid_at`` None: billed as it is used."""

    window: Window
    node_seconds: int
    usd: Decimal
    paid_at: datetime | None


def _billed_then_used(placement: Placement) -> Iterator[_Planned]:
    """Prepaid blocks, each amortized over the days on which it is held."""
    for block in placement.billed_ahead:
        held = list(days(Window(block.at, block.until)))
        seconds = [window.duration // SECOND * block.nodes for window in held]
        for window, node_seconds, usd in zip(held, seconds, split_cents(block.usd, seconds), strict=True):
            yield _Planned(window, node_seconds, usd, block.at)


def _used_then_billed(placement: Placement) -> Iterator[_Planned]:
    """The cost outside prepaid blocks, spread over its days; a prepaid window is billed at its start."""
    rows = held_by_day(placement.segments)
    seconds = [held - _node_seconds_ahead(placement, window) for window, held in rows]
    if not any(seconds):
        return
    usd = placement.capacity_usd - sum((block.usd for block in placement.billed_ahead), ZERO)
    paid_at = rows[0][0].start if placement.is_prepaid_window else None
    for (window, _), node_seconds, share in zip(rows, seconds, split_cents(usd, seconds), strict=True):
        if node_seconds:
            yield _Planned(window, node_seconds, share, paid_at)


def _node_seconds_ahead(placement: Placement, day: Window) -> int:
    blocks = ((block, day.intersection(Window(block.at, block.until))) for block in placement.billed_ahead)
    return sum(part.duration // SECOND * block.nodes for block, part in blocks if part is not None)


def _copied(placement: Placement, team: str, plan_id: str) -> Iterator[Charge]:
    """Egress charges of a placement, on its first day, billed by the provider that the data leaves.

    They are always projected, because no provider's API reports egress.
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


def owed_usd(reservations: Iterable[Reservation], now: datetime) -> Decimal:
    """Accrued cost of ``reservations`` up to ``now``; minimum terms and bought windows count in full."""
    charges = reservation_charges(tuple(reservations), {}, now)
    return sum((charge.usd for charge in charges if charge.basis is ChargeBasis.ACTUAL), ZERO)


def credited_usd(reservation: Reservation) -> Decimal | None:
    """What its provider gave back for an early end (a fee is negative); None if nothing is known of it."""
    known = [usd for _, _, usd in credits_of(reservation)]
    return sum(known, ZERO) if known else None


def final_usd(reservation: Reservation) -> Decimal | None:
    """The total cost of a reservation that is over; None before."""
    over_at = reservation.released_at or reservation.created_at
    return None if reservation.is_open else owed_usd((reservation,), over_at)


class Movement(StrEnum):
    """Which charges to compute.

    STEADY charges do not change before midnight unless data is written; MOVING charges change with time.
    """

    ALL = "all"
    STEADY = "steady"
    MOVING = "moving"


def reservation_charges(
    reservations: Sequence[Reservation],
    kinds: Mapping[str, WorkloadKind],
    now: datetime,
    which: Movement = Movement.ALL,
    until: datetime | None = None,
) -> tuple[Charge, ...]:
    """Actual and projected charges of ``reservations``, rounded once per placement.

    ``kinds`` is the kind of each workload by name, if it is known. Leases without an end are projected up to
    ``until`` (None: not projected). The steady charges of an instant and the moving charges of a later
    instant of the same UTC day together are all charges of the later instant.
    """
    charges: list[Charge] = []
    released: defaultdict[str, dict[int, _Part]] = defaultdict(dict)
    for span, usd in rounded_spans(reservations, now, until):
        surrender = surrender_of(span, usd)
        if surrender is None:
            charges.extend(_charges(span, usd, kinds, now, which))
        elif which is not Movement.MOVING:
            parts, given_up = _surrendered(span, usd, surrender)
            charges.extend(_charge(span.reservation, kinds, part, ChargeBasis.ACTUAL) for part in parts)
            if given_up is not None:
                released[span.reservation.reservation_id][span.unit.ordinal] = given_up
    if which is not Movement.MOVING:
        charges.extend(
            credit for row in reservations for credit in _credits(row, kinds, released[row.reservation_id])
        )
    return tuple(charges)


def credits_of(reservation: Reservation) -> Iterator[tuple[Unit, datetime, Decimal]]:
    """Credits for capacity that was left early, by unit and time; a fee is negative."""
    for unit in reservation.units:
        left_at = unit.gone_at or reservation.released_at
        if unit.credit_usd and left_at is not None:
            yield unit, left_at, to_cents(unit.credit_usd)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a day of a span: its cost, billed and used GPU-seconds, and when it is billed."""

    window: Window
    usd: Decimal
    gpu_seconds: int
    used_gpu_seconds: int
    paid_at: datetime | None
    is_open_ended: bool = False

    @property
    def idle_usd(self) -> Decimal:
        """The part of the cost for GPU-seconds that were not used; negative where a credit gives it back."""
        idle = self.gpu_seconds - self.used_gpu_seconds
        if not idle or not self.gpu_seconds:
            return ZERO
        return split_cents(self.usd, (abs(idle), abs(self.used_gpu_seconds)))[0]


def _credits(
    reservation: Reservation, kinds: Mapping[str, WorkloadKind], released: Mapping[int, _Part]
) -> Iterator[Charge]:
    """``released`` is by unit the cost and the GPU-seconds of the time that it gave up."""
    for unit, left_at, usd in credits_of(reservation):
        window, given_up = Window(left_at, left_at + SHORTEST), released.get(unit.ordinal)
        parts = [_Part(window, -usd, 0, 0, None)]
        if given_up is not None and given_up.gpu_seconds and given_up.usd > 0:
            returned_usd = min(usd, given_up.usd)
            seconds = int(given_up.gpu_seconds * returned_usd / given_up.usd)
            parts = [_Part(window, -returned_usd, -seconds, 0, None)]
            if usd > returned_usd:
                parts.append(_Part(window, returned_usd - usd, 0, 0, None))
        for part in parts:
            yield _charge(reservation, kinds, part, ChargeBasis.ACTUAL)


def _charges(
    span: BilledSpan, usd: Decimal, kinds: Mapping[str, WorkloadKind], now: datetime, which: Movement
) -> Iterator[Charge]:
    per_node = span.reservation.offer.sku.gpus_per_node
    used, cut = used_part(span), _days_that(span, now, which)
    for segment, basis in parts_of(span, now):
        counted: tuple[datetime, int] | None = None
        for window, paid_at in _pieces(span, cut(segment.window)):
            before = (
                counted[1]
                if counted is not None and counted[0] == window.start
                else cents_until(span, usd, window.start)
            )
            counted = window.end, cents_until(span, usd, window.end)
            held = window.duration // SECOND * segment.nodes
            billed = held + (rounded_up_node_seconds(span) if window.end == span.segment.end else 0)
            busy = _shared_node_seconds(window, used, segment.nodes)
            part = _Part(
                window,
                (counted[1] - before) * CENT,
                billed * per_node,
                busy * per_node,
                paid_at,
                span.is_open_ended and basis is ChargeBasis.PROJECTED,
            )
            yield _charge(span.reservation, kinds, part, basis)


def _surrendered(span: BilledSpan, usd: Decimal, surrender: Surrender) -> tuple[list[_Part], _Part | None]:
    """The parts of a span that was given up against a credit, and which of them is the time given up, if any.

    What a day was billed beyond its amortized cost is a cost of the release, and is billed when it was.
    """
    left_at, used = surrender.left_at, used_part(span)
    per_node, at_release = span.reservation.offer.sku.gpus_per_node, Window(left_at, left_at + SHORTEST)
    parts: list[_Part] = []
    given_up: _Part | None = None
    for window, paid_at in _pieces(span, _days_around(span.segment.window, left_at)):
        cents = cents_until(span, usd, window.end) - cents_until(span, usd, window.start)
        kept = amortized_cents_until(span, usd, window.end) - amortized_cents_until(span, usd, window.start)
        billed = window.duration // SECOND * span.segment.nodes
        billed += rounded_up_node_seconds(span) if window.end == span.segment.end else 0
        moved_usd, billed_at = (cents - kept) * CENT, paid_at or window.start
        if window.start < left_at:
            busy = _shared_node_seconds(window, used, span.segment.nodes)
            parts.append(_Part(window, kept * CENT, billed * per_node, busy * per_node, paid_at))
            if moved_usd:
                parts.append(_Part(at_release, moved_usd, 0, 0, billed_at))
        elif given_up is None:
            given_up = _Part(at_release, moved_usd, billed * per_node, 0, billed_at)
        else:
            usd_so_far, seconds = given_up.usd + moved_usd, given_up.gpu_seconds + billed * per_node
            given_up = replace(given_up, usd=usd_so_far, gpu_seconds=seconds)
    return [*parts, *([] if given_up is None else [given_up])], given_up


def _days_around(whole: Window, instant: datetime) -> Iterator[Window]:
    """The days of ``whole``, also cut at ``instant``."""
    cut = max(whole.start, min(instant, whole.end))
    yield from days(Window(whole.start, cut)) if whole.start < cut else ()
    yield from days(Window(cut, whole.end)) if cut < whole.end else ()


def _pieces(span: BilledSpan, wanted: Iterable[Window]) -> Iterator[tuple[Window, datetime | None]]:
    """Days, cut at the ends of prepaid blocks; each with the time of its bill, if it is billed in advance."""
    bought_at = _bought_at(span)
    for day in wanted:
        start = day.start
        while start < day.end:
            block = prepaid_block(span, start)
            end = day.end if block is None else min(day.end, block.end)
            yield Window(start, end), bought_at if block is None else block.start
            start = end


def _days_that(span: BilledSpan, now: datetime, which: Movement) -> Callable[[Window], Iterator[Window]]:
    """A function that cuts a part of ``span`` into its UTC days and keeps only steady or moving days.

    Cost by time moves today and on the last day, which takes the rounding. If a prepaid block begins today,
    all later days move too. Cost that is owed in full moves only on the last day. All days move for capacity
    that is not bought yet or waits for its start.
    """
    if which is Movement.ALL:
        return days
    today = now.date()
    runs_on = not span.owed and span.segment.end <= now
    ends = {today, today if runs_on else (span.segment.end - MICROSECOND).date()}
    if _moves_whole(span, today):
        return days if which is Movement.MOVING else lambda _: iter(())
    first = today if not span.owed and _begins_block_on(span, today) else date.max

    def steady(whole: Window) -> Iterator[Window]:
        return (day for day in days(whole) if (at := day.start.date()) not in ends and at < first)

    def moving(whole: Window) -> Iterator[Window]:
        if first == today:
            return (day for day in days(whole) if (at := day.start.date()) in ends or at >= first)
        return (day for at in sorted(ends) if (day := whole.intersection(_day(at))) is not None)

    return steady if which is Movement.STEADY else moving


def _moves_whole(span: BilledSpan, today: date) -> bool:
    """Whether the cost of every day of a span may change before the next midnight."""
    row, unit, terms = span.reservation, span.unit, span.reservation.offer.window
    if terms is not None and (terms.waits or not span.is_confirmed):
        return not span.owed
    if not span.is_confirmed:
        return row.start.date() <= today
    return terms is None and unit.state is UnitState.GONE and not (unit.gone_at or row.released_at)


def _day(at: date) -> Window:
    midnight = datetime.combine(at, time(), UTC)
    return Window(midnight, midnight + DAY)


def _begins_block_on(span: BilledSpan, day: date) -> bool:
    """Whether a prepaid block begins on ``day``."""
    whole = _day(day)
    block = prepaid_block(span, whole.end - MICROSECOND) if span.segment.start < whole.end else None
    return block is not None and block.start >= whole.start


def _shared_node_seconds(window: Window, used: Window | None, nodes: int) -> int:
    both = None if used is None else window.intersection(used)
    return 0 if both is None else both.duration // SECOND * nodes


def _bought_at(span: BilledSpan) -> datetime | None:
    """When a prepaid window is billed: at its order or, before it is ordered, at its start.

    None for capacity that is billed as it is used.
    """
    terms = span.reservation.offer.window
    if terms is None or not terms.is_prepaid:
        return None
    if span.unit.reference is None:
        return span.segment.start
    return span.unit.ordered_at or span.reservation.created_at


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
        is_open_ended=part.is_open_ended,
    )
