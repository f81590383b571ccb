"""From offers, price points and feeds to what the market pages show: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from statistics import median

from api.pages.cards import Card
from api.pages.charts import Charts, both_widths
from api.pages.curves import Curve, Drawing, curves
from api.pages.words import counted, place, seller, usd
from broker.domain.market import PricePoint
from broker.domain.offer import Offer
from broker.domain.window import Window

FILTERS: Mapping[str, str] = {"gpu": "GPU", "provider": "Provider", "region": "Region", "tier": "Tier"}
"""What the market can be narrowed by, and how it is called."""
SORTS: Mapping[str, Callable[[Offer], tuple[object, ...]]] = {
    "gpu_hour": lambda o: (gpu_hour_usd(o), o.offer_id),
    "node_hour": lambda o: (o.price_usd_per_node_hour, o.offer_id),
    "gpu": lambda o: (o.sku.gpu, gpu_hour_usd(o), o.offer_id),
    "provider": lambda o: (seller(o.provider), gpu_hour_usd(o), o.offer_id),
    "place": lambda o: (place(o), gpu_hour_usd(o), o.offer_id),
    "tier": lambda o: (str(o.tier), gpu_hour_usd(o), o.offer_id),
    "nodes": lambda o: (o.stock.nodes if o.stock.nodes is not None else -1, o.offer_id),
}
"""Columns that the offers can be sorted by; the first is the usual one."""
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Filter:
    """One choice of the market page: its values with their names, and the one that is chosen."""

    name: str
    label: str
    chosen: str
    choices: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PriceDay:
    """Lowest, middle and highest USD per node-hour of one day, and whether it was on sale at its end."""

    day: datetime
    low: Decimal
    middle: Decimal
    high: Decimal
    available: bool


def gpu_hour_usd(offer: Offer) -> Decimal:
    """USD per GPU and hour."""
    return offer.price_usd_per_node_hour / offer.sku.gpus_per_node


def matching_offers(offers: Iterable[Offer], wanted: Mapping[str, str]) -> list[Offer]:
    """Offers with every wished word; an empty wish takes all."""
    return [
        offer
        for offer in offers
        if all(not word or _word(offer, name) == word for name, word in wanted.items())
    ]


def market_filters(offers: Sequence[Offer], wanted: Mapping[str, str]) -> tuple[Filter, ...]:
    """What the market can be narrowed by, given what else is chosen."""
    return tuple(
        Filter(name, FILTERS[name], chosen, _choices(offers, name, wanted)) for name, chosen in wanted.items()
    )


def _choices(offers: Sequence[Offer], name: str, wanted: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    others = {other: word for other, word in wanted.items() if other != name}
    found = {_word(offer, name) for offer in matching_offers(offers, others)} | {wanted[name]} - {""}
    named = ((word, seller(word) if name == "provider" else word.replace("_", " ")) for word in found)
    return tuple(sorted(named, key=lambda pair: pair[1].lower()))


def _word(offer: Offer, name: str) -> str:
    return offer.sku.gpu if name == "gpu" else str(getattr(offer, name))


def market_cards(offers: Sequence[Offer]) -> tuple[Card, ...]:
    """What the chosen offers ask for a GPU-hour."""
    if not offers:
        return ()
    prices = sorted(gpu_hour_usd(offer) for offer in offers)
    sellers = len({offer.provider for offer in offers})
    return (
        Card("Offers that match", f"{len(offers):,}", f"from {counted(sellers, 'provider')}", lead=True),
        Card("Cheapest GPU-hour", _price(prices[0])),
        Card("Median GPU-hour", _price(median(prices))),
        Card("Dearest GPU-hour", _price(prices[-1])),
    )


def _price(amount: Decimal) -> str:
    return f"${amount:,.3f}"


def price_cards(offer: Offer, days: Sequence[PriceDay]) -> tuple[Card, ...]:
    """What an offer costs now, and did over the days that are shown."""
    now = offer.price_usd_per_node_hour
    cards = [Card("A node-hour now", usd(now), f"{_price(gpu_hour_usd(offer))} a GPU", lead=True)]
    if days:
        low, high = min(day.low for day in days), max(day.high for day in days)
        since = f"over {counted(len(days), 'day')}"
        cards += [
            Card("Lowest", usd(low), since),
            Card("Median of days", usd(median(day.middle for day in days)), since),
            Card("Highest", usd(high), since),
        ]
    return tuple(cards)


def price_days(points: Sequence[PricePoint], window: Window) -> tuple[PriceDay, ...]:
    """Days of ``window`` with the prices in force on them; a day before the first point has none."""
    days = []
    day = window.start.replace(hour=0, minute=0, second=0, microsecond=0)
    in_force: PricePoint | None = None
    rest = sorted(points, key=lambda point: point.at)
    while day < window.end:
        held = [in_force] if in_force is not None else []
        while rest and rest[0].at < day + DAY:
            held.append(rest.pop(0))
        if held:
            in_force = held[-1]
            prices = [point.price_usd_per_node_hour for point in held]
            days.append(PriceDay(day, min(prices), median(prices), max(prices), in_force.available))
        day += DAY
    return tuple(days)


def price_charts(points: Sequence[PricePoint], window: Window, name: str) -> Charts | None:
    """The price of an offer as it changed."""
    if not points:
        return None
    told = tuple((max(p.at, window.start), float(p.price_usd_per_node_hour)) for p in points)
    drawing = Drawing(window.start, window.end, (Curve(name, told, stepped=True),), now=window.end)
    title = "Price of a node-hour over time; the table below has each day's lowest, median and highest"
    return both_widths(lambda width: curves(drawing, title, width))
