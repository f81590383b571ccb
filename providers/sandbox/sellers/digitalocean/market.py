"""What DigitalOcean sells in the sandbox: sizes by region, one price a size.

The recording shows what one account could make, which for most cards was nothing; the sandbox draws the
stock.
"""

from __future__ import annotations

from collections.abc import Iterator

from providers.sandbox.market import (
    InventoryItem,
    Recorded,
    by_sku,
    draw,
    draw_count,
    drawn_once,
    recorded_item,
    recorded_prices,
)

REGIONS = {
    "ams3": "Amsterdam 3",
    "atl1": "Atlanta 1",
    "fra1": "Frankfurt 1",
    "mem1": "Memphis 1",
    "mkc1": "Kansas City 1",
    "nyc2": "New York 2",
    "ric1": "Richmond 1",
    "sfo3": "San Francisco 3",
    "sgp1": "Singapore 1",
    "tor1": "Toronto 1",
}
_USUAL = ("ams3", "atl1", "nyc2", "tor1")
_MODELS = {
    "B300-SXM-288GB": "nvidia_b300",
    "H100-SXM-80GB": "nvidia_h100",
    "H200-SXM-141GB": "nvidia_h200",
    "L40S": "nvidia_l40s",
    "MI300X-192GB": "amd_mi300x",
    "MI325X-256GB": "amd_mi325x",
    "MI350X-288GB": "amd_mi350x",
    "MI355X-288GB": "amd_mi355x",
    "RTX-4000-Ada": "nvidia_rtx4000_ada",
    "RTX-6000-Ada": "nvidia_rtx6000_ada",
}
_SOLD_OUT = {"gpu-b300x1-288gb-spot", "gpu-b300x8-2304gb-spot"}


@drawn_once
def digitalocean_inventory(seed: int) -> Iterator[InventoryItem]:
    """An item per size and region; the first region of a size has stock, but for those kept sold out."""
    recorded = [row for row in recorded_prices("digitalocean") if row.sku.startswith("gpu-")]
    for sku, rows in by_sku(recorded).items():
        row = max(rows, key=lambda each: each.recorded_on)
        regions = {each.region for each in rows} - {""}
        drawn = {name for name in _USUAL if draw(seed, "digitalocean", sku, name) < 0.5}
        places = regions if row.tier == "spot" and regions else regions | drawn | {"tor1"}
        for index, region in enumerate(sorted(places)):
            yield _item(seed, row, region, first=index == 0)


def _item(seed: int, row: Recorded, region: str, *, first: bool) -> InventoryItem:
    stocked = row.sku not in _SOLD_OUT and (first or draw(seed, row.sku, region, "stocked") < 0.7)
    labels = {"model": _MODELS[row.gpu], "disk": 2046 if row.gpus == 8 else 720}
    capacity = draw_count(1, 8, seed, row.sku, region) if stocked else 0
    return recorded_item(row, region, capacity, labels=labels)
