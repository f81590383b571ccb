"""Crusoe's signatures, and capacity that is lost after the order, against the sandbox market."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from broker.domain.basics.errors import CredentialsRejected
from broker.domain.holding.reservation import LeaseState, Order
from broker.domain.market.offer import Offer
from broker.domain.market.sku import Form
from providers.crusoe import SPEC
from providers.crusoe.adapter import Crusoe, image_of, sign, signed_headers
from providers.http import ProviderHttp
from providers.rows import gpu_node
from providers.spec import ProviderSettings, Secret
from tests.fakes.market_control import control

SANDBOX_SEED = 7

AT = datetime(2026, 11, 21, tzinfo=UTC)


def by_definition(key: bytes, text: str) -> str:
    """HMAC-SHA256 as RFC 2104 writes it, and base64url (RFC 4648) bit by bit."""
    padded = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded) + text.encode()).digest()
    digest = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded) + inner).digest()
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    bits = "".join(f"{byte:08b}" for byte in digest) + "00"
    return "".join(alphabet[int(bits[at : at + 6], 2)] for at in range(0, len(bits), 6))


def test_the_signature_covers_path_query_method_and_time() -> None:
    text = "/v1alpha5/capacities\n\nGET\n2026-11-21T00:00:00+00:00\n"
    expected = by_definition(b"\x00\xff\x10", text)
    assert sign("AP8Q", text) == expected
    assert signed_headers("key", "AP8Q", "GET", "/v1alpha5/capacities", AT) == {
        "X-Crusoe-Timestamp": "2026-11-21T00:00:00+00:00",
        "Authorization": f"Bearer 1.0:key:{expected}",
    }


def built(url: str, secret: str) -> Crusoe:
    credentials = {"access_key": "sandbox", "secret_key": secret, "project_id": "p1"}
    settings = ProviderSettings(
        provider="crusoe",
        base_url=f"{url}/crusoe",
        credentials={name: Secret(value) for name, value in credentials.items()},
        options=SPEC.stand_ins,
    )
    return Crusoe(settings, ProviderHttp)


@pytest.fixture
async def crusoe(sandbox: str) -> AsyncIterator[Crusoe]:
    adapter = built(sandbox, "sandbox")
    yield adapter
    await adapter.aclose()


async def infiniband(crusoe: Crusoe) -> Offer:
    offers = (await crusoe.list_offers(datetime.now(UTC))).offers
    return next(offer for offer in offers if offer.sku.fabric is not None)


@pytest.mark.parametrize("secret", ["anothersecret", "not base64url: a"])
async def test_a_wrong_secret_is_refused(sandbox: str, secret: str) -> None:
    adapter = built(sandbox, secret)
    with pytest.raises(CredentialsRejected):
        await adapter.list_offers(AT)
    await adapter.aclose()


async def test_machines_of_one_network_share_a_partition(crusoe: Crusoe, sandbox: str) -> None:
    offer = await infiniband(crusoe)
    note = offer.reference
    control(
        sandbox, "/_sandbox/market", provider="crusoe", sku=note["type"], region=note["location"], stock=2
    )
    leases = [await crusoe.reserve(Order(f"broker-ib-{number}", offer, 1)) for number in range(2)]
    partitions = {await crusoe._partition(note["ib_network_id"]) for _ in leases}
    assert len(partitions) == 1
    for lease in leases:
        await crusoe.release(lease)


async def test_capacity_that_is_lost_after_the_order_shows_as_failed(crusoe: Crusoe, sandbox: str) -> None:
    offer = await infiniband(crusoe)
    fault = {"provider": "crusoe", "operation": "create", "kind": "async_out_of_capacity", "count": 1}
    control(sandbox, "/_sandbox/faults", **fault)
    lease = await crusoe.reserve(Order("broker-async", offer, 1))
    control(sandbox, "/_sandbox/clock", advance_s=60)
    found = await crusoe.find_lease(lease.reference, "")
    assert (found.state, found.detail) == (LeaseState.FAILED, "out_of_stock")
    assert [held.tag for held in await crusoe.list_leases() if held.tag == "broker-async"] == []
    await crusoe.release(lease)


@pytest.mark.parametrize(
    ("gpu", "image"),
    [
        ("H100-SXM-80GB", "ubuntu22.04-nvidia-sxm-docker:latest"),
        ("L40S", "ubuntu22.04-nvidia-pcie-docker:latest"),
        ("A100-PCIe-80GB", "ubuntu22.04-nvidia-pcie-docker:latest"),
        ("MI300X-192GB", "ubuntu-rocm:latest"),
    ],
)
def test_the_image_is_that_of_the_form_of_the_gpu(gpu: str, image: str) -> None:
    assert image_of(gpu_node("x", gpu, 8, Form.VM)) == image


async def test_every_page_of_machines_is_read(crusoe: Crusoe) -> None:
    offers = (await crusoe.list_offers(datetime.now(UTC))).offers
    offer = max(offers, key=lambda one: one.stock.nodes or 0)
    tags = [f"many-{number}" for number in range(min(45, offer.stock.nodes or 0))]
    for tag in tags:
        await crusoe.reserve(Order(tag, offer, 1))
    assert len(tags) > 20, "more than a page of the sandbox"
    assert set(tags) <= {lease.tag for lease in await crusoe.list_leases()}


def test_roce_types_need_a_partition() -> None:
    kind = {"product_name": "mi300x-192gb-roce.8x", "num_gpu": 8, "gpu_type": "MI300X-192GB"}
    place = {"type": kind["product_name"], "location": "us-east1-a", "quantity": 4}
    network = {
        "id": "net-1",
        "location": "us-east1-a",
        "capacities": [{"slice_type": kind["product_name"], "quantity": 4}],
    }
    payloads = [
        (name, json.dumps({"items": [row]}).encode())
        for name, row in (("types.json", kind), ("capacities.json", place), ("ib_networks.json", network))
    ]
    (offer,) = SPEC.parse(payloads, AT).offers
    assert offer.reference["ib_network_id"] == "net-1"
    assert offer.sku.fabric is None, "nobody says how fast it is"
