"""AWS's unsigned bulk price list for EC2: one large CSV a region, streamed.

Five lines of metadata, then a header, then every product: GPU types on demand, their Capacity Block
rows at $0.00 that pass every other filter, and rows that a reader must leave out (other systems,
tenancies and terms, types without a GPU).
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal

from providers.sandbox.ledger import zulu
from providers.sandbox.market import InventoryItem

_HEADER = (
    "SKU,OfferTermCode,RateCode,TermType,PriceDescription,EffectiveDate,StartingRange,EndingRange,Unit,"
    "PricePerUnit,Currency,LeaseContractLength,PurchaseOption,OfferingClass,Product Family,serviceCode,"
    "Location,Location Type,Instance Type,Current Generation,Instance Family,vCPU,Memory,GPU,GPU Memory,"
    "Tenancy,Operating System,License Model,usageType,operation,CapacityStatus,Pre Installed S/W,"
    "MarketOption,Region Code"
)
_COLUMNS = _HEADER.split(",")
_CPU_TYPES = (("m7i.large", 2, 8, "0.1008000000"), ("c7i.xlarge", 4, 8, "0.1785000000"))
_CHUNK_ROWS = 50


def price_list(
    region: str, prices: list[tuple[InventoryItem, Decimal]], published: datetime
) -> Iterator[bytes]:
    """The region's CSV in chunks; ``prices``: one item a type with its price per hour."""
    day = zulu(published)
    yield (
        '"FormatVersion","v1.0"\n'
        '"Disclaimer","Recorded prices served by a sandbox; not an offer of Amazon Web Services."\n'
        f'"Publication Date","{day}"\n"Version","{published:%Y%m%d%H%M%S}"\n"OfferCode","AmazonEC2"\n'
    ).encode()
    yield _lines([dict(zip(_COLUMNS, _COLUMNS, strict=True))])
    rows: list[dict[str, str]] = []
    for row in _rows(region, prices, published):
        rows.append(row)
        if len(rows) == _CHUNK_ROWS:
            yield _lines(rows)
            rows = []
    if rows:
        yield _lines(rows)


def _lines(rows: list[dict[str, str]]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, _COLUMNS, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _rows(
    region: str, prices: list[tuple[InventoryItem, Decimal]], published: datetime
) -> Iterator[dict[str, str]]:
    for sku, vcpus, memory_gib, price in _CPU_TYPES:
        base = _base(region, sku, vcpus, memory_gib, published)
        yield _priced(base, Decimal(price))
        yield _priced(
            {**base, "Operating System": "Windows", "License Model": "License Included"}, _twice(price)
        )
    for item, usd in prices:
        base = _base(region, item.sku, int(item.vcpus or 0), item.memory_gb or 0, published)
        base |= {"GPU": str(item.gpus), "Instance Family": "GPU instance"}
        yield _priced(base, usd)
        yield _priced({**base, "MarketOption": "CapacityBlock"}, Decimal(0))
        yield _priced({**base, "Tenancy": "Dedicated"}, usd)
        yield _priced({**base, "CapacityStatus": "UnusedCapacityReservation"}, usd)
        yield _priced({**base, "CapacityStatus": "AllocatedCapacityReservation"}, Decimal(0))
        yield _priced({**base, "Operating System": "Windows", "License Model": "License Included"}, 2 * usd)
        yield _priced({**base, "Pre Installed S/W": "SQL Std"}, 2 * usd)
        yield _priced(
            {
                **base,
                "TermType": "Reserved",
                "LeaseContractLength": "1yr",
                "PurchaseOption": "No Upfront",
                "OfferingClass": "standard",
            },
            usd * Decimal("0.7"),
        )


def _twice(price: str) -> Decimal:
    return 2 * Decimal(price)


def _base(region: str, sku: str, vcpus: int, memory_gib: float, published: datetime) -> dict[str, str]:
    row = dict.fromkeys(_COLUMNS, "")
    return row | {
        "TermType": "OnDemand",
        "EffectiveDate": f"{published:%Y-%m-01}",
        "StartingRange": "0",
        "EndingRange": "Inf",
        "Unit": "Hrs",
        "Currency": "USD",
        "Product Family": "Compute Instance",
        "serviceCode": "AmazonEC2",
        "Location": region,
        "Location Type": "AWS Region",
        "Instance Type": sku,
        "Current Generation": "Yes",
        "vCPU": str(vcpus),
        "Memory": f"{memory_gib:,.0f} GiB",
        "Tenancy": "Shared",
        "Operating System": "Linux",
        "License Model": "No License required",
        "operation": "RunInstances",
        "CapacityStatus": "Used",
        "Pre Installed S/W": "NA",
        "MarketOption": "OnDemand",
        "Region Code": region,
    }


def _priced(row: Mapping[str, str], usd: Decimal) -> dict[str, str]:
    amount = format(usd.quantize(Decimal("0.0000000001")), "f")
    identity = "|".join(f"{name}={value}" for name, value in row.items())
    sku = hashlib.sha256(identity.encode()).hexdigest()[:16].upper()
    term = "JRTCKXETXF"
    words = f"{row['MarketOption']} {row['Operating System']} {row['Instance Type']}"
    return {
        **row,
        "SKU": sku,
        "OfferTermCode": term,
        "RateCode": f"{sku}.{term}.6YS6EN2CT7",
        "PricePerUnit": amount,
        "PriceDescription": f"${amount} per {words} Instance Hour",
        "usageType": f"BoxUsage:{row['Instance Type']}",
    }
