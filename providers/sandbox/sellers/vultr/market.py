"""What Vultr sells in the sandbox: plans by region, with one price unless a region overrides it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from providers.sandbox.market import (
    ILLUSTRATIVE,
    InventoryItem,
    Recorded,
    draw,
    draw_count,
    drawn_once,
    recorded_prices,
)

PLANS, METAL = "plans", "plans_metal"
REGIONS = ("ams", "atl", "blr", "ewr", "fra", "itm", "lax", "lhr", "ord", "sea", "sgp", "yto")
_WORDS = {
    "A100-PCIe-80GB": "NVIDIA_A100",
    "A40": "NVIDIA_A40",
    "B200-SXM-180GB": "NVIDIA_B200",
    "H100-SXM-80GB": "NVIDIA_H100",
    "L40S": "NVIDIA_L40S",
    "MI300X-192GB": "AMD_MI300X",
    "MI325X-256GB": "AMD_MI325X",
}
_SILENT = {"vcg-a40-24c-120g-48vram", "vcg-mi325x-252c-2872g-1536vram"}
"""Plans of type vdm, whose rows carry a brand and nothing more of their GPUs."""

_SHAPES = {"vbm-64c-2048gb-8-l40-gpu": (128.0, 2048.0)}
"""Threads and GB where the recording has none; by the plan's id."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One plan as recorded or made up. ``prices``: dollars an hour, on demand and preemptible.

    ``count``: what its row says about the GPU count (None: nothing). ``overrides``: prices of single regions.
    """

    sku: str
    gpu: str
    word: str | None
    gpus: int
    vram_gb: int | None
    count: int | str | None
    vcpus: float
    memory_gb: float
    prices: tuple[Decimal, Decimal]
    regions: tuple[str, ...]
    on_demand: bool
    recorded_on: str = ""
    source: str = ILLUSTRATIVE
    gone: bool = False
    overrides: tuple[tuple[str, str], ...] = ()


_ODD = (
    Plan(
        "vcg-a40-6c-30g-12vram",
        "A40",
        "NVIDIA_A40",
        1,
        12,
        "1/4",
        6,
        30,
        (Decimal("0.428"), Decimal(0)),
        ("ewr",),
        True,
    ),
    Plan(
        "vcg-l40s-16c-180g-48vram",
        "L40S",
        "NVIDIA_L40S",
        1,
        48,
        "1",
        16,
        180,
        (Decimal("1.671"), Decimal(0)),
        ("ewr", "fra", "sgp"),
        True,
        overrides=(("sgp", "2.005"),),
    ),
)
"""A part of a GPU, and a region with a price of its own."""


def list_of(sku: str) -> str:
    """Which of the two lists a plan stands in."""
    return METAL if sku.startswith("vbm-") else PLANS


def vultr_plans(seed: int) -> tuple[Plan, ...]:
    """Every plan: the recorded ones with their one price in several regions, and a few odd rows."""
    rows: dict[str, dict[str, Recorded]] = {}
    for row in recorded_prices("vultr"):
        rows.setdefault(row.sku, {})[row.tier] = row
    return (*(_recorded_plan(seed, sku, tiers) for sku, tiers in rows.items()), *_ODD)


def _recorded_plan(seed: int, sku: str, tiers: dict[str, Recorded]) -> Plan:
    row, spot = tiers["on_demand"], tiers.get("spot")
    drawn = [name for name in REGIONS if draw(seed, "vultr", sku, name) < 0.45]
    home = (row.region,) if row.region else ("ord",)
    vcpus, memory_gb = _SHAPES.get(sku, (row.vcpus or 0, row.memory_gb or 0))
    silent = sku in _SILENT
    return Plan(
        sku=sku,
        gpu=row.gpu,
        word=None if silent else _WORDS[row.gpu],
        gpus=row.gpus,
        vram_gb=None if silent else row.gpus * row.gpu_memory_gb,
        count=None if silent else row.gpus if list_of(sku) == METAL else str(row.gpus),
        vcpus=vcpus,
        memory_gb=memory_gb,
        prices=(row.usd_per_node_hour, spot.usd_per_node_hour if spot else Decimal(0)),
        regions=tuple(dict.fromkeys((*home, *drawn))),
        on_demand=row.stock != "none",
        recorded_on=row.recorded_on,
        source=row.source,
        gone=row.stock == "none" and spot is None,
    )


@drawn_once
def vultr_inventory(seed: int) -> Iterator[InventoryItem]:
    """An item per plan and region, in the tier that an order of it buys now; the home region has stock."""
    for plan in vultr_plans(seed):
        overrides = dict(plan.overrides)
        for region in plan.regions:
            stocked = region == plan.regions[0] or draw(seed, plan.sku, region, "stocked") < 0.7
            yield InventoryItem(
                provider="vultr",
                sku=plan.sku,
                region=region,
                tier="on_demand" if plan.on_demand else "spot",
                gpu=plan.gpu,
                gpus=plan.gpus,
                usd_per_hour=Decimal(overrides.get(region, plan.prices[0 if plan.on_demand else 1])),
                capacity=draw_count(1, 6, seed, plan.sku, region) if stocked and not plan.gone else 0,
                recorded_on="" if region in overrides else plan.recorded_on,
                source=plan.source,
                price_key=f"vultr|{plan.sku}|{region if region in overrides else ''}",
                gpu_memory_gb=plan.vram_gb or 0,
                vcpus=plan.vcpus,
                memory_gb=plan.memory_gb,
            )
