"""What the sandbox sells: recorded, dated prices, with stock drawn by seed.

The only reader of ``fixtures/market/real_prices.csv``. Prices are recorded, never live: each item says when
and where its price was seen, and rows without a recording say ``illustrative``.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from functools import cache, cached_property, lru_cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

from pydantic import TypeAdapter

from broker.data_folder import data_folder
from broker.domain.basics.money import format_usd
from providers.sandbox.ledger import Entry, Ledger, Tariff
from providers.sandbox.store import Store

PRICES = data_folder("fixtures", "market") / "real_prices.csv"
ILLUSTRATIVE = "illustrative, not recorded"
WINDOW = "window"
_PRICE, _STOCK = "market_price", "market_stock"
_COUNTED = re.compile(r"(?P<before>\d+)\s*x[\s_-]*(?P<last>.+)|(?P<first>.+?)[\s_-]*x(?P<after>\d+)")


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded price: USD per node-hour, and the day (or year) of the recording; "" = unknown."""

    provider: str
    sku: str
    gpu: str
    gpus: int
    tier: str
    usd_per_node_hour: Decimal
    region: str = ""
    zone: str = ""
    gpu_memory_gb: int = 0
    vcpus: float | None = None
    memory_gb: float | None = None
    stock: str = ""
    recorded_on: str = ""
    source: str = ""


_RECORDED = TypeAdapter(Recorded)


@cache
def recorded_prices(provider: str) -> tuple[Recorded, ...]:
    """A provider's newest recorded row per (sku, region, zone, tier), in the order of the file."""
    newest: dict[tuple[str, str, str, str], Recorded] = {}
    with PRICES.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["provider"] != provider:
                continue
            found = _recorded(row)
            key = (found.sku, found.region, found.zone, found.tier)
            if key not in newest or found.recorded_on > newest[key].recorded_on:
                newest[key] = found
    return tuple(newest.values())


def _recorded(row: Mapping[str, str]) -> Recorded:
    cells = {column: text for column, text in row.items() if text}
    renamed = {"gpus": row["gpus_per_node"], "usd_per_node_hour": row["price_usd_per_node_hour"]}
    return _RECORDED.validate_python({**cells, **renamed})


@dataclass(frozen=True)
class InventoryItem:
    """One SKU in one place, with a price and a stock.

    Without ``tier``, ``recorded_on`` and ``source`` it is sold on demand and was not recorded. ``unit``:
    what price and capacity count ("node", or "gpu" where the provider prices GPUs). ``price_key``: items that
    the provider's API can only price together share it (unless given: all of one SKU). ``pool``: items of
    one pool share their units. ``usd_per_hour`` None: listed without a price. ``aliases`` and ``places``:
    other names of the SKU and the place, which the control endpoint accepts.
    """

    provider: str
    sku: str
    region: str
    gpu: str
    gpus: int
    usd_per_hour: Decimal | None
    capacity: int
    zone: str = ""
    tier: str = "on_demand"
    recorded_on: str = ""
    source: str = ILLUSTRATIVE
    price_key: str = ""
    unit: str = "node"
    gpu_memory_gb: int = 0
    vcpus: float | None = None
    memory_gb: float | None = None
    pool: str = ""
    aliases: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()
    labels: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.price_key:
            object.__setattr__(self, "price_key", f"{self.provider}|{self.sku}")

    @cached_property
    def key(self) -> str:
        """The item's name in the ledger and in overrides."""
        return "|".join((self.provider, self.sku, self.region, self.zone, self.tier))

    @property
    def stock_key(self) -> str:
        """The name of the stock from which its units are taken."""
        return self.pool or self.key

    def is_called(self, sku: str) -> bool:
        """Whether ``sku`` is one of its names, in any case of letters."""
        names = {self.sku, self.gpu} | self.aliases
        return sku.casefold() in {name.casefold() for name in names}

    def is_in(self, region: str | None, tier: str | None) -> bool:
        """Whether it lies in ``region`` (or zone) and ``tier``; None means any."""
        places = {self.region, self.zone} | self.places
        return (region is None or region in places) and (tier is None or tier == self.tier)

    def bought(
        self, now: datetime, instance_id: str, tag: str, tariff: Tariff, nodes: int = 1, **changes: Any
    ) -> Entry:
        """A purchase of as many units as ``nodes`` from ``now`` on; ``changes``: values of other fields."""
        entry = Entry(
            provider=self.provider,
            instance_id=instance_id,
            tag=tag,
            sku=self.sku,
            region=self.region,
            zone=self.zone,
            tier=self.tier,
            nodes=nodes,
            units=nodes,
            stock_key=self.stock_key,
            created_at=now,
            starts_at=now,
            tariff=tariff,
        )
        return replace(entry, **changes)


def recorded_item(row: Recorded, region: str, capacity: int, **changes: Any) -> InventoryItem:
    """A recorded node, sold in ``region`` at its one price; ``changes``: values of other fields."""
    item = InventoryItem(
        provider=row.provider,
        sku=row.sku,
        region=region,
        tier=row.tier,
        gpu=row.gpu,
        gpus=row.gpus,
        usd_per_hour=row.usd_per_node_hour,
        capacity=capacity,
        recorded_on=row.recorded_on,
        source=row.source,
        gpu_memory_gb=row.gpu_memory_gb,
        vcpus=row.vcpus,
        memory_gb=row.memory_gb,
    )
    return replace(item, **changes)


Sold = TypeVar("Sold", Recorded, InventoryItem)


