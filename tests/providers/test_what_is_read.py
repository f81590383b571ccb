"""Payloads in the sellers' published shapes whose wrong reading sells what nobody sells, or hides what is."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.market.offer import Offer, OfferBatch, StockLevel, Tier
from providers.registry import SPECS

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def parsed(seller: str, *payloads: object, names: Sequence[str] = ()) -> OfferBatch:
    bodies = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in payloads]
    named = zip(names or [f"{number}.json" for number in range(len(bodies))], bodies, strict=True)
    return SPECS[seller].parse(list(named), NOW)


def prices(batch: OfferBatch) -> dict[str, Decimal]:
    return {offer.offer_id: offer.price_usd_per_node_hour for offer in batch.offers}


def reasons(batch: OfferBatch) -> list[str]:
    return [row.reason for row in batch.rejected]


def only(batch: OfferBatch) -> Offer:
    (offer,) = batch.offers
    return offer


def azure_meter(price: float, since: str | None, size: str = "Standard_NC40ads_H100_v5") -> dict[str, Any]:
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": price,
        "armRegionName": "eastus2",
        "effectiveStartDate": since,
        "productName": "Virtual Machines NCads H100 v5 Series",
        "skuName": "NC40ads H100 v5",
        "meterName": "NC40ads H100 v5",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "armSkuName": size,
    }


METERS = (
    azure_meter(8.5, "2024-02-01T00:00:00Z"),
    azure_meter(6.98, "2026-10-01T00:00:00Z"),
    azure_meter(5.0, "2027-01-01T00:00:00Z"),
    azure_meter(9.9, None),
)


@given(order=st.permutations(METERS), pages=st.integers(1, 4))
def test_the_newest_price_in_force_stands_in_any_order_and_on_any_page(
    order: list[dict[str, Any]], pages: int
) -> None:
    batch = parsed("azure", *({"Items": order[number::pages]} for number in range(pages)))
    assert set(prices(batch).values()) == {Decimal("6.985")}, "with the public address"
    assert set(reasons(batch)) == {
        "older than the price of 2026-10-01",
        "the price only holds from 2027-01-01 on",
    }


def test_of_two_rows_of_one_offer_the_dearer_stands_in_any_order() -> None:
    def size(price: float) -> dict[str, Any]:
        gpu = {"count": 8, "model": "nvidia_h100", "vram": {"amount": 640, "unit": "gib"}}
        slug = {"slug": "gpu-h100x8-640gb", "price_hourly": price, "regions": ["tor1"], "available": True}
        return {**slug, "memory": 1966080, "vcpus": 160, "disk": 2046, "gpu_info": gpu}

    for rows in itertools.permutations((size(23.92), size(27.52), size(25.0))):
        batch = parsed("digitalocean", {"sizes": rows, "links": {}})
        assert only(batch).price_usd_per_node_hour == Decimal("27.52")
        assert len(reasons(batch)) == 2
        assert all("a second price" in reason for reason in reasons(batch))


def shadeform_type(*places: dict[str, Any], **changes: Any) -> dict[str, Any]:
    configuration = {"num_gpus": 8, "gpu_type": "B300", "interconnect": "sxm6", "vram_per_gpu_in_gb": 288}
    row = {"cloud": "nebius", "shade_instance_type": "B300x8", "hourly_price": 5600, "availability": places}
    return {"instance_types": [{**row, "configuration": {**configuration, **changes}}]}


@pytest.mark.parametrize("turned", [False, True])
def test_a_region_that_rents_spot_alone_sells_nothing_on_demand(turned: bool) -> None:
    places = [
        {"region": "helsinki-finland-4", "available": False, "rental_type": "on_demand"},
        {"region": "helsinki-finland-4", "available": True, "rental_type": "spot"},
        {"region": "paris-france-3", "available": True, "rental_type": "on_demand"},
    ]
    batch = parsed("shadeform", shadeform_type(*(places[::-1] if turned else places)))
    assert [(offer.region, offer.tier) for offer in batch.offers] == [("paris-france-3", Tier.ON_DEMAND)]
    assert sum("rental_type 'spot'" in reason for reason in reasons(batch)) == 1
    assert "sold out" in reasons(batch)


def test_a_card_of_one_form_needs_no_form() -> None:
    place = {"region": "eu-1", "available": True}
    batch = parsed(
        "shadeform", shadeform_type(place, gpu_type="H200", interconnect=None, vram_per_gpu_in_gb=141)
    )
    assert (only(batch).sku.gpu, only(batch).stock.level) == ("H200-SXM-141GB", StockLevel.SOME)


def gcp_sku(description: str, group: str, usage: str, usd: str, unit: str = "h") -> dict[str, Any]:
    whole, _, part = usd.partition(".")
    price = {"currencyCode": "USD", "units": whole, "nanos": int(part.ljust(9, "0"))}
    expression = {"usageUnit": unit, "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}]}
    return {
        "skuId": description,
        "description": description,
        "category": {"resourceGroup": group, "usageType": usage},
        "serviceRegions": ["us-central1"],
        "pricingInfo": [{"pricingExpression": expression, "effectiveTime": "2026-11-01T00:00:00Z"}],
    }


def gcp_a3(*, without: str = "") -> dict[str, Any]:
    spot = "Spot Preemptible "
    rows = [
        gcp_sku("Nvidia H100 80GB GPU running in Americas", "GPU", "OnDemand", "9.8"),
        gcp_sku("A3 Instance Core running in Americas", "CPU", "OnDemand", "0.03"),
        gcp_sku("A3 Instance Ram running in Americas", "RAM", "OnDemand", "0.002", "GiBy.h"),
        gcp_sku(
            f"Nvidia H100 80GB GPU attached to {spot}VMs running in Americas", "GPU", "Preemptible", "2.2"
        ),
        gcp_sku(f"{spot}A3 Instance Core running in Americas", "CPU", "Preemptible", "0.01"),
        gcp_sku(f"{spot}A3 Instance Ram running in Americas", "RAM", "Preemptible", "0.001", "GiBy.h"),
    ]
    return {"skus": [row for row in rows if row["description"] != without]}


def gcp_machines(*sizes: tuple[str, int, int, int], **more: Any) -> dict[str, Any]:
    rows = [
        {
            "name": name,
            "guestCpus": cpus,
            "memoryMb": memory,
            "accelerators": [{"guestAcceleratorType": "nvidia-h100-80gb", "guestAcceleratorCount": gpus}],
            **more,
        }
        for name, gpus, cpus, memory in sizes
    ]
    return {"items": {"zones/us-central1-a": {"machineTypes": rows}}}


EIGHT, ONE = ("a3-highgpu-8g", 8, 208, 1916928), ("a3-highgpu-1g", 1, 26, 239616)
GCP_NAMES = ("skus.json", "machine-types.json")


def test_a_price_of_what_is_not_sold_so_makes_no_offer() -> None:
    batch = parsed("gcp", gcp_a3(), gcp_machines(EIGHT, ONE), names=GCP_NAMES)
    sold = {(offer.sku.name, offer.tier) for offer in batch.offers}
    assert sold == {
        ("a3-highgpu-8g", Tier.ON_DEMAND),
        ("a3-highgpu-8g", Tier.SPOT),
        ("a3-highgpu-1g", Tier.SPOT),
    }
    (said,) = [row for row in batch.rejected if "a3-highgpu-1g on_demand" in row.row]
    assert "not sold on demand" in said.reason


def test_a_tier_without_a_part_of_its_price_is_named_beside_the_other() -> None:
    without = "A3 Instance Ram running in Americas"
    batch = parsed("gcp", gcp_a3(without=without), gcp_machines(EIGHT), names=GCP_NAMES)
    assert only(batch).tier is Tier.SPOT
    (said,) = [row for row in batch.rejected if "a3-highgpu-8g" in row.row]
    assert (said.row, said.reason) == (
        "us-central1-a a3-highgpu-8g on_demand",
        "no on demand price of A3 Ram in us-central1",
    )


@pytest.mark.parametrize(("state", "offers"), [("DEPRECATED", 2), ("OBSOLETE", 0), ("DELETED", 0)])
def test_of_an_obsolete_type_nothing_can_be_made(state: str, offers: int) -> None:
    machines = gcp_machines(EIGHT, deprecated={"state": state})
    batch = parsed("gcp", gcp_a3(), machines, names=GCP_NAMES)
    assert len(batch.offers) == offers
    assert any(state in reason for reason in reasons(batch)) == (not offers)


def vultr_plan(plan_id: str) -> dict[str, Any]:
    sizes = {"cpu_threads": 72, "ram": 491520, "disk": 960, "disk_count": 2}
    return {"id": plan_id, **sizes, "hourly_cost": 2.99, "locations": ["atl"]}


@pytest.mark.parametrize(
    ("plan", "gpu", "gpus"),
    [
        ("vbm-72c-480gb-gh200-gpu", "GH200-96GB", 1),
        ("vbm-112c-2048gb-8-h100-gpu", "H100-SXM-80GB", 8),
    ],
)
def test_a_plan_without_gpu_fields_is_read_by_its_name(plan: str, gpu: str, gpus: int) -> None:
    offer = only(parsed("vultr", {"plans_metal": [vultr_plan(plan)]}))
    assert (offer.sku.gpu, offer.sku.gpus_per_node) == (gpu, gpus)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ("vbm-96c-960gb-mi455x-gpu", "unknown GPU 'mi455x'"),
        ("vbm-96c-960gb-l40s-gpu", "neither a GPU count nor GPU memory"),
        ("vcg-new-24c-120g-48vram", "the GPU is not stated"),
        ("vbm-24c-256gb-amd", "no GPU"),
    ],
)
def test_a_plan_is_without_a_gpu_only_where_it_is(plan: str, reason: str) -> None:
    assert reasons(parsed("vultr", {"plans_metal": [vultr_plan(plan)]})) == [reason]


@pytest.mark.parametrize("body", [b"null", b"[]"])
def test_nothing_on_sale_is_no_failure(body: bytes) -> None:
    assert parsed("hotaisle", body, names=["virtual_machines_available.json"]) == OfferBatch((), ())


def test_a_stock_that_was_not_asked_for_is_unknown() -> None:
    prices_only = {
        "id": "NVIDIA H200",
        "displayName": "H200 SXM",
        "memoryInGb": 141,
        "securePrice": 4.59,
        "secureSpotPrice": 0,
    }
    offer = only(parsed("runpod", {"data": {"gpuTypes": [prices_only]}}))
    with_disk = Decimal("4.596849")  # and 50 GB of disk at 0.10 a month
    assert (offer.tier, offer.price_usd_per_node_hour) == (Tier.ON_DEMAND, with_disk)
    assert offer.stock.level is StockLevel.UNKNOWN


def test_a_stock_that_was_asked_for_and_is_null_is_none() -> None:
    lowest = {"minimumBidPrice": None, "uninterruptablePrice": 4.59, "stockStatus": None}
    row = {"id": "NVIDIA H200", "displayName": "H200 SXM", "memoryInGb": 141, "lowestPrice": lowest}
    assert reasons(parsed("runpod", {"data": {"gpuTypes": [row]}})) == ["sold out everywhere"]


def test_the_default_disk_is_in_the_asked_price() -> None:
    disk = {"defaultCount": 120, "pricePerUnit": 0.00014, "defaultIncludedInPrice": False}
    row = {
        "cloudId": "NVIDIA A100-SXM4-80GB",
        "gpuType": "A100_80GB",
        "socket": "SXM4",
        "provider": "runpod",
        "dataCenter": "US-KS-2",
        "country": "US",
        "gpuCount": 1,
        "gpuMemory": 80,
        "disk": disk,
        "stockStatus": "Available",
        "prices": {"onDemand": 1.7567999999999997, "currency": "USD"},
    }
    offer = only(parsed("prime_intellect", {"items": [row], "totalCount": 1}))
    # 1.74 of the card and 120 GB at 0.00014
    assert offer.price_usd_per_node_hour == Decimal("1.74") + 120 * Decimal("0.00014")


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("gpu_1x_gh200", "GH200-96GB"),
        ("gpu_8x_h100_sxm5", "H100-SXM-80GB"),
        ("gpu_1x_a100_sxm4", "A100-SXM-40GB"),
        ("gpu_8x_a100_80gb_sxm4", "A100-SXM-80GB"),
    ],
)
def test_a_type_without_a_description_is_read_by_its_name(name: str, gpu: str) -> None:
    kind = {"name": name, "price_cents_per_hour": 229, "specs": {"gpus": int(name[4])}}
    row = {"instance_type": kind, "regions_with_capacity_available": [{"name": "us-east-3"}]}
    offer = only(parsed("lambda", {"data": {name: row}}))
    assert (offer.sku.gpu, offer.stock.level) == (gpu, StockLevel.SOME)


CATALOGUE = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,Region,SpotPrice\n"


@pytest.mark.parametrize(
    ("cloud", "row", "gpu"),
    [
        (
            "hyperstack",
            "n4-H200-SXM5x8,H200-141G-SXM5,8,192,1800,{'Manufacturer': null,144384},28,US-1,",
            "H200-SXM-141GB",
        ),
        (
            "shadeform",
            "denvr_A100-sxm4x8,A100,8.0,120,940,{'Manufacturer': 'NVIDIA',40},11.2,calgary,",
            "A100-SXM-40GB",
        ),
        (
            "shadeform",
            "massed_A6000x8,A6000,8.0,62,384,{'Manufacturer': 'NVIDIA',48},4.56,desmoines,",
            "RTX-A6000",
        ),
        (
            "shadeform",
            "crusoe_A100-80GBx2,A100-80GB,2.0,24,240,{'Manufacturer': 'NVIDIA',80},4,culpeper,",
            None,
        ),
        ("shadeform", "massed_L40,L40,1.0,26,192,{'Manufacturer': 'NVIDIA',48},0.88,desmoines,", "L40"),
    ],
)
def test_a_listed_type_is_read_by_its_words(cloud: str, row: str, gpu: str | None) -> None:
    maker, _, size = row[row.index("{") + 1 : row.index("}")].partition(",")
    info = f"\"{{'Gpus': [{{'Name': 'x', {maker}, 'MemoryInfo': {{'SizeInMiB': {size}}}}}]}}\""
    written = row[: row.index("{")] + info + row[row.index("}") + 1 :]
    batch = parsed("skypilot", (CATALOGUE + written).encode(), names=[f"{cloud}-vms.csv"])
    assert [offer.sku.gpu for offer in batch.offers] == ([gpu] if gpu else [])
    assert len(batch.offers) + len(batch.rejected) == 1


SPOT_ROW = (
    "<item><instanceType>g4dn.12xlarge</instanceType><productDescription>Linux/UNIX</productDescription>"
    "<spotPrice>{price}</spotPrice><timestamp>{at}</timestamp><availabilityZone>us-east-1a</availabilityZone></item>"
)


@given(order=st.permutations([("1.9", "10"), ("1.5", "11"), ("1.7", "11")]))
def test_of_equally_new_spot_prices_the_dearer_counts(order: list[tuple[str, str]]) -> None:
    rows = "".join(SPOT_ROW.format(price=p, at=f"2026-11-20T{h}:00:00.000Z") for p, h in order)
    body = f"<DescribeSpotPriceHistoryResponse><spotPriceHistorySet>{rows}</spotPriceHistorySet>"
    batch = parsed("aws", f"{body}</DescribeSpotPriceHistoryResponse>".encode(), names=["spot.xml"])
    assert only(batch).price_usd_per_node_hour == Decimal("1.705"), "with the public address"


@pytest.mark.parametrize(("free", "total", "nodes"), [(100, 250, 2), (99, 250, None), (None, None, 4)])
def test_a_machine_needs_its_disk(free: int | None, total: int | None, nodes: int | None) -> None:
    prices = ("vcpuPriceHr", "memoryGibPriceHr", "gpuPriceHr", "minStorageGibPriceHr", "ipv4PriceHr")
    row = {
        "dataCenterId": "gb-1",
        "machineType": "epyc-l40s",
        "gpuModel": "L40S",
        **{name: {"value": "0.01"} for name in prices},
        "maxGpuFree": 1,
        "totalGpuFree": 4,
        "maxStorageGibFree": free,
        "totalStorageGibFree": total,
    }
    batch = parsed("cudo", {"machineTypes": [row]})
    assert [offer.stock.nodes for offer in batch.offers] == ([] if nodes is None else [nodes])
    assert (reasons(batch) == []) == (nodes is not None)
