"""What AWS sells in the sandbox: instance types by zone, on demand, spot, as Capacity Blocks, and as the
training plans of SageMaker (``ml.`` types; no recording backs their prices, they are the block rates).

Zone ids are the recorded ones; zone names are this account's own mapping (``az1`` is ``a``), as on AWS,
where the mapping differs from account to account.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from providers.sandbox.ledger import Entry
from providers.sandbox.market import (
    ILLUSTRATIVE,
    WINDOW,
    InventoryItem,
    Recorded,
    draw,
    draw_count,
    drawn_once,
    recorded_item,
    recorded_prices,
)
from providers.sandbox.protocol import SandboxState

BLOCK_TYPES = ("p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge")
"""Types sold as Capacity Blocks here (the recorded rate table knows more)."""

ML = "ml."
"""Before the name of an instance type that SageMaker runs."""

BLOCK_START = timedelta(hours=11, minutes=30)
_REGIONS_FIRST = ("us-east-1", "us-east-2", "us-west-2")
_BLOCK_REGIONS = 5
_SOLD_OUT_DAYS = 0.05
_COMPASS = {
    "north": "n",
    "south": "s",
    "east": "e",
    "west": "w",
    "central": "c",
    "northeast": "ne",
    "southeast": "se",
    "northwest": "nw",
    "southwest": "sw",
}


def zone_prefix(region: str) -> str:
    """``us-east-1`` → ``use1``."""
    area, compass, number = region.split("-")
    return f"{area}{_COMPASS[compass]}{number}"


def zone_name(region: str, zone_id: str) -> str:
    """``use2-az1`` → ``us-east-2a``; of a Local Zone ``use1-atl2-az1`` → ``us-east-1-atl-2a``."""
    *places, zone = zone_id.split("-")
    letter = chr(ord("a") + int(zone.removeprefix("az")) - 1)
    if len(places) == 1:
        return f"{region}{letter}"
    found = re.fullmatch(r"([a-z]+)(\d+)", places[1])
    return f"{region}-{found[1]}-{found[2]}{letter}" if found else f"{region}-{places[1]}{letter}"


@drawn_once
def aws_inventory(seed: int) -> Iterator[InventoryItem]:
    """On demand by (type, zone), spot by (type, zone) as recorded, blocks by (type, zone)."""
    rows = recorded_prices("aws")
    zones: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.tier == "spot" and row.zone:
            zones.setdefault((row.sku, row.region), []).append(row.zone)
            yield _item(seed, row, row.region, row.zone)
    on_demand = [row for row in rows if row.tier == "on_demand"]
    for row in on_demand:
        for zone_id in sorted(zones.get((row.sku, row.region)) or _usual_zones(row.region)):
            yield _item(seed, row, row.region, zone_id)
    for row in rows:
        if row.tier == WINDOW and row.sku in BLOCK_TYPES:
            yield from _block_inventory(seed, row, (r.region for r in on_demand if r.sku == row.sku), zones)


def _usual_zones(region: str) -> list[str]:
    return [f"{zone_prefix(region)}-az{number}" for number in (1, 2)]


def _block_inventory(
    seed: int, rate: Recorded, regions: Iterable[str], zones: dict[tuple[str, str], list[str]]
) -> Iterator[InventoryItem]:
    known = sorted(set(regions), key=lambda region: (region not in _REGIONS_FIRST, region))
    for region in known[:_BLOCK_REGIONS]:
        found = sorted(zones.get((rate.sku, region)) or _usual_zones(region))
        inner = [zone_id for zone_id in found if zone_id.count("-") == 1] or found
        for zone_id in inner[:2]:
            block = _item(seed, rate, region, zone_id)
            yield block
            yield _plan_item(seed, block, zone_id)


def _plan_item(seed: int, block: InventoryItem, zone_id: str) -> InventoryItem:
    sku = f"{ML}{block.sku}"
    return replace(
        block,
        sku=sku,
        source=ILLUSTRATIVE,
        recorded_on="",
        capacity=draw_count(16, 64, seed, sku, zone_id),
        price_key=f"aws|{sku}|{block.region}||{block.tier}",
    )


def _item(seed: int, row: Recorded, region: str, zone_id: str) -> InventoryItem:
    price_zone = zone_id if row.tier == "spot" else ""
    return recorded_item(
        row,
        region,
        _capacity(seed, row, zone_id),
        zone=zone_name(region, zone_id),
        price_key=f"aws|{row.sku}|{region}|{price_zone}|{row.tier}",
        places=frozenset({zone_id}),
        labels={"zone_id": zone_id},
    )


def _capacity(seed: int, row: Recorded, zone_id: str) -> int:
    """Dense types are scarce outside blocks; a third of their zones have none."""
    lot = (seed, row.sku, zone_id, row.tier)
    if row.tier == WINDOW:
        return draw_count(24, 80, *lot)
    if not row.sku.startswith("p") or row.gpus < 8:
        return draw_count(4, 40, *lot)
    return 0 if draw(*lot, "none") < 0.35 else draw_count(1, 6, *lot)


def find_item(sandbox: SandboxState, sku: str, zone: str, tier: str) -> InventoryItem | None:
    """The item of a type in a zone (name or id)."""
    for item in sandbox.market.inventory("aws"):
        if (item.sku, item.tier) == (sku, tier) and zone in {item.zone, item.labels["zone_id"]}:
            return item
    return None


def region_inventory(sandbox: SandboxState, region: str, tier: str) -> list[InventoryItem]:
    """Items of a region and tier."""
    return [item for item in sandbox.market.inventory("aws") if (item.region, item.tier) == (region, tier)]


def block_day(instant: datetime) -> datetime:
    """The 11:30 UTC at or before ``instant``: start of the day that blocks are counted in."""
    midnight = (instant - BLOCK_START).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + BLOCK_START


def free_in_block(
    sandbox: SandboxState, item: InventoryItem, start: datetime, end: datetime, bought: list[Entry]
) -> int:
    """Instances free on every block day that ``[start, end)`` touches; ``bought``: blocks of the item."""
    pool, fixed = sandbox.market.capacity(item), sandbox.market.capacity_was_set(item)
    day, least = block_day(start), pool
    while day < end and least > 0:
        following = day + timedelta(days=1)
        held = sum(
            entry.units
            for entry in bought
            if entry.starts_at < following and (entry.ends_at is None or entry.ends_at > day)
        )
        existing = pool if fixed else _drawn(sandbox.seed, item, day, pool)
        least = min(least, existing - held)
        day = following
    return max(0, least)


def _drawn(seed: int, item: InventoryItem, day: datetime, pool: int) -> int:
    """Instances of a pool that are for sale on a block day."""
    lot = (seed, item.key, day.date())
    return 0 if draw(*lot, "sold out") < _SOLD_OUT_DAYS else int(pool * (0.5 + 0.5 * draw(*lot)))
