"""What Together sells in the sandbox: clusters by region and GPU type, on demand and for scheduled windows.

Prices are Together's published ones of one day, the same in every region (the API itself shows none);
regions, and which of them support what, are illustrative.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from providers.sandbox.market import (
    ILLUSTRATIVE,
    WINDOW,
    InventoryItem,
    Recorded,
    draw,
    draw_count,
    drawn_once,
    recorded_prices,
)

NAME = "together"
REGIONS = ("us-central-4", "us-central-8", "us-east-2", "us-west-2", "eu-north-1", "ap-southeast-1")
_TYPES = {"B200-SXM-180GB": "B200_SXM", "H100-SXM-80GB": "H100_SXM", "H200-SXM-141GB": "H200_SXM"}
UNPRICED = {
    "B300_SXM": "B300-SXM-288GB",
    "H100_SXM_INF": "H100-SXM-80GB",
    "L40_PCIE": "L40",
    "RTX_6000_PCI": "RTX 6000",
}
"""Types that the API names and that have no recorded price."""
TERMS = ("7-30 days", "31-90 days", "91-180 days")


@drawn_once
def together_inventory(seed: int) -> Iterator[InventoryItem]:
    """An on-demand and a window item by region and type; a window's price is that of the shortest term."""
    rows = {row.sku: row for row in recorded_prices(NAME)}
    for region in REGIONS:
        for gpu, gpu_type in _TYPES.items():
            if region != "us-central-8" and draw(seed, region, gpu_type, "supported") < 0.3:
                continue
            for tier, how in (("on_demand", "on demand"), (WINDOW, TERMS[0])):
                row = rows[price_sku(gpu_type, how)]
                yield _item(seed, region, gpu_type, tier, gpu, row)
        for gpu_type, gpu in UNPRICED.items():
            if draw(seed, region, gpu_type, "supported") < 0.3:
                yield _item(seed, region, gpu_type, "on_demand", gpu, None)


def price_sku(gpu_type: str, how: str) -> str:
    """The name under which a price was recorded."""
    return f"GPU cluster HGX {gpu_type.partition('_')[0]} {how}"


def term_usd(gpu_type: str, days: float) -> Decimal | None:
    """The recorded price per node and hour of a cluster prepaid for so many days; None: no such term."""
    rows = {row.sku: row for row in recorded_prices(NAME)}
    for how in TERMS:
        first, last = how.removesuffix(" days").split("-")
        row = rows.get(price_sku(gpu_type, how))
        if row is not None and int(first) <= days <= int(last):
            return row.usd_per_node_hour
    return None


def _item(seed: int, region: str, gpu_type: str, tier: str, gpu: str, row: Recorded | None) -> InventoryItem:
    return InventoryItem(
        provider=NAME,
        sku=gpu_type,
        region=region,
        tier=tier,
        gpu=gpu,
        gpus=8,
        usd_per_hour=None if row is None else row.usd_per_node_hour,
        capacity=draw_count(4, 32, seed, region, gpu_type),
        recorded_on="" if row is None else row.recorded_on,
        source=ILLUSTRATIVE if row is None else row.source,
        price_key=f"{NAME}|{gpu_type}|{tier}",
        pool=f"{NAME}|{region}|{gpu_type}",
    )