def by_sku(rows: Iterable[Sold]) -> dict[str, list[Sold]]:
    """Rows or items by SKU, in their order."""
    groups: dict[str, list[Sold]] = {}
    for row in rows:
        groups.setdefault(row.sku, []).append(row)
    return groups


def draw(seed: int, *parts: object) -> float:
    """A number in [0, 1) that depends on ``seed`` and ``parts`` alone."""
    text = "|".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / 2**56


def draw_count(low: int, high: int, seed: int, *parts: object) -> int:
    """A whole number in [low, high]."""
    return low + int(draw(seed, *parts) * (high - low + 1))


Drawing = ParamSpec("Drawing")


def drawn_once(
    items: Callable[Drawing, Iterable[InventoryItem]],
) -> Callable[Drawing, tuple[InventoryItem, ...]]:
    """Caches items that depend on ``items``'s arguments only: equal markets of one process share them."""

    @lru_cache(maxsize=8)
    @wraps(items)
    def drawn(*args: Drawing.args, **kwargs: Drawing.kwargs) -> tuple[InventoryItem, ...]:
        return tuple(items(*args, **kwargs))

    return cast("Callable[Drawing, tuple[InventoryItem, ...]]", drawn)


class Market:
    """Items of all providers, with the changes of the control endpoint."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._inventory: dict[str, InventoryItem] = {}

    def add(self, items: Iterable[InventoryItem]) -> tuple[InventoryItem, ...]:
        """Puts items on sale; ValueError for two items with one key."""
        added = tuple(items)
        for item in added:
            if item.key in self._inventory:
                raise ValueError(f"two inventory items are called {item.key}")
            self._inventory[item.key] = item
        return added

    def inventory(self, provider: str | None = None) -> list[InventoryItem]:
        """Items on sale."""
        return [item for item in self._inventory.values() if provider is None or item.provider == provider]

    def price(self, item: InventoryItem) -> Decimal | None:
        """USD per unit and hour in force."""
        change = self._store.document(_PRICE, item.price_key)
        if change is None:
            return item.usd_per_hour
        if change.get("usd") is not None:
            return Decimal(change["usd"])
        return None if item.usd_per_hour is None else item.usd_per_hour * Decimal(change["factor"])

    def capacity(self, item: InventoryItem) -> int:
        """Units that exist, free or held (of a window item: units on each day)."""
        change = self._store.document(_STOCK, item.stock_key)
        return item.capacity if change is None else int(change["capacity"])

    def capacity_was_set(self, item: InventoryItem) -> bool:
        """Whether the control endpoint set the stock of ``item``."""
        return self._store.document(_STOCK, item.stock_key) is not None

    def free(self, item: InventoryItem, now: datetime) -> int:
        """Units that can be bought now."""
        held = self._ledger.held_units(item.provider, now)[item.stock_key]
        return max(0, self.capacity(item) - held)

    def free_by_key(self, provider: str, now: datetime) -> dict[str, int]:
        """Units that can be bought now, by item key."""
        held = self._ledger.held_units(provider, now)
        return {c.key: max(0, self.capacity(c) - held[c.stock_key]) for c in self.inventory(provider)}

    def find(
        self, provider: str, sku: str, region: str | None, tier: str | None
    ) -> tuple[list[InventoryItem], int]:
        """Items that a control request means, and how many of their units make one of ``sku``.

        Where GPUs are priced one by one, ``8x NAME`` and ``NAME x8`` mean eight of them, and the name of
        a machine means all its GPUs.
        """
        items = self.inventory(provider)
        found, units = [item for item in items if item.is_called(sku)], 1
        if found and all(item.unit == "gpu" and item.sku.casefold() == sku.casefold() for item in found):
            units = found[0].gpus
        counted = _COUNTED.fullmatch(sku)
        if not found and counted:
            units = int(counted["before"] or counted["after"])
            name = counted["first"] or counted["last"]
            found = [item for item in items if item.unit == "gpu" and item.is_called(name)]
        return [item for item in found if item.is_in(region, tier)], units

    def set_price(self, items: Sequence[InventoryItem], usd: Decimal | None, factor: Decimal | None) -> None:
        """Sets the price of a unit, or a factor on the recorded price (a new factor replaces the old one)."""
        change = {"usd": None if usd is None else str(usd), "factor": None if factor is None else str(factor)}
        for price_key in {item.price_key for item in items}:
            self._store.put_document(_PRICE, price_key, change)

    def set_stock(self, items: Sequence[InventoryItem], free: int, now: datetime) -> None:
        """Makes ``free`` units of each item buyable now; of a window item, sets the units of every day."""
        for item in items:
            held = 0 if item.tier == WINDOW else self._ledger.held_units(item.provider, now)[item.stock_key]
            self._store.put_document(_STOCK, item.stock_key, {"capacity": free + held})


def market_row(market: Market, item: InventoryItem, free: int) -> dict[str, Any]:
    """An item as ``GET /_sandbox/market`` shows it."""
    price = market.price(item)
    return {
        "provider": item.provider,
        "sku": item.sku,
        "region": item.region,
        "zone": item.zone or None,
        "tier": item.tier,
        "gpu": item.gpu,
        "gpus_per_node": item.gpus,
        "unit": item.unit,
        "usd_per_unit_hour": None if price is None else format_usd(price),
        "recorded_usd_per_unit_hour": None if item.usd_per_hour is None else format_usd(item.usd_per_hour),
        "recorded_on": item.recorded_on or None,
        "source": item.source,
        "capacity": market.capacity(item),
        "free": free,
    }
