"""What Latitude.sh sells in the sandbox: plans by site, by the hour and by the month from one stock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from providers.sandbox.market import (
    ILLUSTRATIVE,
    InventoryItem,
    Recorded,
    draw,
    draw_count,
    drawn_once,
    recorded_prices,
)

SITES: Mapping[str, tuple[str, ...]] = {
    "United States": ("ASH", "CHI", "DAL", "LAX", "MIA2", "NYC"),
    "Germany": ("FRA", "FRA2"),
    "United Kingdom": ("LON", "LON2"),
    "Japan": ("TYO3", "TYO4"),
    "Brazil": ("SAO", "SAO2"),
    "Australia": ("SYD", "SYD2"),
    "Chile": ("SAN3",),
}
"""Sites by region, in the order of the answers."""

_RECORDED_SAMPLE = "terraform-provider-latitudesh fixtures/TestAccPlan_Basic.yaml"


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan's own facts. ``regions``: where a price that was recorded without a place is shown."""

    name: str
    gpu: Mapping[str, Any]
    cpu: tuple[str, float, int, int]
    memory_gb: int
    drives: tuple[tuple[int, str, str], ...]
    regions: tuple[str, ...] = ()

    def specs(self) -> dict[str, Any]:
        """As ``specs`` of an answer."""
        kind, clock, cores, count = self.cpu
        return {
            "cpu": {"type": kind, "clock": clock, "cores": cores, "count": count},
            "memory": {"total": self.memory_gb},
            "drives": [{"count": n, "size": size, "type": of} for n, size, of in self.drives],
            "nics": [{"count": 2, "type": "100 Gbps" if self.gpu else "10 Gbps"}],
            "gpu": dict(self.gpu),
        }


def _gpu(count: int, kind: str, vram: int, interconnect: str | None = None) -> dict[str, Any]:
    return {"count": count, "type": kind, "vram_per_gpu": vram, "interconnect": interconnect}


_NVME = ((8, "3.8 TB", "NVME"),)
PLANS: Mapping[str, Plan] = {
    "g4-b300-large": Plan(
        "g4.b300.large",
        _gpu(8, "NVIDIA HGX B300", 288, "800Gbps Dual Plane RoCE"),
        ("Xeon 6767P", 2.4, 64, 2),
        3072,
        _NVME,
    ),
    "g4-rtx6kpro-large": Plan(
        "g4.rtx6kpro.large", _gpu(8, "NVIDIA RTX PRO 6000", 96), ("EPYC 9355", 3.55, 32, 2), 1536, _NVME
    ),
    "g3-h100-small": Plan(
        "g3.h100.small",
        _gpu(1, "NVIDIA H100", 80),
        ("EPYC 9124", 3.0, 16, 1),
        192,
        ((2, "480 GB", "SSD"), (2, "3.8 TB", "NVME")),
        ("United States", "Germany", "United Kingdom", "Japan", "Brazil"),
    ),
    "c2-small-x86": Plan("c2.small.x86", {}, ("E-2134G", 3.5, 4, 1), 32, ((2, "480 GB", "SSD"),)),
    "g3-q9000-large": Plan(
        "g3.q9000.large", _gpu(8, "NVIDIA Q9000", 64), ("EPYC 9554", 3.1, 64, 2), 1536, _NVME
    ),
}
"""CPUs, memory and drives are the sandbox's own, of GPU plans as of the others."""

_ODD = (
    ("c2-small-x86", "Chile", "0.22", "153", _RECORDED_SAMPLE),
    ("g3-q9000-large", "United States", "20", "7300", ILLUSTRATIVE),
    ("g4-rtx6kpro-large", "United Kingdom", "0", "0", ILLUSTRATIVE),
)
"""Plan, region, USD by the hour and by the month: no GPU, an unknown GPU, a region without a price."""


@drawn_once
def latitude_inventory(seed: int) -> Iterator[InventoryItem]:
    """Items by (plan, site, term). What was recorded as sold out stays so; other stock is drawn."""
    for row in recorded_prices("latitude"):
        plan = PLANS[row.sku]
        for region in (row.region,) if row.region else plan.regions:
            for site in SITES[region]:
                yield _item(seed, row, region, site)
    for sku, region, hour, month, source in _ODD:
        for site in SITES[region]:
            for tier, usd in (("on_demand", Decimal(hour)), ("committed", Decimal(month) / 730)):
                yield _made(sku, region, site, tier, usd, 2, "", source)


def _item(seed: int, row: Recorded, region: str, site: str) -> InventoryItem:
    lot = (seed, row.sku, site)
    stocked = row.stock != "none" and draw(*lot, "stocked") < 0.7
    if region in {"United States", "Australia"} and site == SITES[region][-1]:
        stocked = row.stock != "none"
    capacity = draw_count(1, 8, *lot) if stocked else 0
    return _made(
        row.sku, region, site, row.tier, row.usd_per_node_hour, capacity, row.recorded_on, row.source
    )


def _made(
    sku: str, region: str, site: str, tier: str, usd: Decimal, capacity: int, recorded_on: str, source: str
) -> InventoryItem:
    plan = PLANS[sku]
    return InventoryItem(
        provider="latitude",
        sku=sku,
        region=site,
        tier=tier,
        gpu=str(plan.gpu.get("type", "no GPU")),
        gpus=int(plan.gpu.get("count", 0)),
        usd_per_hour=usd,
        capacity=capacity,
        recorded_on=recorded_on,
        source=source,
        price_key=f"latitude|{sku}|{region}|{tier}",
        gpu_memory_gb=int(plan.gpu.get("vram_per_gpu", 0)),
        vcpus=plan.cpu[2] * plan.cpu[3],
        memory_gb=plan.memory_gb,
        pool=f"latitude|{sku}|{site}",
        aliases=frozenset({plan.name}),
        places=frozenset({region}),
        labels={"region": region},
    )
