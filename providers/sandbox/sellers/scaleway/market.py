"""What Scaleway sells in the sandbox: commercial types by zone, priced in euros.

Prices were recorded in one zone; the sandbox asks the same in the others where it sells the type. Euros
come from the dollars of the recording by the rate that its source names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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

HOME = "fr-par-2"
ZONES = ("fr-par-1", HOME, "fr-par-3", "nl-ams-1", "nl-ams-2", "pl-waw-1", "pl-waw-2", "it-mil-1")
_OTHERS = ("fr-par-1", "nl-ams-1", "pl-waw-2")
_NAMES = {
    "B300-SXM-288GB": "B300-SXM",
    "H100-PCIe-80GB": "H100-PCIe",
    "H100-SXM-80GB": "H100-SXM",
    "L4": "L4",
    "L40S": "L40S",
}
_EUROS = re.compile(r"EUR ([0-9.]+) x ([0-9.]+) USD/EUR")
_RATE = Decimal("1.1643")


def dollars_per_euro(row: Recorded) -> Decimal:
    """The rate that the recording was turned into dollars with."""
    found = _EUROS.search(row.source)
    return Decimal(found.group(2)) if found else _RATE


@drawn_once
def scaleway_inventory(seed: int) -> Iterator[InventoryItem]:
    """An item per type and zone; what was recorded is sold in its own zone and, drawn, in others."""
    for row in recorded_prices("scaleway"):
        zones = (HOME, *(zone for zone in _OTHERS if draw(seed, "scaleway", row.sku, zone) < 0.5))
        for zone in zones:
            yield _item(seed, row, zone)


def _item(seed: int, row: Recorded, zone: str) -> InventoryItem:
    stocked = row.sku == "H100-1-80G" or draw(seed, row.sku, zone, "stocked") < 0.75
    return recorded_item(
        row,
        zone.rpartition("-")[0],
        draw_count(1, 9, seed, row.sku, zone) if stocked else 0,
        zone=zone,
        labels={"gpu_name": _NAMES[row.gpu], "dollars_per_euro": str(dollars_per_euro(row))},
    )
