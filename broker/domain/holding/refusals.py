"""How recent refusals of orders change the offers of the next plan. Pure.

For an hour (``HOLDS``) an offer keeps the higher price that its provider asked, and a window that was sold
out stays out of the market. After that the provider's list has been polled many times. Stock-outs of hourly
capacity pass sooner: for ten minutes (``HOURLY_HOLDS``) fewer nodes than were refused are taken to be there.
A refusal for lack of capacity says nothing any more once the provider's own price or stock has changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType

from broker.domain.basics.window import Segment, Window
from broker.domain.holding.launches import LaunchAttempt, LaunchOutcome
from broker.domain.market.market import PricePoint
from broker.domain.market.offer import Offer, WindowTerms

HOLDS = timedelta(hours=1)
HOURLY_HOLDS = timedelta(minutes=10)
UNKNOWN_SIZES: Mapping[str, int] = MappingProxyType({})
MOST_NAMED = 3
"""Offers that a note names; the rest is counted."""


def stands_until(attempt: LaunchAttempt) -> datetime:
    """Until when a refusal changes plans at the latest."""
    hourly = attempt.outcome is LaunchOutcome.NO_CAPACITY and attempt.ends_at is None
    return attempt.asked_at + (HOURLY_HOLDS if hourly else HOLDS)


def without_capacity(attempts: Iterable[LaunchAttempt], now: datetime) -> tuple[LaunchAttempt, ...]:
    """The refusals for lack of capacity among ``attempts`` that still change plans."""
    return tuple(
        one for one in attempts if one.outcome is LaunchOutcome.NO_CAPACITY and now < stands_until(one)
    )


def outlived(refused: Iterable[LaunchAttempt], points: Iterable[PricePoint]) -> frozenset[str]:
    """Ids of the reservations whose refusal is older than a change of the offer's price or stock."""
    latest: dict[str, datetime] = {}
    for point in points:
        latest[point.offer_id] = max(point.at, latest.get(point.offer_id, point.at))
    return frozenset(
        one.reservation_id for one in refused if latest.get(one.offer_id, one.asked_at) > one.asked_at
    )


def refusal_note(refused: Sequence[LaunchAttempt]) -> str:
    """A sentence about the offers that are left out after ``refused`` orders; empty if there are none."""
    until = {_named(one): stands_until(one) for one in sorted(refused, key=stands_until)}
    if not until:
        return ""
    named = ", ".join(f"{name} until {at:%H:%M}" for name, at in sorted(until.items())[:MOST_NAMED])
    rest = f" and {len(until) - MOST_NAMED} more" if len(until) > MOST_NAMED else ""
    return (
        f"left out because the seller refused an order for lack of capacity: {named} UTC{rest}; each returns "
        "sooner if its price or stock changes"
    )


def _named(refused: LaunchAttempt) -> str:
    """The offer, and of a window the hours that are left out."""
    if refused.ends_at is None:
        return refused.offer_id
    return f"{refused.offer_id} ({refused.due_at:%d %b %H:%M} to {refused.ends_at:%d %b %H:%M})"


def after_refusals(
    offers: Iterable[Offer],
    attempts: Iterable[LaunchAttempt],
    now: datetime,
    nodes: Mapping[str, int] = UNKNOWN_SIZES,
) -> tuple[Offer, ...]:
    """``offers`` at the prices that providers asked within HOLDS, without windows that were sold out.

    ``nodes``: how many were ordered, by reservation; of hourly capacity fewer than those are left.
    """
    refused: defaultdict[str, list[LaunchAttempt]] = defaultdict(list)
    for attempt in attempts:
        if now < stands_until(attempt):
            refused[attempt.offer_id].append(attempt)
    told = (
        _told(offer, refused[offer.offer_id], nodes) if offer.offer_id in refused else offer
        for offer in offers
    )
    return tuple(offer for offer in told if offer is not None)


def _told(offer: Offer, attempts: Sequence[LaunchAttempt], nodes: Mapping[str, int]) -> Offer | None:
    """``offer`` after the refusals of its own orders; None if nothing of it is left."""
    for attempt in attempts:
        left: Offer | None = offer
        if attempt.outcome is LaunchOutcome.TOO_DEAR:
            left = _at_least(offer, attempt)
        elif attempt.outcome is LaunchOutcome.NO_CAPACITY and attempt.ends_at is not None:
            left = _without(offer, attempt.due_at, attempt.ends_at)
        elif attempt.outcome is LaunchOutcome.NO_CAPACITY and attempt.reservation_id in nodes:
            left = _fewer(offer, nodes[attempt.reservation_id])
        if left is None:
            return None
        offer = left
    return offer


def _at_least(offer: Offer, attempt: LaunchAttempt) -> Offer | None:
    """``offer`` at the price that was asked, if that is higher; None if it is listed or the price unknown."""
    asks = attempt.asks_usd_per_node_hour
    if offer.contract is not None:
        return offer
    if asks is None or offer.is_sold_whole:
        return None
    return replace(offer, price_usd_per_node_hour=max(asks, offer.price_usd_per_node_hour))


def _fewer(offer: Offer, nodes: int) -> Offer | None:
    """``offer`` with fewer than ``nodes`` nodes in stock; None if that is none."""
    stock = offer.stock
    left = nodes - 1 if stock.nodes is None else min(stock.nodes, nodes - 1)
    return replace(offer, stock=replace(stock, nodes=left)) if left > 0 else None


def _without(offer: Offer, start: datetime, end: datetime) -> Offer | None:
    """``offer`` without the time from ``start`` to ``end``; None if no free time is left or listed."""
    terms = offer.window
    if terms is None or start >= end:
        return offer
    if offer.is_sold_whole or not terms.segments:
        return None
    segments = tuple(_cut(terms, Window(start, end)))
    return replace(offer, window=replace(terms, segments=segments)) if segments else None


def _cut(terms: WindowTerms, gone: Window) -> Iterator[Segment]:
    for segment in terms.segments:
        if not segment.window.overlaps(gone):
            yield segment
            continue
        if segment.start < gone.start:
            yield Segment(segment.start, gone.start, segment.nodes)
        if gone.end < segment.end:
            yield Segment(gone.end, segment.end, segment.nodes)
