"""What RunPod sells in the sandbox: GPUs by type, cloud and place; prices are per single GPU.

The secure cloud is addressed by data center, the community cloud by country. Places of types that were
recorded without one are drawn by seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from providers.sandbox.market import (
    InventoryItem,
    Recorded,
    draw,
    draw_count,
    drawn_once,
    recorded_item,
    recorded_prices,
)

SECURE, COMMUNITY = "SECURE", "COMMUNITY"
A100_PCIE = "NVIDIA A100 80GB PCIe"
_COMMUNITY_COUNTRIES = ("US", "CA", "SE", "DE", "JP")


@dataclass(frozen=True, slots=True)
class GpuType:
    """A type's words on the wire; ``vcpus`` and ``memory_gb`` per GPU."""

    gpu_id: str
    name: str
    memory_gb: int
    maker: str = "NVIDIA"
    pool: str | None = None
    vcpus: int = 16
    ram_gb: int = 125


GPU_TYPES = {
    found.gpu_id: found
    for found in (
        GpuType(A100_PCIE, "A100 PCIe", 80, pool="AMPERE_80", vcpus=8, ram_gb=117),
        GpuType("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB", 40, pool="AMPERE_40"),
        GpuType("NVIDIA B200", "B200", 180, pool="BLACKWELL_180", vcpus=28, ram_gb=283),
        GpuType("NVIDIA B300 SXM6 AC", "B300", 288, vcpus=28, ram_gb=283),
        GpuType("NVIDIA GeForce RTX 4090", "RTX 4090", 24, pool="ADA_24", vcpus=6, ram_gb=41),
        GpuType("NVIDIA H100 80GB HBM3", "H100 SXM", 80, pool="ADA_80_PRO", vcpus=20, ram_gb=125),
        GpuType("NVIDIA H200", "H200 SXM", 141, pool="HOPPER_141", vcpus=24, ram_gb=188),
        GpuType("NVIDIA L40S", "L40S", 48, pool="ADA_48_PRO", vcpus=16, ram_gb=62),
        GpuType("AMD Instinct MI300X OAM", "MI300X", 192, maker="AMD", vcpus=24, ram_gb=283),
        GpuType("NVIDIA Q9000 XT", "Q9000 XT", 64),
    )
}


@drawn_once
def runpod_inventory(seed: int) -> Iterator[InventoryItem]:
    """An item per (GPU type, place, cloud, tier), counted in GPUs."""
    rows = recorded_prices("runpod")
    centers = sorted({(row.region, row.zone) for row in rows if row.zone})
    for row in rows:
        if row.sku.startswith("1x_A100-80GB_SECURE"):
            yield _item(seed, row, A100_PCIE, SECURE, row.region, row.zone)
        found = re.fullmatch(r"(.+) \((secure|community)\)", row.sku)
        if found is None:
            continue
        gpu_id, cloud = found[1], found[2].upper()
        if cloud == SECURE:
            for country, center in _drawn_centers(seed, gpu_id, centers):
                yield _item(seed, row, gpu_id, cloud, country, center)
        else:
            for country in _COMMUNITY_COUNTRIES[:3]:
                yield _item(seed, row, gpu_id, cloud, country, "")
    yield _odd_item()


def _drawn_centers(seed: int, gpu_id: str, centers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    ranked = sorted(centers, key=lambda place: draw(seed, gpu_id, place[1]))
    return ranked[: draw_count(2, 4, seed, gpu_id, "centers")]


def _item(seed: int, row: Recorded, gpu_id: str, cloud: str, country: str, center: str) -> InventoryItem:
    lot = (seed, gpu_id, cloud, center or country)
    empty = row.gpu == "MI300X-192GB" or draw(*lot, "none") < 0.2
    found = GPU_TYPES[gpu_id]
    return recorded_item(
        row,
        center or country,
        0 if empty else draw_count(3, 40 if cloud == SECURE else 12, *lot),
        sku=gpu_id,
        zone=cloud,
        gpus=1,
        unit="gpu",
        price_key=f"runpod|{gpu_id}|{cloud}|{row.tier}",
        pool=f"runpod|{gpu_id}|{center or country}|{cloud}",
        gpu_memory_gb=found.memory_gb,
        vcpus=found.vcpus,
        memory_gb=found.ram_gb,
        aliases=frozenset({found.name}),
        places=frozenset({country}),
        labels={"country": country, "center": center},
    )


def _odd_item() -> InventoryItem:
    """An unknown GPU."""
    return InventoryItem(
        provider="runpod",
        sku="NVIDIA Q9000 XT",
        region="US-KS-2",
        zone=SECURE,
        gpu="Q9000 XT",
        gpus=1,
        unit="gpu",
        usd_per_hour=Decimal("1.11"),
        capacity=4,
        price_key="runpod|NVIDIA Q9000 XT|SECURE|on_demand",
        gpu_memory_gb=64,
        labels={"country": "US", "center": "US-KS-2"},
    )
