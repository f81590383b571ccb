"""What the hosted price lists (SkyPilot's, gpuhunt's) say in the sandbox: recorded prices of other sellers.

A list names a GPU by family and memory, never by its form factor. Prices are those of
``fixtures/market/real_prices.csv``; OCI's, the same everywhere, stand in every region, as both lists have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from providers.sandbox.market import (
    ILLUSTRATIVE,
    InventoryItem,
    Recorded,
    drawn_once,
    recorded_item,
    recorded_prices,
)
from providers.sandbox.sellers.oci.market import DOMAINS

WORDS = {
    "A100-PCIe-40GB": "A100",
    "A100-PCIe-80GB": "A100-80GB",
    "A100-SXM-40GB": "A100",
    "A100-SXM-80GB": "A100-80GB",
    "B200-SXM-180GB": "B200",
    "B300-SXM-288GB": "B300",
    "GB200-186GB": "GB200",
    "GB300-288GB": "GB300",
    "GH200-96GB": "GH200",
    "H100-NVL-94GB": "H100-NVL",
    "H100-PCIe-80GB": "H100",
    "H100-SXM-80GB": "H100",
    "H200-SXM-141GB": "H200",
    "MI300X-192GB": "MI300X",
    "MI355X-288GB": "MI355X",
    "RTX-6000-Ada": "RTX6000-Ada",
    "RTX-A6000": "A6000",
    "RTX-PRO-6000-Server": "RTXPRO6000",
    "V100-SXM2-16GB": "V100",
    "V100-SXM3-32GB": "V100-32GB",
}
_MISFILED = "a4-highgpu-8g"
"""Its calendar rate stands in SkyPilot's column of on-demand prices (fixtures/market/SOURCE.md)."""


@drawn_once
def hosted_inventory(provider: str, clouds: tuple[str, ...]) -> Iterator[InventoryItem]:
    """Items of a list by (cloud, type, place, tier); nothing is in stock, for nothing can be bought."""
    for cloud in clouds:
        for row in _rows(cloud):
            yield _item(provider, cloud, row)
        yield from _odd_inventory(provider, cloud)


def _rows(cloud: str) -> Iterator[Recorded]:
    for row in recorded_prices(cloud):
        if " " in row.sku:
            continue  # a line of a price page, no type
        if cloud == "oci":
            yield from _everywhere(row)
        elif not row.region:
            continue  # a list price of a page; the lists name places
        elif row.tier in {"on_demand", "spot"}:
            yield row
        elif row.sku == _MISFILED and row.tier == "window" and row.zone:
            yield replace(row, tier="on_demand")


def _everywhere(row: Recorded) -> Iterator[Recorded]:
    if row.region or row.tier != "on_demand":
        return
    for region, domains in DOMAINS.items():
        for domain in domains:
            yield replace(row, region=region, zone=domain)


def _item(provider: str, cloud: str, row: Recorded) -> InventoryItem:
    return recorded_item(
        row,
        row.region,
        0,
        provider=provider,
        sku=f"{cloud}/{row.sku}",
        zone=row.zone,
        gpu=WORDS.get(row.gpu, row.gpu),
        price_key=f"{provider}|{cloud}|{row.sku}|{row.region}|{row.zone}|{row.tier}",
        aliases=frozenset({row.sku}),
        labels={"cloud": cloud, "type": row.sku},
    )


def _odd_inventory(provider: str, cloud: str) -> Iterator[InventoryItem]:
    """A machine without a GPU, a type that nobody knows, and a price of zero."""
    known = next(row for row in _rows(cloud) if row.gpus)
    strange = replace(
        known,
        region="us-1",
        zone="",
        tier="on_demand",
        source=ILLUSTRATIVE,
        recorded_on="",
        vcpus=8.0,
        memory_gb=32.0,
    )
    for row in (
        replace(strange, sku=f"cpu-8-{cloud}", gpu="", gpus=0, usd_per_node_hour=Decimal("0.40")),
        replace(strange, sku=f"gpu-x9-{cloud}", usd_per_node_hour=Decimal("31.00")),
        replace(strange, usd_per_node_hour=Decimal(0)),
    ):
        yield _item(provider, cloud, row)
