"""How recent refusals of orders change the offers of the next plan. Pure.

For an hour (``HOLDS``) an offer keeps the higher price that its provider asked, and a window that was sold
out stays out of the market. After that the provider's list has been polled many times. Stock-outs of hourly
capacity pass sooner; they count in the launch statistics (``launches``) instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from broker.domain.basics.window import Segment, Window
from broker.domain.holding.launches import LaunchAttempt, LaunchOutcome
from broker.domain.market.offer import Offer, WindowTerms

HOLDS = timedelta(hours=1)


def after_refusals(
    offers: Iterable[Offer], attempts: Iterable[LaunchAttempt], now: datetime
) -> tuple[Offer, ...]:
    """``offers`` at the prices that providers asked within HOLDS, without windows that were sold out."""
    refused: defaultdict[str, list[LaunchAttempt]] = defaultdict(list)
    for attempt in attempts:
        if now - attempt.asked_at < HOLDS:
            refused[attempt.offer_id].append(attempt)
    told = (_told(offer, refused[offer.offer_id]) if offer.offer_id in refused else offer for offer in offers)
    return tuple(offer for offer in told if offer is not None)


def _told(offer: Offer, attempts: Sequence[LaunchAttempt]) -> Offer | None:
    """``offer`` after the refusals of its own orders; None if nothing of it is left."""
    for attempt in attempts:
        left: Offer | None = offer
        if attempt.outcome is LaunchOutcome.TOO_DEAR:
            left = _at_least(offer, attempt)
        elif attempt.outcome is LaunchOutcome.NO_CAPACITY and attempt.ends_at is not None:
            left = _without(offer, attempt.due_at, attempt.ends_at)
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
