"""The adapter against moto's EC2, which was written by others: signing, form bodies, XML, start and end.

moto has no capacity reservations (it answers them with an HTML page and status 500) and no price list.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

from broker.domain.basics.errors import LeaseNotFound, ProviderUnavailable
from broker.domain.holding.reservation import LeaseState, Order
from broker.domain.market.offer import Offer, Tier
from providers.aws import SPEC
from providers.aws.adapter import AwsAdapter
from providers.aws.nodes import known_types, sku_of
from providers.aws.spot import ACTION, parse_spot, spot_query
from providers.http import Operation
from providers.spec import ProviderSettings, Secret
from tests.fakes.market_control import hasty

AT = datetime(2026, 11, 21, tzinfo=UTC)
IMAGE = "ami-12c6146b"
"""An image of moto's bundled list."""
REGION = "us-east-1"


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def adapter_at(url: str) -> AwsAdapter:
    settings = ProviderSettings(
        "aws",
        url,
        {"access_key_id": Secret("AKIAMOTO"), "secret_access_key": Secret("secret-of-moto")},
        {**SPEC.options, "regions": REGION, "image_id": IMAGE},
    )
    adapter = SPEC.build(settings, hasty)
    assert isinstance(adapter, AwsAdapter)
    return adapter


async def spot_offers(adapter: AwsAdapter) -> dict[str, Offer]:
    pages = await adapter.ec2.every_page(REGION, ACTION, spot_query(["g5.xlarge"], AT), Operation.OFFERS)
    return {offer.offer_id: offer for offer in parse_spot(pages, AT).offers}


async def test_spot_prices_are_read(moto_url: str) -> None:
    adapter = adapter_at(moto_url)
    try:
        offers = await spot_offers(adapter)
    finally:
        await adapter.aclose()
    assert offers
    assert {(offer.tier, offer.region, offer.sku.gpu) for offer in offers.values()} == {
        (Tier.SPOT, REGION, "A10G")
    }


async def test_a_spot_instance_is_started_found_listed_and_ended(moto_url: str) -> None:
    adapter = adapter_at(moto_url)
    try:
        offer = (await spot_offers(adapter))["aws/spot/us-east-1a/g5.xlarge"]
        bought = await adapter.reserve(Order("broker-moto-1", offer, 1))
        assert bought.tag == "broker-moto-1"
        assert bought.sku == "g5.xlarge"
        found = await adapter.find_lease(bought.reference, REGION)
        assert found.state is LeaseState.ACTIVE
        assert [(lease.reference, lease.tag) for lease in await adapter.list_instances(REGION)] == [
            (bought.reference, "broker-moto-1")
        ]
        await adapter.release(bought)
        assert (await adapter.find_lease(bought.reference, REGION)).state is LeaseState.ENDED
        await adapter.release(bought)
    finally:
        await adapter.aclose()


async def test_what_is_unknown_is_not_found_and_released(moto_url: str) -> None:
    adapter = adapter_at(moto_url)
    try:
        with pytest.raises(LeaseNotFound):
            await adapter.find_lease("i-0123456789abcdef0", REGION)
    finally:
        await adapter.aclose()


async def test_an_html_page_with_status_500_is_an_outage(moto_url: str) -> None:
    adapter = adapter_at(moto_url)
    try:
        with pytest.raises(ProviderUnavailable):
            await adapter.list_reservations(REGION)
    finally:
        await adapter.aclose()


def test_instance_facts_agree_with_describe_instance_types(moto_url: str) -> None:
    client = boto3.client(
        "ec2",
        endpoint_url=moto_url,
        region_name=REGION,
        aws_access_key_id="AKIAMOTO",
        aws_secret_access_key="secret-of-moto",
        config=Config(retries={"max_attempts": 1}),
    )
    pages = client.get_paginator("describe_instance_types").paginate(
        Filters=[{"Name": "instance-type", "Values": list(known_types())}]
    )
    seen = 0
    for row in (row for page in pages for row in page["InstanceTypes"]):
        sku, gpus = sku_of(row["InstanceType"]), row["GpuInfo"]["Gpus"]
        assert sku.gpus_per_node == sum(gpu["Count"] for gpu in gpus)
        assert sku.vcpus == row["VCpuInfo"]["DefaultVCpus"]
        assert sku.memory_gb == pytest.approx(row["MemoryInfo"]["SizeInMiB"] * 2**20 / 1e9, abs=0.051)
        assert sku.gpu_memory_gb == pytest.approx(gpus[0]["MemoryInfo"]["SizeInMiB"] * 2**20 / 1e9, rel=0.1)
        assert sku.gpu.split("-")[0] in gpus[0]["Name"] or "RTX" in sku.gpu
        assert sku.fabric is None or row["NetworkInfo"]["EfaSupported"]
        seen += 1
    assert seen > 40
