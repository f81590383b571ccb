"""The points that a round adds to the price history. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from broker.domain.basics.money import from_micro_usd, to_micro_usd
from broker.domain.market.market import PricePoint
from broker.domain.market.offer import Offer, StockLevel


@dataclass(frozen=True, slots=True)
class PriceState:
    """The part of an offer whose change is a point. Price in micro-USD per node-hour."""

    price_micro_usd: int
    stock_nodes: int | None
    available: bool


def offer_is_available(offer: Offer) -> bool:
    """Whether any node is available: the level is not "none" and the count is not zero."""
    return offer.stock.level is not StockLevel.NONE and offer.stock.nodes != 0


def price_state(offer: Offer) -> PriceState:
    """The price state of ``offer``."""
    price = to_micro_usd(offer.price_usd_per_node_hour)
    return PriceState(price, offer.stock.nodes, offer_is_available(offer))


def points_of_change(
    before: Mapping[str, PriceState], after: Mapping[str, Offer], round_at: datetime
) -> list[PricePoint]:
    """A point at ``round_at`` for each offer that is new, changed, or gone (with its last price)."""
    points = []
    for offer_id, offer in after.items():
        state = price_state(offer)
        if before.get(offer_id) != state:
            points.append(_point(offer_id, round_at, state))
    for offer_id, state in before.items():
        if offer_id not in after and state.available:
            points.append(_point(offer_id, round_at, PriceState(state.price_micro_usd, 0, False)))
    return points


def _point(offer_id: str, at: datetime, state: PriceState) -> PricePoint:
    price = from_micro_usd(state.price_micro_usd)
    return PricePoint(offer_id, at, price, state.stock_nodes, state.available)
