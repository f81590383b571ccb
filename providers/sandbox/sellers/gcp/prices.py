"""The Cloud Billing catalogue of Compute Engine in the sandbox.

One SKU per part, mode and region; GPU and core are priced per ``h``, memory per ``GiBy.h``, local SSD per
``GiBy.mo``, in ``units`` (a string) and ``nanos``. As in the real list, ``usageType`` says OnDemand of
calendar, flex-start and reserved rows and of the spot rows of B200 and local SSD: only the description
tells. Sources: cloudbilling v1 discovery document (20260901); descriptions as public price tables of 2025
and 2026 quote them, except core and RAM rows of calendar mode and flex-start, whose words are composed in
the form of the GPU's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from providers.sandbox.market import WINDOW, InventoryItem, Market
from providers.sandbox.sellers.gcp.market import (
    DISK_USD_PER_GIB_MONTH,
    FAMILIES,
    FLEX,
    SHARE_OF_VM,
    SSD_USD_PER_GIB_MONTH,
    Family,
    ssd_usd_per_gpu,
)

SERVICE = "6F81-5844-456A"
_NANO = Decimal("0.000000001")
_CONVERSIONS = {"h": 3600, "GiBy.h": 3865470566400, "GiBy.mo": 2821793513472000}
_DISK_WORDS = {"pd-balanced": "Balanced PD Capacity", "hyperdisk-balanced": "Hyperdisk Balanced Capacity"}
_PLACES = {
    "asia-east1": "Taiwan",
    "asia-northeast1": "Tokyo",
    "asia-northeast3": "Seoul",
    "asia-south1": "Mumbai",
    "asia-south2": "Delhi",
    "asia-southeast1": "Singapore",
    "australia-southeast1": "Sydney",
    "europe-north1": "Finland",
    "europe-west1": "Belgium",
    "europe-west2": "London",
    "europe-west3": "Frankfurt",
    "europe-west4": "Netherlands",
    "europe-west9": "Paris",
    "northamerica-northeast2": "Toronto",
    "us-east4": "Virginia",
    "us-east5": "Columbus",
    "us-west4": "Las Vegas",
}


def catalogue(market: Market, effective: str) -> list[dict[str, Any]]:
    """Every SKU: parts of what is sold, and rows that a reader must leave out."""
    rows: dict[str, dict[str, Any]] = {}
    for item in market.inventory("gcp"):
        for row in _parts(market, item, effective):
            rows.setdefault(row["skuId"], row)
    regions = dict.fromkeys(item.region for item in market.inventory("gcp"))
    ssds = (row for region in regions for row in _local_ssd(region, effective))
    disks = (row for region in regions for row in _disks(region, effective))
    return [*rows.values(), *ssds, *disks, *_odd(effective)]


def _disks(region: str, effective: str) -> Iterator[dict[str, Any]]:
    for kind, words in _DISK_WORDS.items():
        usd = DISK_USD_PER_GIB_MONTH[kind]
        yield _sku(f"{words} in {_place(region)}", "SSD", "OnDemand", (region,), "GiBy.mo", usd, effective)


def _local_ssd(region: str, effective: str) -> Iterator[dict[str, Any]]:
    words, usd = "SSD backed Local Storage", SSD_USD_PER_GIB_MONTH
    place = f" in {_place(region)}"
    yield _sku(f"{words}{place}", "LocalSSD", "OnDemand", (region,), "GiBy.mo", usd, effective)
    spot, usd = f"{words} attached to Spot Preemptible VMs{place}", usd * SHARE_OF_VM["spot"]
    yield _sku(spot, "LocalSSD", "OnDemand", (region,), "GiBy.mo", usd, effective)


def part_rates(item: InventoryItem, usd_per_gpu: Decimal) -> tuple[Decimal, Decimal, Decimal]:
    """(GPU, core, GiB) rates that sum, with local SSD, to ``usd_per_gpu``; at least a nano for the GPU."""
    family, share = FAMILIES[item.labels["family"]], SHARE_OF_VM[item.tier]
    core = (Decimal(family.core) * share).quantize(_NANO)
    ram = (Decimal(family.ram) * share).quantize(_NANO)
    rest = usd_per_gpu - family.vcpus * core - family.memory_gib * ram - ssd_usd_per_gpu(family, item.tier)
    return max(rest.quantize(_NANO, ROUND_HALF_EVEN), _NANO), core, ram


def _parts(market: Market, item: InventoryItem, effective: str) -> Iterator[dict[str, Any]]:
    usd = market.price(item)
    if usd is None:
        return
    family: Family = FAMILIES[item.labels["family"]]
    gpu, core, ram = (usd, Decimal(0), Decimal(0)) if usd == 0 else part_rates(item, usd)
    regions = (item.region,)
    yield _sku(_gpu_words(family, item), "GPU", _usage(family, item), regions, "h", gpu, effective)
    if family.vm:
        usage = _usage(family, item)
        for part, group, unit, rate in (("Core", "CPU", "h", core), ("Ram", "RAM", "GiBy.h", ram)):
            words = _vm_words(family, item, part)
            yield _sku(words, group, usage, regions, unit, rate, effective)


def _usage(family: Family, item: InventoryItem) -> str:
    return "Preemptible" if item.tier == "spot" and family.vm else "OnDemand"


def _gpu_words(family: Family, item: InventoryItem) -> str:
    place = _place(item.region)
    if item.tier == WINDOW:
        marked = f"Reserved {family.sku} in {place} in Calendar Mode"
        return marked if family.vm else f"DWS Calendar Mode {family.sku} in {place}"
    if item.tier == FLEX:
        if family.vm:
            return f"{family.sku} attached to DWS Defined Duration VMs running in {place}"
        return f"DWS Defined Duration {family.sku} running in {place}"
    if item.tier == "spot":
        if family.vm:
            return f"{family.sku} attached to Spot Preemptible VMs running in {place}"
        return f"Spot Preemptible {family.sku} running in {place}"
    plus = "Nvidia H100 80GB Plus GPU" if family.name == "a3-megagpu" else family.sku
    return f"{plus} running in {place}"


def _vm_words(family: Family, item: InventoryItem, part: str) -> str:
    place = _place(item.region)
    if item.tier == WINDOW:
        return f"Reserved {family.vm} {part} in {place} in Calendar Mode"
    if item.tier == FLEX:
        return f"DWS Defined Duration {family.vm} {part} running in {place}"
    spot = "Spot Preemptible " if item.tier == "spot" else ""
    return f"{spot}{family.vm} Instance {part} running in {place}"


def _place(region: str) -> str:
    return _PLACES.get(region, "Americas")


def _sku(
    words: str, group: str, usage: str, regions: tuple[str, ...], unit: str, usd: Decimal, effective: str
) -> dict[str, Any]:
    digest = hashlib.sha256(f"{words}|{regions}".encode()).hexdigest().upper()
    sku_id = "-".join((digest[:4], digest[4:8], digest[8:12]))
    nanos = int((usd % 1).quantize(_NANO) / _NANO)
    return {
        "name": f"services/{SERVICE}/skus/{sku_id}",
        "skuId": sku_id,
        "description": words,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Storage" if group == "LocalSSD" else "Compute",
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": list(regions),
        "pricingInfo": [
            {
                "summary": "",
                "pricingExpression": {
                    "usageUnit": unit,
                    "displayQuantity": 1,
                    "tieredRates": [
                        {
                            "startUsageAmount": 0,
                            "unitPrice": {"currencyCode": "USD", "units": str(int(usd)), "nanos": nanos},
                        }
                    ],
                    "baseUnit": "s" if unit == "h" else "By.s",
                    "baseUnitConversionFactor": _CONVERSIONS[unit],
                },
                "currencyConversionRate": 1,
                "effectiveTime": effective,
            }
        ],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "REGIONAL", "regions": list(regions)},
    }


_ODD = (
    ("N2 Instance Core running in Americas", "CPU", "OnDemand", "h", "0.031611"),
    ("N2 Instance Ram running in Americas", "RAM", "OnDemand", "GiBy.h", "0.004237"),
    ("Regional Balanced PD Capacity", "SSD", "OnDemand", "GiBy.mo", "0.2"),
    ("Nvidia Tesla P100 GPU running in Americas", "GPU", "OnDemand", "h", "1.46"),
    ("1/8 vGPU no lssd running in Iowa", "GPU", "OnDemand", "h", "0.64688"),
    ("RTX 6000 96GB running in Iowa", "GPU", "OnDemand", "h", "1.09565"),
    ("G4 Instance Core running in Iowa", "CPU", "OnDemand", "h", "0.04891"),
    ("G4 Instance Ram running in Iowa", "RAM", "OnDemand", "GiBy.h", "0.00587"),
    ("Reserved Nvidia H100 80GB GPU in Americas", "GPU", "OnDemand", "h", "0"),
    ("Commitment v1: Nvidia H100 80GB GPU running in Americas for 1 Year", "GPU", "Commit1Yr", "h", "6.8"),
    (
        "Nvidia L4 GPU attached to DWS Defined Duration VMs running in Americas",
        "GPU",
        "OnDemand",
        "h",
        "0.28",
    ),
)
"""Rows that sell no node: other machines, disks, unknown GPUs, reserved at $0, commitments, and
parts of G4 machines, of which the sandbox lists slices alone (illustrative)."""


def _odd(effective: str) -> Iterator[dict[str, Any]]:
    for words, group, usage, unit, usd in _ODD:
        yield _sku(words, group, usage, ("us-central1",), unit, Decimal(usd), effective)
