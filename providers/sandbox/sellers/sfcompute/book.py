"""SF Compute's order book: free nodes of each zone over time, and their price.

Free nodes are drawn by seed per zone and UTC day, over eight weeks. The price of a zone moves from day to
day around its base figure, which is illustrative (this market's prices were never recorded).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from itertools import pairwise
from typing import ClassVar

from broker.domain.basics.money import ZERO
from providers.sandbox.ledger import Entry
from providers.sandbox.market import InventoryItem, draw, draw_count, drawn_once
from providers.sandbox.protocol import SandboxState

HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_AHEAD_DAYS = 56
_SOLD_OUT_DAYS = 0.06

_ZONES = (
    ("hayesvalley", "Hayes Valley", "NorthAmerica", "H100", "Infiniband", "VM", "13.90", (8, 40)),
    ("richmond", "Richmond", "NorthAmerica", "H100", "Infiniband", "K8s", "13.90", (16, 48)),
    ("alamo", "Alamo", "EuropeMiddleEastAfrica", "H100", "Infiniband", "K8s", "14.40", (8, 24)),
    ("yerba", "Yerba Buena", "NorthAmerica", "H200", "Infiniband", "K8s", "16.00", (8, 40)),
    ("sunset", "Sunset", "AsiaPacific", "H200", "Infiniband", "K8s", "16.80", (4, 16)),
    ("landsend", "Land's End", "NorthAmerica", "H200", "None", "K8s", "15.20", (0, 0)),
)
"""Name, display, area, hardware, interconnect, delivery, USD per node-hour, drawn nodes; one is empty."""

_SKUS = {"H100": "h100i", "H200": "h200ki"}


@drawn_once
def sfc_inventory(seed: int) -> Iterator[InventoryItem]:
    """An item per zone, counted in nodes."""
    for name, display, area, hardware, interconnect, delivery, usd, (low, high) in _ZONES:
        canonical = "H100-SXM-80GB" if hardware == "H100" else "H200-SXM-141GB"
        also = {hardware, "h100v"} if delivery == "VM" else {hardware}
        yield InventoryItem(
            provider="sfcompute",
            sku=_SKUS[hardware],
            region=area,
            zone=name,
            tier="window",
            gpu=canonical,
            gpus=8,
            usd_per_hour=Decimal(usd),
            capacity=draw_count(low, high, seed, name),
            price_key=f"sfcompute|{name}",
            aliases=frozenset(also),
            labels={
                "display_name": display,
                "hardware": hardware,
                "interconnect": interconnect,
                "delivery": delivery,
            },
        )


@dataclass(frozen=True, slots=True)
class Wish:
    """A quote request: nodes of a type, a range of starts, a range of lengths in seconds."""

    instance_type: str
    quantity: int
    earliest: datetime
    latest: datetime
    shortest_s: int
    longest_s: int
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Quote:
    """One window in one zone and its price in whole cents for all nodes and hours."""

    item: InventoryItem
    start: datetime
    end: datetime
    cents: int


class Book:
    """Free nodes and prices."""

    BID_SHARE: ClassVar[Decimal] = Decimal("0.8")
    """Best bid over best ask (illustrative)."""

    def __init__(self, sandbox: SandboxState) -> None:
        self._sandbox = sandbox

    def zones(self) -> list[InventoryItem]:
        """Every zone."""
        return self._sandbox.market.inventory("sfcompute")

    def zones_for(self, wish: Wish) -> list[InventoryItem]:
        """Zones that sell the type."""
        return [
            item
            for item in self.zones()
            if wish.instance_type in {item.sku} | item.aliases and wish.zone in {None, item.zone}
        ]

    def rectangles(self, item: InventoryItem) -> list[tuple[datetime, datetime, int]]:
        """Free nodes of a zone as steps from this minute over eight weeks; equal neighbours are joined."""
        now = self._sandbox.clock.now().replace(second=0, microsecond=0)
        until = _midnight(now) + _AHEAD_DAYS * _DAY
        bought = self._bought(item)
        edges = {now, until} | {_midnight(now) + day * _DAY for day in range(1, _AHEAD_DAYS)}
        edges |= {edge for entry in bought for edge in _span(entry) if now < edge < until}
        found: list[tuple[datetime, datetime, int]] = []
        ordered = sorted(edges)
        for start, end in pairwise(ordered):
            nodes = self._free_at(item, start, bought)
            if found and found[-1][1:] == (start, nodes):
                found[-1] = (found[-1][0], end, nodes)
            elif nodes > 0:
                found.append((start, end, nodes))
        return found

    def cheapest(self, wish: Wish) -> Quote | None:
        """The cheapest window that fits the wish, the earliest of equals."""
        best: Quote | None = None
        for item in self.zones_for(wish):
            bought = self._bought(item)
            for start in _starts(wish):
                quote = self._quote(item, start, wish, bought)
                if quote is not None and (best is None or quote.cents < best.cents):
                    best = quote
        return best

    def _quote(self, item: InventoryItem, start: datetime, wish: Wish, bought: list[Entry]) -> Quote | None:
        end = _hour_up(start + timedelta(seconds=wish.shortest_s))
        if end > start + timedelta(seconds=wish.longest_s) + HOUR:
            return None
        if self._least_free_over(item, start, end, bought) < wish.quantity:
            return None
        cents = (wish.quantity * self.node_cost_usd(item, start, end) * 100).to_integral_value(ROUND_CEILING)
        return Quote(item, start, end, int(cents))

    def _least_free_over(
        self, item: InventoryItem, start: datetime, end: datetime, bought: list[Entry]
    ) -> int:
        """Nodes that are free throughout ``[start, end)``; 0 before this minute and beyond eight weeks."""
        now = self._sandbox.clock.now().replace(second=0, microsecond=0)
        if start < now or end > _midnight(now) + _AHEAD_DAYS * _DAY:
            return 0
        edges = {start} | {edge for entry in bought for edge in _span(entry) if start < edge < end}
        day = _midnight(start) + _DAY
        while day < end:
            edges.add(day)
            day += _DAY
        return min(self._free_at(item, edge, bought) for edge in edges)

    def node_cost_usd(self, item: InventoryItem, start: datetime, end: datetime) -> Decimal:
        """USD of one node over ``[start, end)``, day by day."""
        total, at = ZERO, start
        while at < end:
            following = min(_midnight(at) + _DAY, end)
            hours = Decimal((following - at) // timedelta(seconds=1)) / 3600
            total += hours * self.day_price(item, at)
            at = following
        return total

    def day_price(self, item: InventoryItem, at: datetime) -> Decimal:
        """USD per node-hour in a zone on a day: its price times a drawn 0.95 to 1.10."""
        price = self._sandbox.market.price(item) or ZERO
        moved = 95 + int(16 * draw(self._sandbox.seed, item.key, at.date(), "price"))
        return (price * moved / 100).quantize(Decimal("0.000001"))

    def buy_back_cents(self, entry: Entry, now: datetime) -> int:
        """What the best bid pays for the rest of a contract."""
        item = next(item for item in self.zones() if item.stock_key == entry.stock_key)
        start, end = max(now, entry.starts_at), entry.ends_at
        assert end is not None
        usd = entry.nodes * self.node_cost_usd(item, start, end) * self.BID_SHARE
        return int(usd * 100)

    def _bought(self, item: InventoryItem) -> list[Entry]:
        live = self._sandbox.ledger.live("sfcompute", self._sandbox.clock.now())
        return [entry for entry in live if entry.stock_key == item.stock_key]

    def _free_at(self, item: InventoryItem, at: datetime, bought: list[Entry]) -> int:
        held = sum(entry.units for entry in bought if _span(entry)[0] <= at < _span(entry)[1])
        return max(0, self._existing(item, at) - held)

    def _existing(self, item: InventoryItem, at: datetime) -> int:
        pool = self._sandbox.market.capacity(item)
        if self._sandbox.market.capacity_was_set(item):
            return pool
        lot = (self._sandbox.seed, item.key, at.date(), "nodes")
        if draw(*lot, "sold out") < _SOLD_OUT_DAYS:
            return 0
        week = draw(self._sandbox.seed, item.key, at.isocalendar()[:2])
        return int(pool * (0.4 + 0.6 * week))


def _span(entry: Entry) -> tuple[datetime, datetime]:
    assert entry.ends_at is not None
    return entry.starts_at, entry.ends_at


def _starts(wish: Wish) -> Iterator[datetime]:
    """The earliest start, then every full hour of the range."""
    yield wish.earliest
    at = _hour_up(wish.earliest)
    if at == wish.earliest:
        at += HOUR
    while at <= wish.latest:
        yield at
        at += HOUR


def _hour_up(instant: datetime) -> datetime:
    floor = instant.replace(minute=0, second=0, microsecond=0)
    return floor if floor == instant else floor + HOUR


def _midnight(instant: datetime) -> datetime:
    return instant.replace(hour=0, minute=0, second=0, microsecond=0)
