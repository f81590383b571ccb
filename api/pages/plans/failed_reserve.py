"""What stopped the reserving of a plan, and the next best way. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from api.pages.parts.words import offer_words, seller, signed_usd, usd
from broker.domain.basics.errors import (
    BrokerError,
    InsufficientCapacity,
    PriceAboveLimit,
    ProviderError,
    StalePlan,
    StockHeld,
)
from broker.domain.basics.money import CENT
from broker.domain.holding.holding_orders import placement_cost_usd
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Placement, Plan

PLACEMENT_POINTER = re.compile(r"/placements/(\d+)(/|$)")


@dataclass(frozen=True, slots=True)
class Stopped:
    """What stopped the reserving of a placement: ``said``, what it costs now, and the next best way."""

    placement: int
    said: str
    now: str
    next_best: str


@dataclass(frozen=True, slots=True)
class FailedReserve:
    """A reserving that failed: why in general, and by placement.

    ``without``: the provider that a new plan has to leave out; empty where the broker leaves out by itself
    what was refused or is held by others. ``again``: what planning again does, in words.
    """

    title: str
    said: str
    stopped: tuple[Stopped, ...]
    without: str
    again: str

    def of(self, placement: int) -> Stopped | None:
        """What stopped a placement, by its index."""
        return next((one for one in self.stopped if one.placement == placement), None)


REMEMBERED = (InsufficientCapacity, PriceAboveLimit)
"""Refusals after which the next plan knows better by itself."""


def failed_reserve(
    plan: Plan,
    error: BrokerError,
    title: str,
    reservations: Iterable[Reservation],
    offers: Mapping[str, Offer],
) -> FailedReserve:
    """``reservations`` of the plan, newest first; ``offers``: those of the plan that are on sale now."""
    said = dict(_said_by_placement(plan, error, reservations))
    stopped = tuple(
        Stopped(index, words, _costs_now(plan.placements[index], offers), _next_best(plan.placements[index]))
        for index, words in sorted(said.items())
    )
    without = error.provider if isinstance(error, ProviderError) and not isinstance(error, REMEMBERED) else ""
    again = f"without {seller(without)}" if without else "without it"
    if isinstance(error, StalePlan | PriceAboveLimit):
        again = "at the price now"
    return FailedReserve(title, str(error), stopped, without, again)


def _said_by_placement(
    plan: Plan, error: BrokerError, reservations: Iterable[Reservation]
) -> Iterator[tuple[int, str]]:
    for problem in error.problems:
        found = PLACEMENT_POINTER.match(problem.pointer)
        if found is not None and int(found[1]) < len(plan.placements):
            yield int(found[1]), f"found {problem.found}, expected {problem.expected}"
    if isinstance(error, StockHeld):
        short = error.facts["offer_id"]
        yield from ((n, str(error)) for n, p in enumerate(plan.placements) if p.offer_id == short)
    if isinstance(error, ProviderError):
        tried = (row for row in reservations if row.state is ReservationState.FAILED and not row.not_tried)
        refused = next((row for row in tried if row.offer.provider == error.provider), None)
        if refused is not None:
            mine = [n for n, p in enumerate(plan.placements) if p.workload == refused.workload]
            exact = [n for n in mine if plan.placements[n].offer_id == refused.offer.offer_id]
            yield from ((n, refused.reason) for n in exact or mine)


def _costs_now(placement: Placement, offers: Mapping[str, Offer]) -> str:
    offer = offers.get(placement.offer_id)
    if offer is None:
        return "It is not on sale now."
    now = placement_cost_usd(placement, offer)
    if now == placement.cost_usd:
        return f"Its list price is as planned, {usd(now)}."
    return f"It costs {usd(now)} at its list price now, {usd(placement.cost_usd)} as planned."


def _next_best(placement: Placement) -> str:
    why = placement.why
    if why.next_best:
        offer_id, more = why.next_best[0].offer_id, why.next_best[0].more_usd
    elif why.runner_up is not None:
        offer_id, more = why.runner_up.offer_id, why.runner_up.cost_usd - placement.cost_usd
    else:
        return "No other way was found when it was planned."
    much = "at the same cost" if abs(more) < CENT else signed_usd(more)
    return f"Next best when it was planned: {offer_words(offer_id)}, {much}."
