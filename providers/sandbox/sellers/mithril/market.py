"""What Mithril sells in the sandbox: auctions and reservable windows by instance type and region.

Recorded are the lowest bids of four items (the catalogue's word for them, not a market price); reserved
prices were never recorded. Everything that no recording backs is illustrative.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise

from providers.sandbox.ledger import Entry
from providers.sandbox.market import (
    ILLUSTRATIVE,
    WINDOW,
    InventoryItem,
    draw,
    draw_count,
    drawn_once,
    recorded_prices,
)
from providers.sandbox.protocol import SandboxState

NAME = "mithril"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
AHEAD = timedelta(days=60)
"""How far ahead windows are sold (illustrative)."""
SOLD_OUT_DAYS = 0.08
REGIONS = ("us-central1-a", "us-central1-b", "us-central2-a", "us-central2-b", "us-central3-a", "us-east1-a")


@dataclass(frozen=True, slots=True)
class Kind:
    """An instance type as the API describes it."""

    name: str
    gpu: str
    gpu_type: str
    socket: str
    gpus: int
    gpu_gb: int
    cpus: int
    ram_gb: int
    ib_count: int
    spot_usd: str
    reserved_usd: str


KINDS = (
    Kind("h100-80gb.sxm.1x", "H100-SXM-80GB", "H100", "SXM5", 1, 80, 20, 226, 0, "1.00", "3.00"),
    Kind("h100-80gb.sxm.8x", "H100-SXM-80GB", "H100", "SXM5", 8, 80, 168, 1814, 8, "8.00", "24.00"),
    Kind("ccs-h200.sxm.1x", "H200-SXM-141GB", "H200", "SXM5", 1, 141, 20, 200, 0, "1.00", "3.60"),
    Kind("ccs-h200.sxm.8x", "H200-SXM-141GB", "H200", "SXM5", 8, 141, 168, 1600, 8, "8.00", "28.80"),
    Kind("a100-80gb.sxm.8x", "A100-SXM-80GB", "A100", "SXM4", 8, 80, 120, 900, 4, "7.20", "12.80"),
    Kind("b200-180gb.sxm.8x", "B200-SXM-180GB", "B200", "SXM6", 8, 180, 224, 2900, 8, "17.60", "39.20"),
    Kind("cpu.32x", "CPU only", "", "", 0, 0, 32, 128, 0, "0.80", "1.00"),
    Kind("x900.sxm.4x", "X900", "X900", "SXM9", 4, 64, 96, 1024, 0, "3.00", "6.00"),
    Kind("h100-80gb.sxm.4x", "H100-SXM-80GB", "H100", "SXM5", 4, 80, 84, 904, 0, "0.00", "12.00"),
)
"""The last three are odd: no GPU, an unknown GPU, a price of zero."""
BY_NAME = {kind.name: kind for kind in KINDS}
_ODD = {"cpu.32x", "x900.sxm.4x", "h100-80gb.sxm.4x"}


def type_fid(name: str, region: str) -> str:
    """An instance type has one FID a region."""
    return f"it_{hashlib.sha256(f'{name}|{region}'.encode()).hexdigest()[:16]}"


@drawn_once
def mithril_inventory(seed: int) -> Iterator[InventoryItem]:
    """A spot and a window item by type and region."""
    recorded = {(row.sku, row.region): row for row in recorded_prices(NAME)}
    for region in REGIONS:
        for kind in KINDS:
            if kind.name in _ODD and region != REGIONS[0]:
                continue
            row = recorded.get((kind.name, region))
            price = row.usd_per_node_hour if row else _moved(seed, kind, region)
            source = (row.recorded_on, row.source) if row else ("", ILLUSTRATIVE)
            yield _item(seed, kind, region, "spot", price, source)
            if kind.name not in _ODD:
                yield _item(seed, kind, region, WINDOW, Decimal(kind.reserved_usd), ("", ILLUSTRATIVE))


def _moved(seed: int, kind: Kind, region: str) -> Decimal:
    """The base figure times a drawn 1.0 to 2.5."""
    factor = Decimal(100 + draw_count(0, 150, seed, kind.name, region, "price")) / 100
    return (Decimal(kind.spot_usd) * factor).quantize(Decimal("0.01"))


def _item(
    seed: int, kind: Kind, region: str, tier: str, usd: Decimal, source: tuple[str, str]
) -> InventoryItem:
    lot = (seed, kind.name, region, tier)
    empty = draw(*lot, "none") < (0.2 if tier == "spot" else 0.1) and region != REGIONS[2]
    return InventoryItem(
        provider=NAME,
        sku=kind.name,
        region=region,
        tier=tier,
        gpu=kind.gpu,
        gpus=kind.gpus,
        usd_per_hour=usd,
        capacity=0 if empty else draw_count(2, 16, *lot),
        recorded_on=source[0],
        source=source[1],
        price_key=f"{NAME}|{kind.name}|{region}|{tier}",
        gpu_memory_gb=kind.gpu_gb,
        vcpus=kind.cpus,
        memory_gb=kind.ram_gb,
        aliases=frozenset({type_fid(kind.name, region)}),
    )


def free_steps(
    sandbox: SandboxState, item: InventoryItem, until: datetime
) -> list[tuple[datetime, datetime, int]]:
    """Free instances of a window item as steps from this hour to ``until``; equal neighbours are joined."""
    first = sandbox.clock.now().replace(minute=0, second=0, microsecond=0)
    until = min(until, first + AHEAD)
    bought = [e for e in sandbox.ledger.live(NAME, sandbox.clock.now()) if e.stock_key == item.stock_key]
    edges = {first, until}
    edges |= {edge for entry in bought for edge in _span(entry)}
    day = first.replace(hour=0) + DAY
    while day < until:
        edges.add(day)
        day += DAY
    found: list[tuple[datetime, datetime, int]] = []
    for start, end in pairwise(sorted(edge for edge in edges if first <= edge <= until)):
        nodes = _free_at(sandbox, item, start, bought)
        if found and found[-1][1:] == (start, nodes):
            found[-1] = (found[-1][0], end, nodes)
        elif nodes > 0:
            found.append((start, end, nodes))
    return found


def is_free(
    sandbox: SandboxState, item: InventoryItem, start: datetime, end: datetime, quantity: int
) -> bool:
    """Whether so many instances are free throughout ``[start, end)``."""
    at = start
    for left, right, nodes in free_steps(sandbox, item, end):
        if left <= at < right and nodes >= quantity:
            at = right
    return at >= end


def _span(entry: Entry) -> tuple[datetime, datetime]:
    return entry.starts_at, entry.ends_at or entry.starts_at


def _free_at(sandbox: SandboxState, item: InventoryItem, at: datetime, bought: list[Entry]) -> int:
    held = sum(entry.units for entry in bought if entry.starts_at <= at < (entry.ends_at or at))
    units = sandbox.market.capacity(item)
    if not sandbox.market.capacity_was_set(item):
        lot = (sandbox.seed, item.key, at.date())
        sold_out = draw(*lot, "sold out") < SOLD_OUT_DAYS
        units = 0 if sold_out else int(units * (0.5 + 0.5 * draw(*lot, "nodes")))
    return max(0, units - held)
