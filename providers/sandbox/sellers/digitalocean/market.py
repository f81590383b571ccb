"""What DigitalOcean sells in the sandbox: sizes by region, one price a size.

The recording shows what one account could make, which for most cards was nothing; the sandbox draws the
stock.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

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
_ODD = (
    ("s-1vcpu-512mb-10gb", "", "", 0, 0, 1, 0.5, "0.00595", ("ams3", "fra1", "nyc2")),
    ("s-2vcpu-4gb", "", "", 0, 0, 2, 4, "0.03571", ("ams3", "tor1")),
    ("gpu-q9000x1-64gb", "Q9000", "nvidia_q9000", 1, 64, 8, 64, "1.11", ("tor1",)),
    ("gpu-l40sx2-96gb", "L40S", "nvidia_l40s", 2, 48, 16, 128, "0", ("tor1",)),
    ("gpu-h200x8-1128gb-contracted", "H200-SXM-141GB", "nvidia_h200", 8, 141, 192, 1920, "15.92", ("nyc2",)),
)
"""Slug, GPU, model, GPUs, GB each, vCPUs, GiB, price, regions.

No GPU, an unknown GPU, a zero price, and what is sold by contract only.
"""


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
    for sku, gpu, model, gpus, gpu_gb, vcpus, gib, usd, odd_regions in _ODD:
        for region in odd_regions:
            yield InventoryItem(
                provider="digitalocean",
                sku=sku,
                region=region,
                gpu=gpu,
                gpus=gpus,
                usd_per_hour=Decimal(usd),
                capacity=3,
                gpu_memory_gb=gpu_gb,
                vcpus=vcpus,
                memory_gb=gib,
                labels={"model": model, "disk": 10 if not gpus else 500},
            )


def _item(seed: int, row: Recorded, region: str, *, first: bool) -> InventoryItem:
    stocked = row.sku not in _SOLD_OUT and (first or draw(seed, row.sku, region, "stocked") < 0.7)
    labels = {"model": _MODELS[row.gpu], "disk": 2046 if row.gpus == 8 else 720}
    capacity = draw_count(1, 8, seed, row.sku, region) if stocked else 0
    return recorded_item(row, region, capacity, labels=labels)
