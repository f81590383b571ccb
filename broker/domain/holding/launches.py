"""Our own launches, and what they say of offers: pure.

An attempt is one reservation's order: when it was asked, what came of it, when it could be used. A share is
estimated with a Beta prior worth two launches, whose mean is the estimate of the level above (offer, SKU of
the provider, provider, a guess); minutes as a median beside two values of the level above, so that one odd
launch moves nothing. Attempts count half after three days: stock-outs pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from statistics import median

from broker.domain.basics.copies import copy_with
from broker.domain.basics.errors import InsufficientCapacity, PriceAboveLimit, ProviderError
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.learned import GUESS, Basis, Learned
from broker.domain.market.offer import Offer

PRIOR_LAUNCHES = 2
HALF_LIFE = timedelta(days=3)
REMEMBERED = timedelta(days=90)


class LaunchOutcome(StrEnum):
    """What came of an order.

    ``no_capacity``: the provider had none. ``failed``: it took the order, and nothing usable came of it.
    ``refused``: quota, credentials or the order itself; that says nothing of the offer and is not counted.
    ``too_dear``: it asked more than the order allowed; that is no want of capacity and is not counted either.
    """

    USABLE = "usable"
    NO_CAPACITY = "no_capacity"
    FAILED = "failed"
    REFUSED = "refused"
    TOO_DEAR = "too_dear"


NOT_COUNTED = frozenset({LaunchOutcome.REFUSED, LaunchOutcome.TOO_DEAR})


@dataclass(frozen=True, slots=True)
class LaunchAttempt:
    """One order of a reservation. ``due_at``: when it was to be usable at the earliest (a window's start);
    ``ends_at``: a window's end. ``asks_usd_per_node_hour``: the price that was too dear, where it is known.

    Of the attempts of one reservation the first with each outcome is kept: asking again while a provider is
    sold out is the same news.
    """

    reservation_id: str
    offer_id: str
    provider: str
    sku: str
    region: str
    asked_at: datetime
    due_at: datetime
    outcome: LaunchOutcome
    usable_at: datetime | None = None
    ends_at: datetime | None = None
    asks_usd_per_node_hour: Decimal | None = None

    @property
    def minutes(self) -> float | None:
        """Minutes from when it was due until it could be used."""
        if self.usable_at is None:
            return None
        return max(0.0, (self.usable_at - self.due_at) / timedelta(minutes=1))


def attempts_between(
    before: Reservation, after: Reservation, error: ProviderError | None = None
) -> tuple[LaunchAttempt, ...]:
    """The attempts that end with the step from ``before`` to ``after``; ``error``: the provider's answer."""
    if after.active_at is not None and before.active_at is None:
        asked = [unit.ordered_at for unit in after.units if unit.ordered_at is not None]
        return (_attempt(after, min(asked), LaunchOutcome.USABLE, after.active_at),) if asked else ()
    for unit in before.units:
        now = after.units[unit.ordinal]
        if unit.ordered_at is None:
            continue
        if unit.state is UnitState.ORDERING and now.state is UnitState.PLANNED:
            if isinstance(error, PriceAboveLimit):
                return (too_dear(before, unit.ordered_at, error),)
            return (_attempt(before, unit.ordered_at, _outcome(error)),)
        if _died_unused(before, unit, now):
            return (_attempt(before, unit.ordered_at, LaunchOutcome.FAILED),)
    return ()


def too_dear(row: Reservation, asked_at: datetime, error: PriceAboveLimit) -> LaunchAttempt:
    """The attempt that ends because its seller asks more than ``row`` may cost."""
    attempt = _attempt(row, asked_at, LaunchOutcome.TOO_DEAR)
    return replace(attempt, asks_usd_per_node_hour=error.asks_usd_per_node_hour)


def _died_unused(before: Reservation, unit: Unit, now: Unit) -> bool:
    """Whether a unit ended that nobody had asked to end, before the reservation could be used."""
    ended = unit.state is UnitState.HELD and now.state is UnitState.GONE
    return ended and before.active_at is None and before.state is not ReservationState.RELEASING


def _outcome(error: ProviderError | None) -> LaunchOutcome:
    if error is None:
        return LaunchOutcome.FAILED
    return LaunchOutcome.NO_CAPACITY if isinstance(error, InsufficientCapacity) else LaunchOutcome.REFUSED


def _attempt(
    row: Reservation, asked_at: datetime, outcome: LaunchOutcome, usable_at: datetime | None = None
) -> LaunchAttempt:
    offer = row.offer
    due_at = max(asked_at, row.start) if offer.window is not None else asked_at
    return LaunchAttempt(
        row.reservation_id,
        offer.offer_id,
        offer.provider,
        offer.sku.name,
        offer.region,
        asked_at,
        due_at,
        outcome,
        usable_at,
        row.end if offer.window is not None else None,
    )


@dataclass(frozen=True, slots=True)
class _Tried:
    """What of an attempt is counted."""

    sku: str
    offer_id: str
    weight: float
    usable: bool
    minutes: float | None


def _tried(attempt: LaunchAttempt, now: datetime) -> _Tried:
    weight = 0.5 ** (max(timedelta(0), now - attempt.asked_at) / HALF_LIFE)
    usable = attempt.outcome is LaunchOutcome.USABLE
    return _Tried(attempt.sku, attempt.offer_id, weight, usable, attempt.minutes)


def _beside(tried: Sequence[_Tried], above: Learned, basis: Basis) -> Learned:
    """The estimate of one level; the one above is the prior, and stands where nothing was tried."""
    if not tried:
        return above
    usable = sum(one.weight for one in tried if one.usable)
    weight = sum(one.weight for one in tried)
    share = (usable + PRIOR_LAUNCHES * above.success_share) / (weight + PRIOR_LAUNCHES)
    minutes = [one.minutes for one in tried if one.minutes is not None]
    typical = median([*minutes, *[above.minutes_to_usable] * PRIOR_LAUNCHES])
    return Learned(share, typical, len(tried), basis)


class LaunchBook:
    """Attempts up to ``now``, by provider."""

    def __init__(self, attempts: Iterable[LaunchAttempt], now: datetime) -> None:
        self._of: defaultdict[str, list[_Tried]] = defaultdict(list)
        self._levels: set[tuple[str, str, str]] = set()
        for attempt in attempts:
            if attempt.outcome not in NOT_COUNTED and now - attempt.asked_at <= REMEMBERED:
                self._of[attempt.provider].append(_tried(attempt, now))
                self._levels.add((attempt.provider, attempt.sku, ""))
                self._levels.add((attempt.provider, attempt.sku, attempt.offer_id))
        self._known: dict[tuple[str, str, str], Learned] = {}

    def learned(self, offer: Offer) -> Learned | None:
        """What is known of ``offer``; None where nothing was ever tried at its provider."""
        provider, sku = offer.provider, offer.sku.name
        if provider not in self._of:
            return None
        levels = ((provider, sku, offer.offer_id), (provider, sku, ""))
        key = next((level for level in levels if level in self._levels), (provider, "", ""))
        if key not in self._known:
            self._known[key] = self._estimate(*key)
        return self._known[key]

    def _estimate(self, provider: str, sku: str, offer_id: str) -> Learned:
        """Each level's prior comes from attempts that are not its own, so that none counts twice."""
        rest: list[_Tried] = []
        same_sku: list[_Tried] = []
        own: list[_Tried] = []
        for one in self._of[provider]:
            mine = own if one.offer_id == offer_id else same_sku if one.sku == sku else rest
            mine.append(one)
        of_sku = _beside(same_sku, _beside(rest, GUESS, Basis.PROVIDER), Basis.SKU)
        return _beside(own, of_sku, Basis.OFFER)

    def told(self, offers: Iterable[Offer]) -> tuple[Offer, ...]:
        """``offers``, each with what is known of it."""
        return tuple(self._told(offer) for offer in offers) if self._of else tuple(offers)

    def _told(self, offer: Offer) -> Offer:
        learned = self.learned(offer)
        return offer if learned is None else copy_with(offer, learned=learned)
