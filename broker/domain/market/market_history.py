"""A recorded market history, and its replay: the offers on sale at each instant. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from operator import attrgetter

from broker.domain.basics.money import CENT, to_micro_usd
from broker.domain.basics.window import Window
from broker.domain.market.market import OfferChange, PricePoint, diff_rounds
from broker.domain.market.offer import Offer, Stock, StockLevel


def as_of_point(offer: Offer, point: PricePoint) -> Offer:
    """``offer`` with the price and stock of ``point``; an upfront fee is scaled with the price.

    Points are kept in millionths of a dollar: a price that agrees with the offer's so far is the offer's.
    """
    price = point.price_usd_per_node_hour
    upfront, before = offer.upfront_usd, offer.price_usd_per_node_hour
    if to_micro_usd(price) == to_micro_usd(before):
        price = before
    if upfront is not None and before:
        upfront = (upfront * price / before).quantize(CENT)
    stock = offer.stock
    if stock.nodes != point.stock_nodes or stock.level is StockLevel.NONE:
        stock = Stock(StockLevel.UNKNOWN, point.stock_nodes, stock.pool)
    return replace(
        offer, price_usd_per_node_hour=price, upfront_usd=upfront, stock=stock, observed_at=point.at
    )


@dataclass(frozen=True, slots=True)
class MarketHistory:
    """Price points in order of time, and ``offers`` by id as they were last seen.

    The history is complete up to ``until`` (None: up to the last point).
    """

    offers: Mapping[str, Offer] = field(hash=False)
    points: tuple[PricePoint, ...]
    until: datetime | None = None

    @property
    def span(self) -> Window | None:
        """From the first point to the end of the history; None if that is empty."""
        if not self.points:
            return None
        end = max(self.points[-1].at, self.until or self.points[-1].at)
        return Window(self.points[0].at, end) if self.points[0].at < end else None

    def within(self, window: Window) -> MarketHistory:
        """The history within ``window``; points that were in force at its start are dated to its start."""
        before = {point.offer_id: point for point in self.points if point.at <= window.start}
        opening = [replace(point, at=window.start) for point in before.values()]
        inside = [point for point in self.points if window.start < point.at < window.end]
        return MarketHistory(self.offers, (*opening, *inside), window.end)


def history_of(markets: Iterable[tuple[datetime, tuple[Offer, ...]]]) -> MarketHistory:
    """The history of recorded markets, which must be in order of time: a point for each change."""
    seen: dict[str, Offer] = {}
    before: dict[str, Offer] = {}
    points: list[PricePoint] = []
    at = None
    for at, offers in markets:
        now = {offer.offer_id: offer for offer in offers}
        for change in diff_rounds(before.values(), offers, at):
            offer = now.get(change.offer_id)
            price = (offer or before[change.offer_id]).price_usd_per_node_hour
            nodes = 0 if offer is None else offer.stock.nodes
            points.append(PricePoint(change.offer_id, at, price, nodes, _is_available(offer)))
        seen |= now
        before = now
    return MarketHistory(seen, tuple(points), at)


def _is_available(offer: Offer | None) -> bool:
    return offer is not None and offer.stock.level is not StockLevel.NONE and offer.stock.nodes != 0


class MarketReplay:
    """Plays a history forward. ``market`` holds the offers on sale at the current step, by id."""

    def __init__(self, history: MarketHistory) -> None:
        self._offers = history.offers
        self._steps: Iterator[tuple[datetime, list[PricePoint]]] = iter(
            [(at, list(points)) for at, points in groupby(history.points, key=attrgetter("at"))]
        )
        self.market: dict[str, Offer] = {}

    def steps(self) -> Iterator[tuple[datetime, tuple[OfferChange, ...]]]:
        """Each instant in turn, with its changes. ``market`` is as of the latest one."""
        for at, points in self._steps:
            touched = {point.offer_id for point in points}
            before = [self.market[key] for key in touched if key in self.market]
            for point in points:
                if point.available:
                    self.market[point.offer_id] = as_of_point(self._offers[point.offer_id], point)
                else:
                    self.market.pop(point.offer_id, None)
            after = [self.market[key] for key in touched if key in self.market]
            yield at, diff_rounds(before, after, at)
