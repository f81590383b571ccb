"""What Verda sells in the sandbox: instance types by location, on demand and spot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from providers.sandbox.market import (
    ILLUSTRATIVE,
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
_RECORDED_SAMPLE = "gpuhunt tests/providers/test_verda.py"
_ODD_TYPES = (
    ("CPU.120V.480G", "AMD EPYC", "CPU Node", 0, 0, 120, 480, "3.00", "1.50", _RECORDED_SAMPLE),
    ("2A6000.20V", "RTX A6000 48GB", "RTX A6000", 2, 48, 20, 120, "1.98", "0.70", _RECORDED_SAMPLE),
    ("1Q9000.16V", "Q9000 XT 64GB", "Q9000 XT", 1, 64, 16, 128, "1.11", "0.40", ILLUSTRATIVE),
    ("1L40S.20V", "L40S 48GB", "L40S", 1, 48, 20, 60, "0.00", "0.00", ILLUSTRATIVE),
)
"""Type, name, model, GPUs, GB per GPU, cores, GB, prices: no GPU, p2p text, an unknown GPU, a zero price."""


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
    for sku, name, model, gpus, gpu_gb, cores, gb, usd, spot_usd, source in _ODD_TYPES:
        for tier, price in (("on_demand", usd), ("spot", spot_usd)):
            yield InventoryItem(
                provider="verda",
                sku=sku,
                region="FIN-01",
                tier=tier,
                gpu=model,
                gpus=gpus,
                usd_per_hour=Decimal(price),
                capacity=2,
                source=source,
                price_key=f"verda|{sku}|{tier}",
                gpu_memory_gb=gpu_gb,
                vcpus=cores,
                memory_gb=gb,
                labels={"name": name, "model": model, "p2p": "50GB/s" if gpus > 1 else None},
            )


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
