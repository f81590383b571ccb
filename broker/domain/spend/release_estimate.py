"""What a release would give back, and what stays owed, before it is asked for. Pure.

Both follow the books: a release is the difference between what is owed now and what ``charging`` says is owed
once it is released. Capacity that is not bought yet owes nothing until it starts. What a later release owes
is what the books say of the same capacity, bought at its start and released then.

The one assumption is what a buyer pays for a window that its provider only sells on (``CancelRule.RESELL``).
It follows own sales at that provider where there are any, else a given share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import CENT, ZERO, to_cents
from broker.domain.basics.window import Window
from broker.domain.holding.cost_of_keeping import HeldCapacity, kept_usd, left_usd
from broker.domain.holding.holding_orders import Intent, unplaced_order
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.billing import billed_seconds, holdings
from broker.domain.market.offer import CancelRule, Offer, Tier
from broker.domain.planning.plan import Placement, Plan
from broker.domain.spend.charging import credits_of, owed_usd, reservation_charges

SHORTEST = timedelta(seconds=1)
LATER = (timedelta(days=1), timedelta(weeks=1))
"""After how much time a later release is estimated too."""


@dataclass(frozen=True, slots=True)
class Resale:
    """The expected price of a window that ``provider`` sells on, as a share of what its rest had cost.

    ``sales`` is the number of own sales that it follows; 0 if it is assumed.
    """

    provider: str
    share: Decimal
    sales: int


@dataclass(frozen=True, slots=True)
class OwedAt:
    """What all of it owes in the end if it is released ``at`` that time."""

    at: datetime
    usd: Decimal


@dataclass(frozen=True, slots=True)
class ReleaseEstimate:
    """``back_usd`` of what is owed comes back with a release now, and ``stays_usd`` stays owed.

    ``resales`` are the assumptions in ``back_usd``; without any of them both amounts follow the terms of the
    providers. ``min_hours`` are the minimum terms of offers that are not bought yet, by offer. ``unknown`` is
    the number of placements without an amount, because their offer is not on sale now.

    Capacity that is not bought yet is in neither amount. ``has_coming``: there is such capacity.
    ``first_start`` is the earliest of its starts (None: it may be bought at any moment), ``last_start`` the
    latest, and released right after that one it owes ``coming_usd``. ``later``: what everything owes, bought
    or not yet, if it is released a day or a week after its begin; empty where nothing lasts so long.

    ``saves_usd`` is what all of it would cost until its end less what stays owed after a release now (None:
    something has no end, or nothing is held or ordered).
    """

    back_usd: Decimal
    stays_usd: Decimal
    resales: tuple[Resale, ...] = ()
    min_hours: Mapping[str, float] = field(default_factory=dict)
    unknown: int = 0
    has_coming: bool = False
    coming_usd: Decimal = ZERO
    first_start: datetime | None = None
    last_start: datetime | None = None
    later: tuple[OwedAt, ...] = ()
    saves_usd: Decimal | None = None


def resales_of(rows: Iterable[Reservation], assumed_share: Decimal) -> ResaleShares:
    """The resale shares that follow from the windows among ``rows`` that were sold on."""
    paid: dict[str, Decimal] = {}
    worth: dict[str, Decimal] = {}
    sales: dict[str, int] = {}
    for row in rows:
        if not _is_resold(row.offer):
            continue
        for unit, left_at, usd in credits_of(row):
            rest_usd = _rest_usd(row, unit, left_at)
            if rest_usd > 0:
                name = row.offer.provider
                paid[name] = paid.get(name, ZERO) + usd
                worth[name] = worth.get(name, ZERO) + rest_usd
                sales[name] = sales.get(name, 0) + 1
    found = {name: Resale(name, max(ZERO, paid[name] / worth[name]), sales[name]) for name in paid}
    return ResaleShares(found, assumed_share)


@dataclass(frozen=True, slots=True)
class ResaleShares:
    """Resale shares by provider; ``assumed_share`` for the others."""

    by_provider: Mapping[str, Resale]
    assumed_share: Decimal

    def of(self, provider: str) -> Resale:
        """What is expected at ``provider``."""
        return self.by_provider.get(provider) or Resale(provider, self.assumed_share, 0)


NO_RESALES = ResaleShares({}, ZERO)


def saves_money(row: Reservation, estimate: ReleaseEstimate, now: datetime) -> bool:
    """Whether a release of ``row`` now, with this ``estimate``, costs less than holding it to its end.

    Capacity by the hour is billed until its release, but for no less than its minimum term. A node that
    still starts is billed as one that has just begun.
    """
    if row.end is None or estimate.has_coming or estimate.back_usd > 0:
        return True
    if row.offer.window is not None or now >= row.end:
        return False
    begun = min(row.active_at or row.start, now)
    if begun == now:
        begun = now - timedelta(microseconds=1)
    return billed_seconds(row.offer, Window(begun, now)) < billed_seconds(row.offer, Window(begun, row.end))


def estimate_release(rows: Sequence[Reservation], now: datetime, shares: ResaleShares) -> ReleaseEstimate:
    """The release of everything that is open in ``rows``: one reservation, or all reservations of a plan."""
    owed = owed_usd(rows, now)
    after = owed_usd([_released(row, now, shares) for row in rows], now)
    sold = {row.offer.provider for row in rows if _has_bought(row) and _is_resold(row.offer)}
    resales = tuple(shares.of(name) for name in sorted(sold))
    found = _with_coming(ReleaseEstimate(max(ZERO, owed - after), after, resales), rows, now, shares)
    later = (OwedAt(at, _owed_at(rows, at, now, shares)) for at in _later(rows, now))
    return replace(found, later=tuple(later))


def with_savings(found: ReleaseEstimate, rows: Sequence[Reservation], now: datetime) -> ReleaseEstimate:
    """``found``, the estimate of ``rows``, with what a release saves against holding them until their end."""
    lasting = {row.reservation_id: row.end for row in rows if _lasts(row)}
    if not lasting or None in lasting.values():
        return found
    held = [row if _lasts(row) else _released(row, now, NO_RESALES) for row in rows]
    whole = sum((charge.usd for charge in reservation_charges(held, {}, now)), ZERO)
    return replace(found, saves_usd=max(ZERO, whole - found.stays_usd))


def estimate_order_release(order: Reservation, now: datetime, shares: ResaleShares) -> ReleaseEstimate:
    """The release of ``order``, which is placed nowhere yet, right after it is placed."""
    found = estimate_release((_as_ordered(order, now),), now, shares)
    offer = order.offer
    return replace(found, min_hours=_min_hours([offer] if offer.window is None else []))


def estimate_planned_release(
    plan: Plan, offers: Mapping[str, Offer], now: datetime, shares: ResaleShares
) -> ReleaseEstimate:
    """The release of a plan right after it is reserved: windows by their terms, the rest by the books."""
    back, stays, unknown = ZERO, ZERO, 0
    windows: list[tuple[Placement, Offer | None]] = []
    orders: list[Reservation] = []
    sold: set[str] = set()
    for placement in plan.placements:
        offer = placement.offer_among(offers)
        if placement.tier is Tier.WINDOW:
            windows.append((placement, offer))
            stays_usd = _stays_usd(placement, offer, now, shares)
            stays += stays_usd
            back += placement.cost_usd - stays_usd if placement.is_prepaid_window else ZERO
            sold |= {offer.provider} if offer is not None and _is_resold(offer) else set()
        elif offer is None:
            unknown += 1
        else:
            orders += _orders_of(placement, offer, plan, now)
    rest = estimate_release([_as_ordered(order, now) for order in orders], now, shares)
    return replace(
        rest,
        back_usd=rest.back_usd + back,
        stays_usd=rest.stays_usd + stays,
        resales=tuple(shares.of(name) for name in sorted(sold)),
        min_hours=_min_hours(order.offer for order in orders),
        unknown=unknown,
        later=tuple(
            OwedAt(
                one.at,
                sum((_stays_usd(placed, sale, one.at, shares) for placed, sale in windows), one.usd),
            )
            for one in rest.later
        ),
    )


def _orders_of(placement: Placement, offer: Offer, plan: Plan, now: datetime) -> list[Reservation]:
    """The orders of a placement outside windows: one for each of its holdings that has not ended."""
    orders = []
    for holding in holdings(placement.segments):
        begin, end = max(holding.window.start, now), holding.window.end
        if begin < end:
            order = unplaced_order(
                Intent(offer, holding.nodes, begin, end, placement.workload), plan.team, now
            )
            orders.append(replace(order, plan_id=plan.plan_id))
    return orders


def _with_coming(
    found: ReleaseEstimate, rows: Sequence[Reservation], now: datetime, shares: ResaleShares
) -> ReleaseEstimate:
    """``found`` with what the capacity in ``rows`` that is not bought yet owes after its start."""
    coming = [row for row in map(_not_bought, rows) if row is not None]
    if not coming:
        return found
    starts = [max(row.start, now) for row in coming]
    is_due = min(starts) <= now
    return replace(
        found,
        has_coming=True,
        coming_usd=_owed_at(coming, max(starts), now, shares),
        first_start=None if is_due else min(starts),
        last_start=max(starts) if max(starts) > now else None,
        min_hours=_min_hours(row.offer for row in coming if row.offer.window is None),
    )


def _later(rows: Iterable[Reservation], now: datetime) -> list[datetime]:
    """When a later release is estimated: each of ``LATER`` after the begin, while something still lasts."""
    lasting = [row for row in rows if _lasts(row)]
    if not lasting:
        return []
    begin = max(now, min(row.start for row in lasting))
    ends = [row.end for row in lasting]
    return [begin + after for after in LATER if any(end is None or end > begin + after for end in ends)]


def _lasts(row: Reservation) -> bool:
    return row.is_open and row.state is not ReservationState.RELEASING


def _owed_at(rows: Iterable[Reservation], at: datetime, now: datetime, shares: ResaleShares) -> Decimal:
    """What ``rows`` owe if they are bought at their starts and released ``at`` that time."""
    left = []
    for row in rows:
        coming = _not_bought(row)
        others = () if coming is None else coming.units
        if len(others) < len(row.units):
            units = tuple(unit for unit in row.units if unit not in others)
            until = now if row.state is ReservationState.RELEASING else _until(row, at)
            left.append(_released(replace(row, units=units), until, shares))
        if coming is not None and (begin := max(row.start, now)) <= at:
            left.append(_released(_bought(coming, begin), _until(row, at), shares))
    return owed_usd(left, at)


def _until(row: Reservation, at: datetime) -> datetime:
    return at if row.end is None else min(at, row.end)


def _not_bought(row: Reservation) -> Reservation | None:
    """The part of ``row`` that may still be bought; None if there is none."""
    units = tuple(unit for unit in row.units if unit.reference is None and unit.state is not UnitState.GONE)
    if not row.is_open or row.state is ReservationState.RELEASING or not units:
        return None
    return replace(row, units=units)


def _as_ordered(order: Reservation, now: datetime) -> Reservation:
    """``order`` as it is right after it is placed: bought, unless it waits for its time."""
    return order if order.state is ReservationState.SCHEDULED else _bought(order, now)


def _bought(row: Reservation, at: datetime) -> Reservation:
    """``row`` as it is if it is bought whole ``at``; a window that waits for capacity begins then."""
    units = tuple(
        replace(unit, state=UnitState.HELD, reference=unit.tag, ordered_at=at) for unit in row.units
    )
    waits = row.offer.window is not None and row.offer.window.waits
    granted = Window(row.start, row.end) if waits and row.end is not None else row.granted
    return replace(row, state=ReservationState.HELD, units=units, granted=granted)


def _min_hours(offers: Iterable[Offer]) -> dict[str, float]:
    return dict(sorted((offer.offer_id, offer.min_hours) for offer in offers if offer.min_hours))


def _stays_usd(placement: Placement, offer: Offer | None, now: datetime, shares: ResaleShares) -> Decimal:
    """What a window owes that is left ``now``: all of it where its offer is not on sale."""
    if offer is None:
        return placement.cost_usd
    held = [
        HeldCapacity(placement.workload, offer, segment.nodes, segment.start, segment.end)
        for segment in placement.segments
    ]
    kept = sum((kept_usd(one) for one in held), ZERO)
    share = shares.of(offer.provider).share
    left = sum((left_usd(one, now, share) for one in held), ZERO)
    return to_cents(placement.cost_usd * left / kept) if kept else placement.cost_usd


def _released(row: Reservation, now: datetime, shares: ResaleShares) -> Reservation:
    """``row`` as it would be if it were released ``now``."""
    if not row.is_open:
        return row
    units = tuple(
        unit if unit.state is UnitState.GONE else _gone(row, unit, now, shares) for unit in row.units
    )
    return replace(row, state=ReservationState.RELEASED, units=units, released_at=now)


def _gone(row: Reservation, unit: Unit, now: datetime, shares: ResaleShares) -> Unit:
    credit = unit.credit_usd
    if credit is None and unit.reference is not None and _is_resold(row.offer):
        credit = (_rest_usd(row, unit, now) * shares.of(row.offer.provider).share).quantize(CENT)
    return replace(unit, state=UnitState.GONE, gone_at=unit.gone_at or now, credit_usd=credit)


def _rest_usd(row: Reservation, unit: Unit, at: datetime) -> Decimal:
    """The price that was paid for the time of a window after ``at``."""
    if row.end is None or at >= row.end:
        return ZERO
    alone = replace(row, units=(replace(unit, credit_usd=None),))
    rest, whole = ((row.end - since) // SHORTEST for since in (max(at, row.start), row.start))
    return owed_usd([alone], at) * rest / whole


def _has_bought(row: Reservation) -> bool:
    return row.is_open and bool(row.provider_references)


def _is_resold(offer: Offer) -> bool:
    return offer.window is not None and offer.window.cancel is CancelRule.RESELL
