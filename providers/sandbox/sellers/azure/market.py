"""What Azure sells in the sandbox: VM sizes by region, on demand, spot and as Block reservations.

Recorded prices; a Block's is the size's recorded on-demand price, for Azure lists none of its own.
``meter`` is an item as the Retail Prices API shows it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from providers.sandbox.ledger import Entry, zulu
from providers.sandbox.market import (
    ILLUSTRATIVE,
    WINDOW,
    InventoryItem,
    Recorded,
    draw,
    draw_count,
    drawn_once,
    recorded_item,
    recorded_prices,
)
from providers.sandbox.protocol import SandboxState

NAME = "azure"
BLOCK_SIZES = frozenset({"Standard_ND96isr_H100_v5"})
_NOT_RESERVABLE = ("standard_nd", "standard_nc40ads_h100", "standard_nc80adis_h100")
_CAPTURE = "Azure Retail Prices capture of 2026-09-16"
_DAY = timedelta(days=1)
_PLACES = {
    "australiaeast": "AU East",
    "brazilsouth": "BR South",
    "canadacentral": "CA Central",
    "centralindia": "IN Central",
    "centralus": "US Central",
    "eastus": "US East",
    "eastus2": "US East 2",
    "francecentral": "FR Central",
    "germanywestcentral": "DE West Central",
    "italynorth": "IT North",
    "japaneast": "JA East",
    "koreacentral": "KR Central",
    "northeurope": "EU North",
    "polandcentral": "PL Central",
    "southcentralus": "US South Central",
    "southeastasia": "AP Southeast",
    "spaincentral": "ES Central",
    "swedencentral": "SE Central",
    "switzerlandnorth": "CH North",
    "uaenorth": "AE North",
    "uksouth": "UK South",
    "westeurope": "EU West",
    "westus3": "US West 3",
}
_ODD = (
    ("Standard_ND96isr_H100_v5", "eastus", "102.736", " Windows", "", _CAPTURE, "2026-09-16"),
    ("Standard_ND96isr_H100_v5", "eastus", "41.094", "", " Low Priority", _CAPTURE, "2026-09-16"),
    ("Standard_NV6ads_A10_v5", "eastus", "0.454", "", "", ILLUSTRATIVE, ""),
    ("Standard_NQ64as_Q9000_v9", "eastus", "12.5", "", "", ILLUSTRATIVE, ""),
    ("Standard_D4s_v5", "eastus", "0.192", "", "", ILLUSTRATIVE, ""),
    ("Standard_ND40rs_v2", "westus3", "0", "", "", ILLUSTRATIVE, ""),
)
"""Size, region, price, ends of product and meter name: rows that are no Linux GPU VM, or not at a price."""


@drawn_once
def azure_inventory(seed: int) -> Iterator[InventoryItem]:
    """Items by (size, region, tier), and a Block item beside each on-demand item of a size sold in blocks."""
    for row in recorded_prices(NAME):
        item = _item(seed, row)
        yield item
        if row.tier == "on_demand" and row.sku in BLOCK_SIZES:
            yield replace(item, tier=WINDOW, capacity=draw_count(16, 64, seed, row.sku, row.region, WINDOW))


def _item(seed: int, row: Recorded) -> InventoryItem:
    lot = (seed, row.sku, row.region, row.tier)
    is_scarce = row.sku.startswith("Standard_ND")
    empty = is_scarce and row.tier == "on_demand" and draw(*lot, "none") < 0.3
    return recorded_item(
        row,
        row.region,
        0 if empty else draw_count(2, 8 if is_scarce else 24, *lot),
        price_key=f"{NAME}|{row.sku}|{row.region}|{'spot' if row.tier == 'spot' else 'pay as you go'}",
    )


def find_item(sandbox: SandboxState, size: str, region: str, tier: str) -> InventoryItem | None:
    """The item of a size (in any case of letters) in a region."""
    for item in sandbox.market.inventory(NAME):
        if (item.sku.lower(), item.region, item.tier) == (size.lower(), region, tier):
            return item
    return None


def takes_targeted(size: str) -> bool:
    """Whether on-demand capacity reservations take a size."""
    return not size.lower().startswith(_NOT_RESERVABLE)


def free_in_block(sandbox: SandboxState, item: InventoryItem, start: datetime, end: datetime) -> int:
    """VMs of a Block item that are free on every day that ``[start, end)`` touches."""
    live = [entry for entry in sandbox.ledger.live(NAME, start) if entry.stock_key == item.stock_key]
    day, least = start, sandbox.market.capacity(item)
    while day < end:
        held = sum(entry.units for entry in live if _holds(entry, day))
        least = min(least, sandbox.market.capacity(item) - held)
        day += _DAY
    return max(0, least)


def _holds(entry: Entry, day: datetime) -> bool:
    return entry.starts_at < day + _DAY and (entry.over_at is None or entry.over_at > day)


def meters(sandbox: SandboxState) -> list[dict[str, Any]]:
    """Every row of the price list: the items' and the odd ones."""
    rows = [
        _meter(item.sku, item.region, sandbox.market.price(item), "", _spot(item), item.recorded_on)
        for item in sandbox.market.inventory(NAME)
        if item.tier != WINDOW
    ]
    odd = [
        _meter(size, region, Decimal(usd), product, name, day)
        for size, region, usd, product, name, _, day in _ODD
    ]
    return [*rows, *odd, _reservation()]


def _spot(item: InventoryItem) -> str:
    return " Spot" if item.tier == "spot" else ""


def _meter(
    size: str, region: str, price: Decimal | None, product: str, name: str, day: str
) -> dict[str, Any]:
    short = size.removeprefix("Standard_")
    digest = hashlib.sha256(f"{size}|{region}|{product}|{name}".encode()).hexdigest()
    since = (
        datetime.fromisoformat(day).replace(tzinfo=UTC)
        if len(day) == 10
        else datetime(2026, 1, 1, tzinfo=UTC)
    )
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": float(price or 0),
        "unitPrice": float(price or 0),
        "armRegionName": region,
        "location": _PLACES.get(region, region),
        "effectiveStartDate": zulu(since),
        "meterId": f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}",
        "meterName": f"{short}{name}",
        "productId": "DZH318Z0SAND",
        "skuId": f"DZH318Z0SAND/{digest[:4].upper()}",
        "productName": f"Virtual Machines {short} Series{product}",
        "skuName": f"{short}{name}",
        "serviceName": "Virtual Machines",
        "serviceId": "DZH313Z7MMC8",
        "serviceFamily": "Compute",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": size,
    }


def _reservation() -> dict[str, Any]:
    """A term of a year: its price is the whole term's, although the unit says an hour (illustrative)."""
    row = _meter("Standard_ND96isr_H100_v5", "eastus", Decimal(516672), "", " 1 Year", "")
    return {**row, "type": "Reservation", "reservationTerm": "1 Year"}
