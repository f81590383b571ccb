"""What Crusoe sells in the sandbox: instance types by location, on demand, and InfiniBand networks.

Prices are Crusoe's published ones of one day, per GPU and the same in every location (the API itself shows
none); sizes that were not published have the published price of a GPU times their count. Locations and CPU,
memory and disk of the types that no document names are illustrative.
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

NAME = "crusoe"
LOCATIONS = ("us-east1-a", "us-northcentral1-a", "us-southcentral1-a", "us-west1-a", "eu-iceland1-a")


@dataclass(frozen=True, slots=True)
class Product:
    """An instance type as the API describes it; ``recorded``: under which name its GPU's price was seen."""

    name: str
    gpu_type: str
    gpus: int
    cores: int
    memory_gb: int
    disk_gb: int
    recorded: str
    maker: str = "Nvidia"

    @property
    def has_infiniband(self) -> bool:
        """Whether it joins an InfiniBand network."""
        return "-ib." in self.name


def _sizes() -> Iterator[Product]:
    for count in (1, 2, 4, 8):
        yield Product(
            f"a100-80gb.{count}x", "A100-PCIe-80GB", count, 12 * count, 120 * count, 0, "a100-80gb.8x"
        )
    for count in (1, 2, 4, 8, 10):
        yield Product(f"l40s-48gb.{count}x", "L40S-48GB", count, 8 * count, 147 * count, 0, "l40s-48gb.10x")


PRODUCTS = (
    *_sizes(),
    Product("h100-80gb-sxm-ib.8x", "H100-SXM-80GB", 8, 176, 960, 7200, "h100-80gb-sxm-ib.8x"),
    Product("a100-80gb-sxm-ib.8x", "A100-SXM-80GB", 8, 96, 960, 7200, "NVIDIA A100 80GB SXM x8"),
    Product("h200-141gb-sxm-ib.8x", "H200-SXM-141GB", 8, 176, 1920, 7200, "NVIDIA H200 141GB HGX x8"),
    Product("mi300x-192gb-ib.8x", "MI300X-192GB", 8, 176, 1920, 7200, "AMD MI300X 192GB x8", "AMD"),
    Product("mi355x-288gb-ib.8x", "MI355X_288GB", 8, 252, 3072, 15360, "", "AMD"),
    Product("c1a.16x", "", 0, 16, 64, 0, "", "AMD"),
    Product("q900-64gb.4x", "Q900-SXM-64GB", 4, 64, 512, 0, ""),
)
"""The last three are odd: a GPU without a published price, no GPU, an unknown GPU."""
BY_NAME = {product.name: product for product in PRODUCTS}


@drawn_once
def crusoe_inventory(seed: int) -> Iterator[InventoryItem]:
    """An item by type and location; not every type is everywhere."""
    rows = {row.sku: row for row in recorded_prices(NAME) if row.tier == "on_demand"}
    for product in PRODUCTS:
        for location in LOCATIONS:
            if location == LOCATIONS[0] or draw(seed, product.name, location, "sold") < 0.6:
                yield _item(seed, product, location, rows.get(product.recorded))


def _item(seed: int, product: Product, location: str, row: Recorded | None) -> InventoryItem:
    lot = (seed, product.name, location)
    price = None if row is None else row.usd_per_node_hour / row.gpus * product.gpus
    return InventoryItem(
        provider=NAME,
        sku=product.name,
        region=location,
        gpu=product.gpu_type if row is None else row.gpu,
        gpus=product.gpus,
        usd_per_hour=None if price is None else price.quantize(Decimal("0.000001")),
        capacity=0 if draw(*lot, "none") < 0.2 else draw_count(1, 24, *lot),
        recorded_on="" if row is None else row.recorded_on,
        source=ILLUSTRATIVE if row is None else row.source,
        vcpus=product.cores,
        memory_gb=product.memory_gb,
    )
