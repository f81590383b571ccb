"""Spot capacity: the rate of interruptions, and when a run must move to capacity without them. Pure.

Interruptions of a node are a Poisson process. If the provider states no rate, it is estimated from our own
leases with a Gamma prior: (prior rate × prior hours + losses) / (prior hours + node-hours). The prior of an
offer is the estimate of its SKU, then of its provider, then an assumed rate.

When to move follows Uniform Progress (*Can't Be Late*, Wu et al., NSDI 2024). A run stays on spot while its
progress is at most one restart behind the straight line from its start to its deadline, and while enough time
is left to finish without spot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from broker.domain.basics.copies import copy_with
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import Offer, RateBasis, Tier

HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class SpotPrior:
    """The Gamma prior: an assumed rate of interruptions per node-hour, with the weight of ``node_hours``."""

    interruptions_per_hour: float = 0.05
    node_hours: float = 100.0


@dataclass(frozen=True, slots=True)
class SpotTime:
    """The experience of one spot lease: its node-hours, and the nodes that the provider interrupted."""

    provider: str
    sku: str
    offer_id: str
    node_hours: float
    losses: int


def spot_time(reservation: Reservation, now: datetime) -> SpotTime | None:
    """The experience that ``reservation`` adds; None if it is not spot or was never usable."""
    offer = reservation.offer
    if offer.tier is not Tier.SPOT or reservation.active_at is None:
        return None
    hours, losses = 0.0, 0
    for unit in reservation.units:
        until = unit.gone_at or reservation.released_at or now
        hours += unit.nodes * max(timedelta(0), until - reservation.active_at) / HOUR
        losses += unit.nodes if _was_taken(reservation, unit) else 0
    return SpotTime(offer.provider, offer.sku.name, offer.offer_id, hours, losses)


def _was_taken(reservation: Reservation, unit: Unit) -> bool:
    """Whether the provider ended the unit without a request to release it."""
    asked = reservation.state in (ReservationState.RELEASING, ReservationState.RELEASED)
    over = reservation.released_at
    early = unit.gone_at is not None and (over is None or unit.gone_at < over)
    return unit.state is UnitState.GONE and unit.gone_at is not None and (early or not asked)


class SpotBook:
    """The experience of our own spot leases, summed by offer, SKU and provider."""

    def __init__(self, times: Iterable[SpotTime], prior: SpotPrior) -> None:
        self._prior = prior
        self._hours: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._losses: defaultdict[tuple[str, ...], int] = defaultdict(int)
        for one in times:
            for level in _levels(one.provider, one.sku, one.offer_id):
                self._hours[level] += one.node_hours
                self._losses[level] += one.losses

    def rate(self, offer: Offer) -> float:
        """Expected interruptions per node-hour."""
        rate = self._prior.interruptions_per_hour
        for level in _levels(offer.provider, offer.sku.name, offer.offer_id):
            hours, losses = self._hours.get(level, 0.0), self._losses.get(level, 0)
            rate = (rate * self._prior.node_hours + losses) / (self._prior.node_hours + hours)
        return rate

    def basis(self, offer: Offer) -> RateBasis:
        """OWN_LEASES if we held spot capacity of this provider before, else ASSUMED."""
        levels = _levels(offer.provider, offer.sku.name, offer.offer_id)
        seen = any(self._hours.get(level, 0.0) > 0 for level in levels)
        return RateBasis.OWN_LEASES if seen else RateBasis.ASSUMED

    def with_rates(self, offers: Iterable[Offer]) -> tuple[Offer, ...]:
        """``offers``; spot offers whose provider states no rate of interruptions get the estimated one."""
        return tuple(
            copy_with(offer, interruptions_per_hour=self.rate(offer), rate_basis=self.basis(offer))
            if offer.tier is Tier.SPOT and offer.interruptions_per_hour is None
            else offer
            for offer in offers
        )


def _levels(provider: str, sku: str, offer_id: str) -> tuple[tuple[str, ...], ...]:
    return (provider,), (provider, sku), (provider, sku, offer_id)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run: ``done_hours`` of its ``whole_hours`` of work, between ``start`` and ``deadline``.

    ``restart_hours`` is the time lost by one interruption or move.
    """

    done_hours: float
    whole_hours: float
    start: datetime
    deadline: datetime
    restart_hours: float

    def line_hours(self, now: datetime) -> float:
        """Hours of work that a steady pace would have done by ``now``."""
        span = (self.deadline - self.start) / HOUR
        share = (now - self.start) / HOUR / span if span > 0 else 1.0
        return self.whole_hours * min(1.0, max(0.0, share))


def may_stay_on_spot(progress: Progress, now: datetime) -> bool:
    """Whether the run's progress allows it to stay on capacity that may be interrupted."""
    left = progress.whole_hours - progress.done_hours
    if left <= 0:
        return True
    until_deadline = (progress.deadline - now) / HOUR
    if until_deadline < left + 2 * progress.restart_hours:
        return False
    return progress.done_hours >= progress.line_hours(now) - progress.restart_hours
