"""What Hyperstack sells in the sandbox: flavors by region, on demand and spot.

An item is a GPU word in a region: its flavors share price and stock, which are counted in GPUs. A word with
one flavor alone is counted in machines of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from providers.sandbox.market import (
    InventoryItem,
    Recorded,
    draw,
    draw_count,
    drawn_once,
    recorded_item,
    recorded_prices,
)

REGIONS = ("CANADA-1", "NORWAY-1", "US-1")
_WORDS = {
    "A100-PCIe-80GB": "A100-80G-PCIe",
    "B200-SXM-180GB": "B200-180G-SXM6",
    "B300-SXM-288GB": "B300-288G-SXM6",
    "H100-PCIe-80GB": "H100-80G-PCIe",
    "H100-SXM-80GB": "H100-80G-SXM5",
    "H200-SXM-141GB": "H200-141G-SXM5",
    "RTX-A6000": "RTX-A6000",
}
"""Recorded GPU: its word in flavors, stocks and the price book."""

_PAGE_FLAVORS = {
    "B200": "n3-B200-SXM6x8",
    "B300 (forward-listed)": "n3-B300-SXM6x8",
    "H200 SXM": "n3-H200-SXM5x8",
    "H100 PCIe": "n3-H100x1-spot",
    "A6000": "n3-RTX-A6000x1-spot",
}
"""Recorded on the price page, which has no flavor names: the names are made up in the style of the others."""


@dataclass(frozen=True, slots=True)
class Flavor:
    """A size of a machine; ``cpu`` and ``ram`` None where they were not recorded."""

    name: str
    gpus: int
    cpu: int | None
    ram: float | None

    def to_label(self) -> dict[str, Any]:
        """As an item's label."""
        return {"name": self.name, "gpus": self.gpus, "cpu": self.cpu, "ram": self.ram}


@drawn_once
def hyperstack_inventory(seed: int) -> Iterator[InventoryItem]:
    """Items by (GPU word, region, tier). The price book has one price for all regions."""
    rows = [row for row in recorded_prices("hyperstack") if row.tier in {"on_demand", "spot"}]
    ordered = sorted(rows, key=lambda row: (_word(row), row.gpus))
    for word, group in groupby(ordered, key=_word):
        yield from _word_inventory(seed, word, list(group))


def _word(row: Recorded) -> str:
    word = _WORDS[row.gpu]
    if row.tier == "spot":
        return f"{word}-spot"
    return f"{word}-NVLink" if row.sku.endswith("-NVLink") else word


def _word_inventory(seed: int, word: str, rows: list[Recorded]) -> Iterator[InventoryItem]:
    names = {_PAGE_FLAVORS.get(row.sku, row.sku): row for row in rows}
    flavors = [_flavor(name, row) for name, row in names.items()]
    first = rows[0]
    alone = len(flavors) == 1
    for region in REGIONS:
        lot = (seed, word, region)
        empty = word.startswith("B300") or draw(*lot, "none") < 0.25
        yield recorded_item(
            first,
            region,
            0 if empty else draw_count(1, 6 if alone else 40, *lot),
            sku=flavors[0].name if alone else word,
            gpus=first.gpus if alone else 1,
            unit="node" if alone else "gpu",
            vcpus=None,
            memory_gb=None,
            usd_per_hour=first.usd_per_node_hour if alone else first.usd_per_node_hour / first.gpus,
            price_key=f"hyperstack|{word}",
            aliases=frozenset({word, *(re.sub(r"x\d+$", "", flavor.name) for flavor in flavors)}),
            labels={"word": word, "flavors": [flavor.to_label() for flavor in flavors]},
        )


def _flavor(name: str, row: Recorded) -> Flavor:
    return Flavor(name, row.gpus, int(row.vcpus) if row.vcpus else None, row.memory_gb)
