"""What Prime Intellect sells in the sandbox: other clouds' machines, on demand and spot, and clusters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
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

USD_PER_EUR = Decimal("1.1643")
"""Rate of 2026-08-28 as in ``config/exchange_rates.csv``: rows in euros are held in dollars here."""

_WORDS = {
    "A100-PCIe-80GB": ("A100_80GB", "PCIe"),
    "A100-SXM-40GB": ("A100_40GB", "SXM4"),
    "A100-SXM-80GB": ("A100_80GB", "SXM4"),
    "B200-SXM-180GB": ("B200_180GB", "SXM6"),
    "H100-PCIe-80GB": ("H100_80GB", "PCIe"),
    "H100-SXM-80GB": ("H100_80GB", "SXM5"),
    "H200-SXM-141GB": ("H200_141GB", "SXM5"),
    "L40S": ("L40S_48GB", "PCIe"),
    "RTX-6000-Ada": ("RTX6000Ada_48GB", "PCIe"),
    "RTX-A6000": ("A6000_48GB", "PCIe"),
    "V100-SXM2-16GB": ("V100_16GB", "SXM2"),
}
"""Recorded GPU: its ``gpuType`` and ``socket`` on the wire."""

_REGIONS = {
    "AU": "australia",
    "CA": "canada",
    "DE": "eu_west",
    "FI": "eu_north",
    "FR": "eu_west",
    "IN": "asia_south",
    "IS": "eu_north",
    "JP": "asia_northeast",
    "US": "united_states",
}
_CLUSTERS = range(2, 9)
"""Nodes of the clusters that are made up from recorded nodes of eight GPUs."""
_CLUSTER_GPUS = {"H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB"}


@dataclass(frozen=True, slots=True)
class _Odd:
    """A row that no recording backs: something that a reader must cope with."""

    provider: str
    cloud_id: str
    gpu_type: str
    socket: str
    gpus: int
    gpu_gb: int
    usd: str
    security: str = "secure_cloud"
    currency: str = "USD"
    prepaid_hours: int = 0
    capacity: int = 2


_ODD_ROWS = (
    _Odd("hyperstack", "n1-cpu-small", "CPU_NODE", "PCIe", 1, 0, "0.04"),
    _Odd("oblivus", "RTX_8000", "RTX8000_48GB", "PCIe", 1, 48, "0.50"),
    _Odd("nebius", "gpu-h100-free", "H100_80GB", "SXM5", 1, 80, "0"),
    _Odd("tensordock", "h100-8", "H100_80GB", "PCIe", 8, 640, "14.40"),
    _Odd("massedcompute", "gpu_1x_a6000", "A6000_48GB", "PCIe", 1, 48, "0.57", capacity=0),
    _Odd("scaleway", "H100-1-80G", "H100_80GB", "PCIe", 1, 80, "3.178539", currency="EUR"),
    _Odd("runpod", "NVIDIA A100 80GB PCIe", "A100_80GB", "PCIe", 1, 80, "1.19", security="community_cloud"),
    _Odd("primecompute", "8xB200-prepaid", "B200_180GB", "SXM6", 8, 180, "36.00", prepaid_hours=24),
)


@drawn_once
def prime_intellect_inventory(seed: int) -> Iterator[InventoryItem]:
    """Items by (seller and type, country, data centre, tier).

    A unit is a node. Clusters are several recorded nodes at their recorded price, from the same stock as
    the single ones: that they are sold together, and over which network, is illustrative.
    """
    rows = recorded_prices("prime_intellect")
    for row in rows:
        yield _item(seed, row)
    for row in rows:
        if _is_in_clusters(row):
            for nodes in _CLUSTERS:
                yield _cluster(seed, row, nodes)
    for odd in _ODD_ROWS:
        yield _odd_item(odd)


def _is_in_clusters(row: Recorded) -> bool:
    return row.gpus == 8 and row.gpu in _CLUSTER_GPUS and row.tier == "on_demand"


def _item(seed: int, row: Recorded) -> InventoryItem:
    lot = (seed, row.sku, row.region, row.zone, row.tier)
    gpu_type, socket = _WORDS[row.gpu]
    provider, _, cloud_id = row.sku.partition(" ")
    return recorded_item(
        row,
        row.region,
        0 if draw(*lot, "none") < 0.2 else draw_count(1, 10, *lot),
        zone=row.zone,
        price_key=f"prime_intellect|{row.sku}|{row.region}|{row.zone}|{row.tier}",
        pool=f"prime_intellect|{row.sku}|{row.region}|{row.zone}" if _is_in_clusters(row) else "",
        places=frozenset({_REGIONS[row.region]}),
        labels={
            "provider": provider,
            "cloudId": re.sub(r" x\d+$", "", cloud_id),
            "gpuType": gpu_type,
            "socket": socket,
            "region": _REGIONS[row.region],
            "nodes": 1,
            "security": "secure_cloud",
            "currency": "USD",
            "prepaid": 0,
            "fabric": None,
        },
    )


def _cluster(seed: int, row: Recorded, nodes: int) -> InventoryItem:
    single = _item(seed, row)
    fabric = ("RoCE", 3200) if single.labels["provider"] == "nebius" else ("Infiniband", 3200)
    return replace(
        single,
        sku=f"{row.sku} {nodes}-nodes",
        recorded_on="",
        source=f"{ILLUSTRATIVE} as a cluster; price of a node: {row.source}",
        labels={**single.labels, "nodes": nodes, "fabric": fabric},
    )


def _odd_item(odd: _Odd) -> InventoryItem:
    sku = f"{odd.provider} {odd.cloud_id}"
    return InventoryItem(
        provider="prime_intellect",
        sku=sku,
        region="US",
        zone="odd-1",
        gpu=odd.gpu_type,
        gpus=odd.gpus,
        usd_per_hour=Decimal(odd.usd),
        capacity=odd.capacity,
        gpu_memory_gb=odd.gpu_gb,
        vcpus=16,
        memory_gb=128,
        labels={
            "provider": odd.provider,
            "cloudId": odd.cloud_id,
            "gpuType": odd.gpu_type,
            "socket": odd.socket,
            "region": "united_states",
            "nodes": 1,
            "security": odd.security,
            "currency": odd.currency,
            "prepaid": odd.prepaid_hours,
            "fabric": None,
        },
    )
