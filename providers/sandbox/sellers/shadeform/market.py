"""What Shadeform sells in the sandbox: other clouds' instance types by region, on demand."""

from __future__ import annotations

from collections.abc import Iterator

from providers.sandbox.market import (
    InventoryItem,
    Recorded,
    draw,
    draw_count,
    drawn_once,
    recorded_item,
    recorded_prices,
)

_WORDS: dict[str, tuple[str, str | None]] = {
    "A10": ("A10", "pcie"),
    "A100-PCIe-80GB": ("A100_80G", "pcie"),
    "A100-SXM-40GB": ("A100", "sxm4"),
    "A100-SXM-80GB": ("A100_80G", "sxm4"),
    "Gaudi2-96GB": ("Gaudi2", None),
    "H100-PCIe-80GB": ("H100", "pcie"),
    "H100-SXM-80GB": ("H100", "sxm5"),
    "H200-SXM-141GB": ("H200", "sxm5"),
    "L4": ("L4", "pcie"),
    "L40S": ("L40S", "pcie"),
    "RTX-6000-Ada": ("RTX6000Ada", "pcie"),
    "RTX-A6000": ("A6000", "pcie"),
    "RTX-PRO-6000-Server": ("RTXPro6000", "pcie"),
}
"""Recorded GPU: its ``gpu_type`` and ``interconnect`` on the wire."""


@drawn_once
def shadeform_inventory(seed: int) -> Iterator[InventoryItem]:
    """Items by (type, region).

    The API has one price for a type wherever it runs, so a recorded type stands in every region in
    which its cloud was recorded; where it has stock is drawn.
    """
    rows = recorded_prices("shadeform")
    regions: dict[str, set[str]] = {}
    for row in rows:
        regions.setdefault(_cloud(row.sku), set()).add(row.region)
    for sku, row in {row.sku: row for row in rows}.items():
        for region in sorted(regions[_cloud(sku)]):
            yield _item(seed, row, region)


def _cloud(sku: str) -> str:
    return sku.partition("_")[0]


def _item(seed: int, row: Recorded, region: str) -> InventoryItem:
    lot = (seed, row.sku, region)
    gpu_type, interconnect = _WORDS[row.gpu]
    labels = {"gpu_type": gpu_type, "interconnect": interconnect}
    capacity = 0 if draw(*lot, "none") < 0.3 else draw_count(1, 6, *lot)
    return recorded_item(row, region, capacity, tier="on_demand", labels=labels)
