"""What Google Cloud sells in the sandbox: machine types by zone, on demand, spot and in calendar mode.

Prices are the recorded node prices; items count GPUs, because the price list prices parts, and every shape
of a family has the same share of cores and memory a GPU. How a recorded node price splits into GPU, core
and memory is not recorded: core and memory rates here are round figures near the public ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache

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


@dataclass(frozen=True, slots=True)
class Family:
    """Machine types that differ in size alone. ``shapes``: name → GPUs; vCPUs and GiB are per GPU.

    ``sku``: words of the GPU in the price list; ``vm``: those of core and RAM ("" where the GPU's price
    holds them). ``core`` and ``ram``: illustrative USD an hour on demand. ``ssds``: partitions of local SSD
    that come with a GPU.
    """

    name: str
    gpu: str
    gpu_memory_gb: int
    accelerator: str
    vcpus: int
    memory_gib: int
    shapes: tuple[tuple[str, int], ...]
    sku: str
    vm: str
    core: str = "0"
    ram: str = "0"
    ssds: int = 0


def _sizes(name: str, *gpus: int) -> tuple[tuple[str, int], ...]:
    return tuple((f"{name}-{count}g", count) for count in gpus)


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "a2-highgpu", "A100-SXM-40GB", 40, "nvidia-tesla-a100", 12, 85,
            _sizes("a2-highgpu", 1, 2, 4, 8), "Nvidia Tesla A100 GPU", "A2", "0.03", "0.004",
        ),
        Family(
            "a2-ultragpu", "A100-SXM-80GB", 80, "nvidia-a100-80gb", 12, 170,
            _sizes("a2-ultragpu", 1, 2, 4, 8), "Nvidia Tesla A100 80GB GPU", "A2", "0.03", "0.004", 1,
        ),
        Family(
            "a3-highgpu", "H100-SXM-80GB", 80, "nvidia-h100-80gb", 26, 234,
            _sizes("a3-highgpu", 1, 2, 4, 8), "Nvidia H100 80GB GPU", "A3", "0.025", "0.002", 2,
        ),
        Family(
            "a3-edgegpu", "H100-SXM-80GB", 80, "nvidia-h100-80gb", 26, 234,
            _sizes("a3-edgegpu", 8), "Nvidia H100 80GB GPU", "A3", "0.025", "0.002", 2,
        ),
        Family(
            "a3-megagpu", "H100-SXM-80GB", 80, "nvidia-h100-mega-80gb", 26, 234,
            _sizes("a3-megagpu", 8), "Nvidia H100 80GB Mega GPU", "A3Plus", "0.026924", "0.002344", 2,
        ),
        Family(
            "a3-ultragpu", "H200-SXM-141GB", 141, "nvidia-h200-141gb", 28, 369,
            _sizes("a3-ultragpu", 8), "H200 141GB GPU", "A3Ultra", "0.025", "0.002", 4,
        ),
        Family(
            "a4-highgpu", "B200-SXM-180GB", 180, "nvidia-b200", 28, 496,
            _sizes("a4-highgpu", 8), "A4 Nvidia B200 (1 gpu slice)", "", ssds=4,
        ),
        Family(
            "g2-standard", "L4", 24, "nvidia-l4", 12, 48,
            tuple((f"g2-standard-{12 * count}", count) for count in (1, 2, 4, 8)),
            "Nvidia L4 GPU", "G2", "0.025", "0.003",
        ),
    )
}  # fmt: skip

FLEX = "flex"
"""Flex-start: a tier of its own here, since it is priced and found apart from the calendar."""
SHARE_OF_VM = {
    "on_demand": Decimal(1),
    "spot": Decimal("0.2"),
    WINDOW: Decimal("0.4"),
    FLEX: Decimal("0.4"),
}
"""Core and RAM rates of a tier over those on demand (illustrative)."""

SSD_GIB = 375
SSD_USD_PER_GIB_MONTH = Decimal("0.073")
"""Local SSD on demand (illustrative: 730 hours of it are whole nano dollars)."""


DISK_USD_PER_GIB_MONTH = {
    "pd-balanced": Decimal("0.1"),
    "hyperdisk-balanced": Decimal("0.08"),
    "pd-standard": Decimal("0.04"),
}
"""Capacity of boot disks (Google's prices in us-central1, the same everywhere here)."""
IMAGE_DISK = "pd-standard"
"""The type of a disk whose order states none."""


def disk_usd_per_hour(kind: str, gib: int) -> Decimal:
    """The hourly price of a boot disk."""
    return gib * DISK_USD_PER_GIB_MONTH[kind] / 730


def ssd_usd_per_gpu(family: Family, tier: str) -> Decimal:
    """The hourly price of the local SSD that comes with a GPU; windows and flex-start pay that on demand."""
    if not family.vm:
        return Decimal(0)
    monthly = SSD_USD_PER_GIB_MONTH * (SHARE_OF_VM[tier] if tier == "spot" else 1)
    return family.ssds * SSD_GIB * monthly / 730


_A100_ZONES = ("us-central1-a", "us-central1-c", "europe-west4-a", "asia-southeast1-c")
_L4_ZONES = ("us-central1-a", "us-east4-a", "europe-west4-b", "asia-southeast1-b")
_H200_ZONES = ("us-central1-a", "us-east4-b", "europe-west1-b", "asia-south1-b")
_ILLUSTRATIVE = (
    ("a3-ultragpu", "on_demand", "10.6", _H200_ZONES),
    ("a3-ultragpu", "spot", "3.72", _H200_ZONES),
    ("a3-megagpu", "spot", "3.4", ("us-central1-a", "us-central1-c")),
    (
        "a2-highgpu",
        "on_demand",
        "3.67",
        _A100_ZONES,
    ),
    ("a2-highgpu", "spot", "1.47", _A100_ZONES),
    ("g2-standard", "on_demand", "1", _L4_ZONES),
    ("g2-standard", "spot", "0.4", _L4_ZONES),
    ("a3-ultragpu", WINDOW, "6.8", ("us-central1-a", "us-south1-b", "europe-west1-b")),
    ("a3-megagpu", WINDOW, "5.9", ("us-central1-a", "us-east4-a")),
    ("a3-highgpu", WINDOW, "5.6", ("us-central1-a", "europe-west4-b")),
    ("a3-highgpu", FLEX, "4.7075", ("us-central1-a", "us-east4-a")),
)
"""Family, tier, USD per GPU with its share of the machine, zones; no recorded row backs these."""


@dataclass(frozen=True, slots=True)
class _Rate:
    family: Family
    region: str
    tier: str
    usd_per_gpu: Decimal
    zones: tuple[str, ...]
    recorded_on: str
    source: str


def region_of(zone: str) -> str:
    """``us-central1`` of ``us-central1-a``."""
    return zone.rpartition("-")[0]


def family_of(machine_type: str) -> Family | None:
    """The family of a machine type."""
    found = (f for f in FAMILIES.values() if any(machine_type == name for name, _ in f.shapes))
    return next(found, None)


@drawn_once
def gcp_inventory(seed: int) -> Iterator[InventoryItem]:
    """An item per machine type, zone and tier."""
    for rate in _rates():
        for name, gpus in rate.family.shapes:
            if rate.tier == WINDOW and gpus != 8:
                continue
            for zone in rate.zones:
                yield _item(seed, rate, name, gpus, zone)


@cache
def _rates() -> tuple[_Rate, ...]:
    rows = [row for row in recorded_prices("gcp") if row.tier != WINDOW]
    zones = _zones_by_region(rows)
    found: dict[tuple[str, str, str], _Rate] = {}
    for row in sorted(rows, key=lambda row: (not row.zone, -row.gpus)):
        family = family_of(row.sku)
        if family is None:
            continue
        key = (family.name, row.region, row.tier)
        places = tuple(zones.get((family.name, row.region), ())) or (f"{row.region}-a",)
        found.setdefault(key, _rate(family, row, places))
    calendar = [row for row in recorded_prices("gcp") if row.tier == WINDOW and "calendar" in row.source]
    for row in calendar:
        family = family_of(row.sku)
        if family is not None and row.zone:
            found[family.name, row.region, WINDOW] = _rate(family, row, (row.zone,))
    for rate in _flex():
        found[rate.family.name, rate.region, FLEX] = rate
    for rate in _illustrative():
        found.setdefault((rate.family.name, rate.region, rate.tier), rate)
    return tuple(found.values())


def _flex() -> Iterator[_Rate]:
    """Recorded flex-start prices of families whose GPU's price holds the machine, in the zones recorded."""
    rows = [row for row in recorded_prices("gcp") if row.tier == WINDOW and "DWS" in row.source and row.zone]
    zones = _zones_by_region(rows)
    for row in rows:
        family = family_of(row.sku)
        if family is not None and not family.vm:
            places = tuple(zones[family.name, row.region])
            yield replace(_rate(family, row, places), tier=FLEX)


def _zones_by_region(rows: list[Recorded]) -> dict[tuple[str, str], list[str]]:
    zones: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        family = family_of(row.sku)
        if family is not None and row.zone:
            known = zones.setdefault((family.name, row.region), [])
            if row.zone not in known:
                known.append(row.zone)
    return {key: sorted(known) for key, known in zones.items()}


def _rate(family: Family, row: Recorded, zones: tuple[str, ...]) -> _Rate:
    usd = row.usd_per_node_hour / row.gpus
    return _Rate(family, row.region, row.tier, usd, zones, row.recorded_on, row.source)


def _illustrative() -> Iterator[_Rate]:
    for name, tier, usd, zones in _ILLUSTRATIVE:
        for region in dict.fromkeys(map(region_of, zones)):
            there = tuple(zone for zone in zones if region_of(zone) == region)
            yield _Rate(FAMILIES[name], region, tier, Decimal(usd), there, "", ILLUSTRATIVE)


def _item(seed: int, rate: _Rate, name: str, gpus: int, zone: str) -> InventoryItem:
    family = rate.family
    return InventoryItem(
        provider="gcp",
        sku=name,
        region=rate.region,
        zone=zone,
        tier=rate.tier,
        gpu=family.gpu,
        gpus=gpus,
        usd_per_hour=rate.usd_per_gpu,
        capacity=gpus * _nodes(seed, name, gpus, zone, rate.tier),
        recorded_on=rate.recorded_on,
        source=rate.source,
        price_key=f"gcp|{family.sku}|{rate.region}|{rate.tier}",
        unit="gpu",
        gpu_memory_gb=family.gpu_memory_gb,
        vcpus=float(family.vcpus * gpus),
        memory_gb=float(family.memory_gib * gpus),
        labels={"family": family.name},
    )


def _nodes(seed: int, name: str, gpus: int, zone: str, tier: str) -> int:
    """Whole machines of eight GPUs are scarce outside the calendar; a third of their zones have none."""
    lot = (seed, name, zone, tier)
    if tier == WINDOW:
        return draw_count(24, 80, *lot)
    if tier == FLEX:
        return draw_count(2, 12, *lot)
    if gpus < 8:
        return draw_count(8, 40, *lot)
    return 0 if draw(*lot, "none") < 0.35 else draw_count(1, 8, *lot)
