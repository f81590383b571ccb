"""What OVHcloud sells in the sandbox: GPU flavors by region.

Recorded are hourly prices of flavors, of the French and the American catalogue or of a region; the
catalogue has one price for all regions of a subsidiary, so each flavor has the recorded one. Sizes that
were not recorded have the price of the recorded one-GPU size times their count. Which region has what is
illustrative, except where a region was recorded.
"""

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

NAME = "ovh"
USD_PER_EUR = Decimal("1.1643")
"""The rate at which the recorded prices were turned into dollars (2026-08-28)."""
REGIONS = ("GRA11", "GRA9", "RBX-A", "SBG5", "DE1", "UK1", "WAW1", "BHS5", "EU-WEST-PAR", "SGP1")


@dataclass(frozen=True, slots=True)
class Flavor:
    """A flavor as the catalogue describes it; ``recorded``: whose price it has (times the count)."""

    name: str
    model: str
    gpus: int
    gpu_gb: int
    cores: int
    ram_gb: int
    disk_gb: int
    recorded: str
    usd: str = ""
    family: str = "linux"


FLAVORS = (
    Flavor("a100-180", "A100", 1, 80, 15, 180, 300, "a100-180"),
    Flavor("a100-360", "A100", 2, 80, 30, 360, 500, "a100-360"),
    Flavor("a100-720", "A100", 4, 80, 60, 720, 500, "a100-180"),
    Flavor("h100-380", "H100", 1, 80, 30, 380, 200, "h100-380"),
    Flavor("h100-760", "H100", 2, 80, 60, 760, 200, "h100-380"),
    Flavor("h100-1520", "H100", 4, 80, 120, 1520, 200, "h100-380"),
    Flavor("h200-1920", "H200", 8, 141, 240, 1920, 200, "h200-1920"),
    Flavor("l40s-90", "L40S", 1, 48, 15, 90, 400, "l40s-90"),
    Flavor("l40s-180", "L40S", 2, 48, 30, 180, 400, "l40s-90"),
    Flavor("l40s-360", "L40S", 4, 48, 60, 360, 400, "l40s-90"),
    Flavor("t2-45", "V100S", 1, 32, 15, 45, 400, "t2-45"),
    Flavor("t2-90", "V100S", 2, 32, 30, 90, 800, "t2-90"),
    Flavor("t2-180", "V100S", 4, 32, 60, 180, 50, "t2-180"),
    Flavor("t2-le-45", "V100S", 1, 32, 15, 45, 300, "t2-le-45"),
    Flavor("t2-le-90", "V100S", 2, 32, 30, 90, 500, "t2-le-90"),
    Flavor("b3-8", "", 0, 0, 2, 8, 50, "", "0.06"),
    Flavor("win-t2-45", "V100S", 1, 32, 15, 45, 400, "", "2.40", "windows"),
    Flavor("q900-90", "Q900", 1, 64, 15, 90, 400, "", "1.20"),
    Flavor("l4-free", "L4", 1, 24, 22, 90, 400, "", "0.00"),
)
"""The last four are odd: no GPU, Windows, an unknown GPU, a zero price."""
BY_NAME = {flavor.name: flavor for flavor in FLAVORS}


@drawn_once
def ovh_inventory(seed: int) -> Iterator[InventoryItem]:
    """An item by flavor and region."""
    rows: dict[str, Recorded] = {}
    recorded_in: dict[str, set[str]] = {}
    for row in recorded_prices(NAME):
        if row.tier == "on_demand":
            rows.setdefault(row.sku, row)
            recorded_in.setdefault(row.sku, set()).add(row.zone)
    for flavor in FLAVORS:
        row_of = rows.get(flavor.recorded)
        for region in REGIONS:
            known = region in recorded_in.get(flavor.name, set())
            if known or region == REGIONS[0] or draw(seed, flavor.name, region, "sold") < 0.35:
                yield _item(seed, flavor, region, row_of)


def _item(seed: int, flavor: Flavor, region: str, row: Recorded | None) -> InventoryItem:
    lot = (seed, flavor.name, region)
    usd = Decimal(flavor.usd) if row is None else row.usd_per_node_hour / row.gpus * flavor.gpus
    return InventoryItem(
        provider=NAME,
        sku=flavor.name,
        region=region,
        gpu=flavor.model if row is None else row.gpu,
        gpus=flavor.gpus,
        usd_per_hour=usd,
        capacity=0 if draw(*lot, "none") < 0.25 else draw_count(1, 12, *lot),
        recorded_on="" if row is None else row.recorded_on,
        source=ILLUSTRATIVE if row is None else row.source,
        gpu_memory_gb=flavor.gpu_gb,
        vcpus=flavor.cores,
        memory_gb=flavor.ram_gb,
    )
