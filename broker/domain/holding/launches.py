"""Launch statistics: how likely our orders become usable, and how long that takes. Pure.

An attempt is one reservation's order: when it was sent, its outcome, and when it became usable. There are
statistics on three levels (offer, SKU at a provider, provider). The prior of each level is the level above,
and that of the provider is ``LAUNCH_PRIOR``. The success share has a Beta prior worth two launches. The
minutes are a median together with two values of the level above, so that one outlier has no effect. The
weight of an attempt in the success share halves every three days, because stock-outs pass.
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
from broker.domain.market.launch_statistics import LAUNCH_PRIOR, LaunchStatistics, StatisticsLevel
from broker.domain.market.offer import Offer

PRIOR_LAUNCHES = 2
HALF_LIFE = timedelta(days=3)
REMEMBERED = timedelta(days=90)


class LaunchOutcome(StrEnum):
    """Outcome of an order.

    ``no_capacity``: the provider had no stock. ``failed``: it accepted the order but no node became usable.
    ``refused``: quota, credentials or the order itself were the reason. ``too_dear``: the price was above the
    order's limit. The last two say nothing about availability and do not count in statistics.
    """

    USABLE = "usable"
    NO_CAPACITY = "no_capacity"
    FAILED = "failed"
    REFUSED = "refused"
    TOO_DEAR = "too_dear"


NOT_COUNTED = frozenset({LaunchOutcome.REFUSED, LaunchOutcome.TOO_DEAR})


@dataclass(frozen=True, slots=True)
class LaunchAttempt:
    """One order of a reservation.

    ``due_at`` is the earliest time at which the capacity can be usable: the start of a window, or the time of
    the order. ``ends_at`` is a window's end. ``asks_usd_per_node_hour`` is the price above the limit, if the
    provider stated it. Only the first attempt of a reservation with each outcome is kept, because another
    try at a provider that is sold out adds no information.
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
        """Minutes from ``due_at`` until the capacity was usable; None if it never was."""
        if self.usable_at is None:
            return None
        return max(0.0, (self.usable_at - self.due_at) / timedelta(minutes=1))


def attempts_between(
    before: Reservation, after: Reservation, error: ProviderError | None = None
) -> tuple[LaunchAttempt, ...]:
    """The attempts that end with the step from ``before`` to ``after``. ``error``: the provider's answer."""
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
    """The attempt that failed because the price was above the limit of ``row``."""
    attempt = _attempt(row, asked_at, LaunchOutcome.TOO_DEAR)
    return replace(attempt, asks_usd_per_node_hour=error.asks_usd_per_node_hour)


def _died_unused(before: Reservation, unit: Unit, now: Unit) -> bool:
    """Whether the provider ended the unit on its own before the reservation became usable."""
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
    """An attempt as it counts in the statistics."""

    sku: str
    offer_id: str
    weight: float
    usable: bool
    minutes: float | None


def _tried(attempt: LaunchAttempt, now: datetime) -> _Tried:
    weight = 0.5 ** (max(timedelta(0), now - attempt.asked_at) / HALF_LIFE)
    usable = attempt.outcome is LaunchOutcome.USABLE
    return _Tried(attempt.sku, attempt.offer_id, weight, usable, attempt.minutes)


def _shrunk(tried: Sequence[_Tried], above: LaunchStatistics, basis: StatisticsLevel) -> LaunchStatistics:
    """The estimate of one level, shrunk towards the level ``above``; without attempts it is ``above``."""
    if not tried:
        return above
    usable = sum(one.weight for one in tried if one.usable)
    weight = sum(one.weight for one in tried)
    share = (usable + PRIOR_LAUNCHES * above.success_share) / (weight + PRIOR_LAUNCHES)
    minutes = [one.minutes for one in tried if one.minutes is not None]
    typical = median([*minutes, *[above.minutes_to_usable] * PRIOR_LAUNCHES])
    return LaunchStatistics(share, typical, len(tried), basis)


class LaunchBook:
    """Launch statistics from the attempts up to ``now``."""

    def __init__(self, attempts: Iterable[LaunchAttempt], now: datetime) -> None:
        self._of: defaultdict[str, list[_Tried]] = defaultdict(list)
        self._levels: set[tuple[str, str, str]] = set()
        for attempt in attempts:
            if attempt.outcome not in NOT_COUNTED and now - attempt.asked_at <= REMEMBERED:
                self._of[attempt.provider].append(_tried(attempt, now))
                self._levels.add((attempt.provider, attempt.sku, ""))
                self._levels.add((attempt.provider, attempt.sku, attempt.offer_id))
        self._known: dict[tuple[str, str, str], LaunchStatistics] = {}

    def statistics_of(self, offer: Offer) -> LaunchStatistics | None:
        """The statistics for ``offer``; None if nothing was ever ordered from its provider."""
        provider, sku = offer.provider, offer.sku.name
        if provider not in self._of:
            return None
        levels = ((provider, sku, offer.offer_id), (provider, sku, ""))
        key = next((level for level in levels if level in self._levels), (provider, "", ""))
        if key not in self._known:
            self._known[key] = self._estimate(*key)
        return self._known[key]

    def _estimate(self, provider: str, sku: str, offer_id: str) -> LaunchStatistics:
        """The statistics of one level. Its prior excludes its own attempts, so that none counts twice."""
        rest: list[_Tried] = []
        same_sku: list[_Tried] = []
        own: list[_Tried] = []
        for one in self._of[provider]:
            mine = own if one.offer_id == offer_id else same_sku if one.sku == sku else rest
            mine.append(one)
        of_sku = _shrunk(same_sku, _shrunk(rest, LAUNCH_PRIOR, StatisticsLevel.PROVIDER), StatisticsLevel.SKU)
        return _shrunk(own, of_sku, StatisticsLevel.OFFER)

    def with_statistics(self, offers: Iterable[Offer]) -> tuple[Offer, ...]:
        """``offers``, each with its launch statistics, if there are any."""
        return tuple(self._with_own(offer) for offer in offers) if self._of else tuple(offers)

    def _with_own(self, offer: Offer) -> Offer:
        learned = self.statistics_of(offer)
        return offer if learned is None else copy_with(offer, learned=learned)
