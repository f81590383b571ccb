"""Google Cloud beyond the contract: who asks, hosts, names, and windows against the sandbox market."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import respx
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from google.auth import jwt
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.errors import CredentialsRejected, InputError, ReleaseRefused
from broker.domain.basics.window import Segment, Window
from broker.domain.holding.reservation import LeaseState, Order
from broker.domain.market.offer import Offer, OfferBatch, Tier, WindowKind
from providers.gcp import SPEC, build
from providers.gcp.adapter import Gcp
from providers.gcp.auth import ServiceAccount, read_credentials
from providers.gcp.calendar import highest_steps, questions
from providers.gcp.compute import request_id
from providers.gcp.leases import LONGEST_NAME, resource_name
from providers.http import ProviderHttp
from providers.spec import ProviderSettings, Secret, settings_from_environment
from tests.fakes.market_control import control, hasty, market_now

SANDBOX_SEED = 5

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
DAY = datetime(2026, 12, 1, tzinfo=UTC)


def key_file(private_key: Any = KEY, **changes: str) -> str:
    pem = private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {
        "type": "service_account",
        "project_id": "research",
        "private_key_id": "k1",
        "private_key": pem,
        "client_email": "broker@research.iam.gserviceaccount.com",
    }
    return json.dumps(account | changes)


def settings_for(sandbox: str, **environ: str) -> ProviderSettings:
    own = {"BROKER_GCP_BASE_URL": f"{sandbox}/gcp", "BROKER_GCP_CREDENTIALS": key_file()}
    found = settings_from_environment(SPEC, own | environ, None)
    assert found is not None
    return found


@pytest.fixture
async def gcp(sandbox: str) -> AsyncIterator[Gcp]:
    adapter = build(settings_for(sandbox), hasty)
    yield adapter
    await adapter.aclose()


def ledger(url: str, tag: str) -> dict[str, Any]:
    (row,) = [row for row in control(url, "/_sandbox/ledger")["instances"] if row["tag"] == tag]
    return dict(row)


async def window_offer(gcp: Gcp, url: str) -> tuple[Offer, Segment]:
    offers = (await gcp.list_offers(market_now(url))).offers
    offer = next(offer for offer in offers if offer.offer_id.startswith("gcp/calendar/"))
    assert offer.window is not None
    return offer, next(step for step in offer.window.segments if step.hours >= 24 and step.nodes >= 2)


# What a machine is and costs


def sku_row(words: str, usd: str, unit: str) -> dict[str, Any]:
    units, _, nanos = usd.partition(".")
    price = {"currencyCode": "USD", "units": units, "nanos": int(nanos.ljust(9, "0"))}
    expression = {"usageUnit": unit, "tieredRates": [{"unitPrice": price}]}
    return {
        "description": words,
        "category": {"resourceGroup": "GPU", "usageType": "OnDemand"},
        "serviceRegions": ["us-central1"],
        "pricingInfo": [{"pricingExpression": expression}],
    }


def machine_row(name: str, vcpus: int, gib: int, card: str, cards: int, ssds: int = 0) -> dict[str, Any]:
    bundled = {"bundledLocalSsds": {"partitionCount": ssds}} if ssds else {}
    accelerators = [{"guestAcceleratorType": card, "guestAcceleratorCount": cards}]
    row = {"name": name, "guestCpus": vcpus, "memoryMb": gib * 1024, "accelerators": accelerators}
    return row | bundled


def parsed(skus: list[dict[str, Any]], machines: list[dict[str, Any]]) -> OfferBatch:
    listed = {"items": {"zones/us-central1-a": {"machineTypes": machines}}}
    bodies = (json.dumps(body).encode() for body in ({"skus": skus}, listed))
    return SPEC.parse([(f"{index}.json", body) for index, body in enumerate(bodies)], DAY)


A2_RATES = [
    sku_row("A2 Instance Core running in Americas", "0.031611", "h"),
    sku_row("A2 Instance Ram running in Americas", "0.004237", "GiBy.h"),
    sku_row("Nvidia Tesla A100 80GB GPU running in Americas", "3.928080", "h"),
]
A2_ULTRA = machine_row("a2-ultragpu-8g", 96, 1360, "nvidia-a100-80gb", 8, ssds=8)


def test_local_ssd_that_comes_with_a_machine_is_in_its_price() -> None:
    """On demand as Google's page has it (40.550383123), spot as dstack issue 1355 was billed (16.32).

    The spot rates of core, RAM and GPU are split by hand of the 16.0777 that they sum to; 0.059 is what local
    SSD then costs a GiB and month for that bill.
    """
    on_spot = "attached to Spot Preemptible VMs"
    rows = [
        *A2_RATES,
        sku_row("SSD backed Local Storage", "0.08", "GiBy.mo"),
        sku_row("Spot Preemptible A2 Instance Core running in Americas", "0.0121", "h"),
        sku_row("Spot Preemptible A2 Instance Ram running in Americas", "0.0016", "GiBy.h"),
        sku_row(f"Nvidia Tesla A100 80GB GPU {on_spot} running in Americas", "1.5925125", "h"),
        sku_row(f"SSD backed Local Storage {on_spot}", "0.059", "GiBy.mo"),
    ]
    prices = {offer.tier: offer.price_usd_per_node_hour for offer in parsed(rows, [A2_ULTRA]).offers}
    assert prices[Tier.ON_DEMAND] == pytest.approx(Decimal("40.5503"), abs=Decimal("0.001"))
    assert round(prices[Tier.SPOT], 2) == Decimal("16.32")
    ssd, address = Decimal("0.242466"), Decimal("0.0025")  # 8 x 375 x 0.059 / 730, and an hour on spot
    assert prices[Tier.SPOT] == Decimal("16.0777") + ssd + address


def test_a_machine_is_not_sold_without_a_price_of_its_local_ssd() -> None:
    batch = parsed(A2_RATES, [A2_ULTRA])
    assert not batch.offers
    assert "no price of the local SSD that comes with it" in {row.reason[:44] for row in batch.rejected}


G4_RATES = [
    sku_row("G4 Instance Core running in Iowa", "0.04891", "h"),
    sku_row("G4 Instance Ram running in Iowa", "0.00587", "GiBy.h"),
    sku_row("RTX 6000 96GB running in Iowa", "1.09565", "h"),
    sku_row("1/8 vGPU no lssd running in Iowa", "0.64688", "h"),
]


@pytest.mark.parametrize("described", [True, False], ids=["words", "sizes alone"])
def test_a_part_of_a_card_is_not_sold_as_the_card(described: bool) -> None:
    """G4 counts one accelerator for an eighth, a quarter and a half of a card (12, 24 and 48 of 96 GB)."""
    shapes = {6: ("1/8", 22), 12: ("1/4", 45), 24: ("1/2", 90), 48: ("1", 180)}
    machines = []
    for vcpus, (part, gib) in shapes.items():
        words = f"Graphics Optimized: {part} NVIDIA RTX PRO 6000 GPU, {vcpus} vCPUs, {gib}GB RAM"
        row = machine_row(f"g4-standard-{vcpus}", vcpus, gib, "nvidia-rtx-pro-6000", 1)
        machines.append(row | ({"description": words} if described else {}))
    batch = parsed(G4_RATES, machines)
    assert [(offer.sku.name, offer.price_usd_per_node_hour) for offer in batch.offers] == [
        ("g4-standard-48", Decimal("4.49993"))
    ]
    reasons = {row.row: row.reason for row in batch.rejected}
    for vcpus in (6, 12, 24):
        assert "a fraction of a GPU" in reasons[f"us-central1-a g4-standard-{vcpus}"]


def test_whole_cards_with_few_vcpus_are_sold_where_something_says_that_they_are_whole() -> None:
    """g2-standard-4 has a third of the vCPUs that an L4 of g2-standard-96 comes with, and the whole L4."""
    machines = [
        machine_row("g2-standard-4", 4, 16, "nvidia-l4", 1),
        machine_row("g2-standard-96", 96, 384, "nvidia-l4", 8),
        machine_row("g2-custom-2", 2, 8, "nvidia-l4", 1),
        machine_row("g2-custom-12", 12, 48, "nvidia-l4", 1),
    ]
    machines[2]["description"] = "Accelerator Optimized: 1 NVIDIA L4 GPU, 2 vCPUs, 8GB RAM"
    rows = [
        sku_row("G2 Instance Core running in Iowa", "0.024988", "h"),
        sku_row("G2 Instance Ram running in Iowa", "0.002927", "GiBy.h"),
        sku_row("Nvidia L4 GPU running in Iowa", "0.56004", "h"),
    ]
    batch = parsed(rows, machines)
    assert {offer.sku.name for offer in batch.offers} == {"g2-standard-4", "g2-standard-96"}
    assert not any("fraction" in row.reason for row in batch.rejected)


# Who asks


def test_an_assertion_is_what_google_verifies() -> None:
    account = read_credentials(key_file())
    assert isinstance(account, ServiceAccount)
    now = int(datetime.now(UTC).timestamp())
    token = account.assertion("https://oauth2.googleapis.com/token", now)
    public = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    audience = "https://oauth2.googleapis.com/token"
    claims = jwt.decode(token, certs=public, audience=audience)  # type: ignore[no-untyped-call]
    assert (claims["iss"], claims["exp"] - claims["iat"]) == (account.client_email, 3600)
    assert "PRIVATE" not in repr(account)


def test_a_key_is_read_from_text_or_file_and_anything_else_is_a_token(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text(key_file())
    for text in (key_file(), str(path)):
        account = read_credentials(text)
        assert isinstance(account, ServiceAccount)
        assert account.project_id == "research"
    assert read_credentials("ya29.token") == "ya29.token"


@pytest.mark.parametrize(
    "text",
    [
        "{not json",
        "{}",
        "/nowhere/key.json",
        key_file(private_key=ec.generate_private_key(ec.SECP256R1())),
        json.dumps({"private_key": "-----BEGIN PRIVATE KEY-----\nMII", "client_email": "a@b"}),
    ],
    ids=["no JSON", "empty", "no file", "of another kind", "cut off"],
)
def test_a_key_that_cannot_be_used_is_named_without_showing_it(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_credentials(text)
    assert "BROKER_GCP_CREDENTIALS" in str(caught.value)
    assert "BEGIN" not in str(caught.value)


async def test_a_token_that_ran_out_is_fetched_anew(gcp: Gcp, sandbox: str) -> None:
    await gcp.list_leases()
    control(sandbox, "/_sandbox/clock", advance_s=7200)
    await gcp.list_leases()


async def test_a_refused_account_is_named_and_its_key_never_shown() -> None:
    settings = settings_for("http://provider.test")
    adapter = build(settings, ProviderHttp)
    refusal = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
    with respx.mock() as router:
        router.post("http://provider.test/gcp/token").respond(400, json=refusal)
        with pytest.raises(CredentialsRejected) as caught:
            await adapter.list_leases()
        sent = router.calls[0].request.content.decode()
    await adapter.aclose()
    assert "Invalid JWT Signature" in str(caught.value)
    assert sent.partition("assertion=")[2] not in str(caught.value)


async def test_the_price_list_can_be_asked_with_an_api_key() -> None:
    settings = settings_for("http://provider.test", BROKER_GCP_API_KEY="AIza-key")
    adapter = build(settings, ProviderHttp)
    with respx.mock() as router:
        prices = router.get(url__regex=r".*/v1/services/.*").respond(
            400, json={"error": {"code": 400, "message": "API key not valid: AIza-key", "details": [
                {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
            ], "status": "INVALID_ARGUMENT"}}
        )  # fmt: skip
        with pytest.raises(CredentialsRejected) as caught:
            await adapter.list_offers(DAY)
    await adapter.aclose()
    request = prices.calls[0].request
    assert request.headers["x-goog-api-key"] == "AIza-key"
    assert "authorization" not in request.headers
    assert "AIza-key" not in str(caught.value)


async def test_googles_hosts_are_three() -> None:
    settings = ProviderSettings(
        "gcp", SPEC.base_url, {"credentials": Secret(key_file())}, SPEC.options, min_interval_s=0.0
    )
    adapter = build(settings, ProviderHttp)
    with respx.mock() as router:
        router.post("https://oauth2.googleapis.com/token").respond(
            json={"access_token": "ya29.a", "expires_in": 3599}
        )
        router.get(host="cloudbilling.googleapis.com").respond(json={"skus": [], "nextPageToken": ""})
        router.get(host="compute.googleapis.com").respond(json={"items": {}})
        router.post(host="compute.googleapis.com").respond(json={"recommendations": []})
        assert (await adapter.list_offers(DAY)).offers == ()
        paths = {call.request.url.path for call in router.calls}
    await adapter.aclose()
    assert "/compute/v1/projects/research/aggregated/machineTypes" in paths


# Names and steps


@given(st.text(min_size=1, max_size=120))
def test_every_tag_has_a_name_that_the_api_takes(tag: str) -> None:
    name = resource_name(tag)
    assert len(name) <= LONGEST_NAME
    assert name[0].isascii()
    assert name[0].islower()
    assert all(c.isascii() and (c.islower() or c.isdigit() or c == "-") for c in name)
    assert not name.endswith("-")
    assert resource_name(tag) == name


def test_a_good_tag_is_its_own_name_and_request_ids_are_stable() -> None:
    assert resource_name("broker-a1b2-01jc-0-1") == "broker-a1b2-01jc-0-1"
    assert resource_name("A") != resource_name("a")
    assert request_id("t", "create") == request_id("t", "create") != request_id("t", "cancel")


spans = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 10), st.integers(1, 80)).map(
        lambda t: Segment(DAY + timedelta(days=t[0]), DAY + timedelta(days=t[0] + t[1]), t[2])
    ),
    max_size=8,
)


@given(spans)
def test_steps_hold_the_highest_count_of_every_day_and_never_overlap(segments: list[Segment]) -> None:
    steps = highest_steps(segments)
    assert all(before.end <= after.start for before, after in pairwise(steps))
    for day in range(31):
        at = DAY + timedelta(days=day)
        highest = max((s.nodes for s in segments if s.start <= at < s.end), default=0)
        assert sum(s.nodes for s in steps if s.start <= at < s.end) == highest


def test_questions_interleave_types_and_keep_to_the_wished_regions() -> None:
    menu = [
        {"machine_type": "a", "regions": ["r1", "r2"], "counts": [1, 2]},
        {"machine_type": "b", "regions": ["r2"], "counts": [4]},
    ]
    search = {"days": [[1, 7]], "menu": menu}
    asked = questions(search, frozenset({"r2"}))
    assert [(q.machine_type, q.region, q.nodes) for q in asked] == [
        ("a", "r2", 1),
        ("b", "r2", 4),
        ("a", "r2", 2),
    ]
    assert len(questions(search, frozenset())) == 5


# Windows against the market


async def test_a_window_is_asked_for_approved_and_withdrawn(gcp: Gcp, sandbox: str) -> None:
    offer, step = await window_offer(gcp, sandbox)
    assert offer.window is not None
    assert offer.window.kind is WindowKind.SLOTS
    order = Order("broker-gcp-w1", offer, 2, Window(step.start, step.start + timedelta(days=1)))
    lease = await gcp.reserve(order)
    assert (await gcp.reserve(order)).reference == lease.reference
    assert ledger(sandbox, "broker-gcp-w1")["instance_id"] == lease.reference
    control(sandbox, "/_sandbox/clock", advance_s=60)
    found = await gcp.find_lease(lease.reference, lease.region)
    assert (found.state, found.window, found.nodes) == (LeaseState.SCHEDULED, order.window, 2)
    await gcp.release(lease)
    await gcp.release(lease)
    assert [held.tag for held in await gcp.list_leases() if held.tag == "broker-gcp-w1"] == []
    assert ledger(sandbox, "broker-gcp-w1")["billed_usd"] == "0.000000"


async def test_a_locked_window_ends_by_itself_and_is_owed_whole(gcp: Gcp, sandbox: str) -> None:
    offer, step = await window_offer(gcp, sandbox)
    order = Order("broker-gcp-w2", offer, 2, Window(step.start, step.start + timedelta(days=1)))
    lease = await gcp.reserve(order)
    until_locked = step.start - timedelta(hours=2) - market_now(sandbox)
    control(sandbox, "/_sandbox/clock", advance_s=until_locked.total_seconds())
    with pytest.raises(ReleaseRefused) as refused:
        await gcp.release(lease)
    assert refused.value.forever
    control(sandbox, "/_sandbox/clock", advance_s=4 * 3600)
    held = [found for found in await gcp.list_leases() if found.tag == "broker-gcp-w2"]
    assert [(found.reference, found.detail) for found in held] == [(lease.reference, "FULFILLED")]
    assert len([found for found in await gcp.list_leases() if found.tag == found.reference]) == 0
    control(sandbox, "/_sandbox/clock", advance_s=24 * 3600)
    owed = 2 * 24 * offer.price_usd_per_node_hour
    assert float(ledger(sandbox, "broker-gcp-w2")["billed_usd"]) == pytest.approx(float(owed))
    await gcp.release(lease)


async def test_a_window_that_is_declined_shows_as_failed(gcp: Gcp, sandbox: str) -> None:
    offer, step = await window_offer(gcp, sandbox)
    fault = {"operation": "create", "kind": "async_out_of_capacity", "count": 1}
    control(sandbox, "/_sandbox/faults", provider="gcp", **fault)
    order = Order("broker-gcp-w3", offer, 2, Window(step.start, step.start + timedelta(days=1)))
    lease = await gcp.reserve(order)
    control(sandbox, "/_sandbox/clock", advance_s=60)
    found = await gcp.find_lease(lease.reference, lease.region)
    assert (found.state, found.detail) == (LeaseState.FAILED, "DECLINED")


async def test_machines_lost_after_the_order_show_as_failed(gcp: Gcp, sandbox: str) -> None:
    offers = (await gcp.list_offers(market_now(sandbox))).offers
    offer = next(o for o in offers if o.tier is Tier.SPOT and o.sku.gpus_per_node == 1)
    fault = {"operation": "create", "kind": "async_out_of_capacity", "count": 1}
    control(sandbox, "/_sandbox/faults", provider="gcp", **fault)
    lease = await gcp.reserve(Order("broker-gcp-s1", offer, 1))
    control(sandbox, "/_sandbox/clock", advance_s=60)
    found = await gcp.find_lease(lease.reference, lease.region)
    assert found.state is LeaseState.FAILED
    assert found.detail.startswith("ZONE_RESOURCE_POOL_EXHAUSTED")


async def test_a_price_set_in_the_market_is_the_price_of_the_node(gcp: Gcp, sandbox: str) -> None:
    wish = {"sku": "a3-highgpu-8g", "region": "us-east4", "tier": "on_demand", "price_usd": "80"}
    control(sandbox, "/_sandbox/market", provider="gcp", **wish)
    offers = {o.offer_id: o for o in (await gcp.list_offers(market_now(sandbox))).offers}
    assert offers["gcp/on_demand/us-east4-a/a3-highgpu-8g"].price_usd_per_node_hour == 80
    assert "gcp/on_demand/us-east4-a/a3-highgpu-1g" not in offers


async def test_a_flex_start_machine_waits_and_is_granted_what_begins(gcp: Gcp, sandbox: str) -> None:
    offers = {offer.offer_id: offer for offer in (await gcp.list_offers(market_now(sandbox))).offers}
    offer = offers["gcp/flex/us-east4-b/a4-highgpu-8g"]
    terms = offer.window
    assert terms is not None
    assert (offer.tier, terms.waits, terms.longest_wait_hours) == (Tier.WINDOW, True, 2.0)
    assert (terms.node_counts, gcp.nodes_per_order(offer)) == ((1,), 1)
    assert "assumed" in terms.wait_source
    start = market_now(sandbox) + timedelta(hours=2)
    order = Order("broker-gcp-flex", offer, 1, Window(start, start + timedelta(hours=10)), wait_s=7200)
    lease = await gcp.reserve(order)
    assert (lease.state, lease.window) == (LeaseState.PROVISIONING, None)
    assert (await gcp.reserve(order)).reference == lease.reference
    assert (await gcp.find_lease(lease.reference, lease.region)).detail == "FLEX_START PENDING"
    control(sandbox, "/_sandbox/clock", advance_s=7100)
    begun = await gcp.find_lease(lease.reference, lease.region)
    assert begun.state is LeaseState.ACTIVE
    assert begun.window is not None
    assert begun.window.duration == timedelta(hours=10)
    assert begun.window.start < start
    await gcp.release(begun)
    assert float(ledger(sandbox, "broker-gcp-flex")["billed_usd"]) > 0
