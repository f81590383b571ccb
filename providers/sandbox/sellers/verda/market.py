"""What Verda sells in the sandbox: instance types by location, on demand and spot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from providers.sandbox.market import (
    InventoryItem,
    Recorded,
    draw,
    draw_count,
    drawn_once,
    recorded_item,
    recorded_prices,
)

_NAMES = {
    "A100-SXM-80GB": ("A100 SXM4 80GB", "A100"),
    "B200-SXM-180GB": ("B200 SXM6 180GB", "B200"),
    "B300-SXM-288GB": ("B300 SXM6 262GB", "B300"),
    "H100-SXM-80GB": ("H100 SXM5 80GB", "H100"),
    "H200-SXM-141GB": ("H200 SXM5 141GB", "H200"),
    "RTX-6000-Ada": ("RTX 6000 Ada 48GB", "RTX 6000 Ada"),
    "RTX-PRO-6000-Server": ("RTX PRO 6000 96GB", "RTX PRO 6000"),
    "V100-SXM2-16GB": ("Tesla V100 16GB", "Tesla V100"),
}


@drawn_once
def verda_inventory(seed: int) -> Iterator[InventoryItem]:
    """Items by (type, location, tier).

    Sizes that were recorded only as spot get the on-demand price of the recorded one-GPU size times
    their count, as all recorded sizes have it; their source says so.
    """
    rows = [
        row for row in recorded_prices("verda") if re.fullmatch(r"\d+[A-Z0-9]+(\.\d+S)?\.\d+[VM]", row.sku)
    ]
    singles = {row.gpu: row for row in rows if row.gpus == 1 and row.tier == "on_demand"}
    on_demand = {(row.sku, row.region) for row in rows if row.tier == "on_demand"}
    for row in rows:
        yield _item(seed, row)
        if row.tier == "spot" and (row.sku, row.region) not in on_demand and row.gpu in singles:
            yield _item(seed, _multiplied(row, singles[row.gpu]))


def _multiplied(row: Recorded, single: Recorded) -> Recorded:
    return replace(
        row,
        tier="on_demand",
        usd_per_node_hour=single.usd_per_node_hour * row.gpus,
        recorded_on=single.recorded_on,
        source=f"{row.gpus} x the price of {single.sku}; {single.source}",
    )


def _item(seed: int, row: Recorded) -> InventoryItem:
    lot = (seed, row.sku, row.region, row.tier)
    name, model = _NAMES[row.gpu]
    labels = {"name": name, "model": model, "p2p": "300 GB/s" if row.gpus > 1 else None}
    capacity = 0 if draw(*lot, "none") < 0.25 else draw_count(1, 10, *lot)
    return recorded_item(row, row.region, capacity, price_key=f"verda|{row.sku}|{row.tier}", labels=labels)
