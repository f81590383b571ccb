"""Price lists of others: what they may do to us, and how old they may look."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from broker.catalogue import load_gate_rules, load_gpus
from broker.domain.basics.errors import PayloadUnreadable, ProviderUnavailable, RateLimited
from broker.domain.market.offer import OfferBatch, Tier
from broker.domain.market.price_gate import Before, Doubt, gate_batch
from broker.provider_facts import load_provider_facts
from providers import gpuhunt, skypilot
from providers.hosted_list import HostedList
from providers.registry import SPECS, build_adapters, configured, sellers
from providers.spec import Feed
from tests.contract.exchanges import FIXTURES
from tests.fakes.market_control import fault, hasty

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LISTS = ("skypilot", "gpuhunt")
HEADER = ",".join(gpuhunt.COLUMNS)
ROW = "p5.48xlarge,us-east-1,55.04,8,H100,80.0,False"


def packed(text: str, name: str = "aws.csv") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, text)
    return out.getvalue()


def listed(version: str) -> Any:
    catalogue = gpuhunt.Catalogue("aws", version, packed(f"{HEADER}\n{ROW}\n"))
    (offer,) = gpuhunt.parse_offers([catalogue], NOW).offers
    return offer


@pytest.mark.parametrize(
    ("version", "seen"),
    [
        ("20260818-42", datetime(2026, 8, 18, 12, tzinfo=UTC)),
        ("20261121-1", NOW),
        ("20270101-1", NOW),
    ],
)
def test_an_offer_is_as_old_as_the_catalogue(version: str, seen: datetime) -> None:
    assert listed(version).observed_at == seen


def test_an_old_catalogue_is_doubted_for_its_age() -> None:
    offers = (listed("20260818-42"), listed("20261120-1"))
    batches = [OfferBatch((offer,)) for offer in offers]
    old, young = (gate_batch(batch, load_gate_rules(), Before(), NOW) for batch in batches)
    assert [entry.doubt for entry in old.quarantine] == [Doubt.AGE]
    assert young.batch.offers


@pytest.mark.parametrize("version", ["", "latest", "20261399-1", "20261121", "../20261121-1"])
def test_a_version_without_a_date_is_unreadable(version: str) -> None:
    with pytest.raises(PayloadUnreadable, match="has no date"):
        gpuhunt.collected_at(version, NOW)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"PK\x03\x04 and nothing",
        packed("x", "gcp.csv"),
        packed("a,b\n1,2\n"),
        packed(HEADER + "\n" + " " * 5_000_000),
        packed(f"{HEADER}\n{ROW}\n")[:-30],
    ],
    ids=["empty", "cut", "another cloud's", "other columns", "far larger unpacked", "no directory"],
)
def test_what_is_no_catalogue_is_unreadable(raw: bytes) -> None:
    with pytest.raises(PayloadUnreadable):
        gpuhunt.parse_offers([gpuhunt.Catalogue("aws", "20261121-1", raw)], NOW)


def test_the_packed_fixtures_are_the_plain_ones() -> None:
    folder = FIXTURES / "gpuhunt"
    for plain in sorted((folder / "csv").iterdir()):
        cloud = plain.stem
        catalogue = gpuhunt.Catalogue(cloud, "", (folder / f"{cloud}-20261121-42.zip").read_bytes())
        assert gpuhunt.unpacked(catalogue) == plain.read_bytes()


@pytest.mark.parametrize(
    "info",
    [
        "{'Gpus': __import__('os').getcwd()}",
        "{'Gpus': [{'MemoryInfo': {'SizeInMiB': " + "9" * 900 + "}}]}",
        "{'Gpus': [{'MemoryInfo': {'SizeInMiB': True}}]}",
        "{" * 300,
        "{'Gpus': []}",
        "{" + "'a': 1, " * 1000 + "}",
    ],
)
def test_gpu_info_is_read_and_never_run(info: str) -> None:
    quoted = info.replace('"', '""')
    columns = ",".join((*skypilot.COLUMNS, "GpuInfo"))
    body = f'{columns}\np5.48xlarge,H100,8,1,,us-east-1,"{quoted}"\n'
    batch = skypilot.parse_offers({"aws": body.encode()}, NOW)
    assert not batch.offers
    assert all("GpuInfo" in row.reason for row in batch.rejected)


def test_known_types_are_of_known_gpus_and_sellers_have_tables() -> None:
    for name in LISTS:
        facts = load_provider_facts(name)
        assert {node.gpu for node in facts.nodes.values()} <= set(load_gpus())
        for seller in facts.search["sellers_tables"]:
            assert load_provider_facts(seller).nodes
    listed_types = HostedList("skypilot", "test")
    for kind in load_provider_facts("skypilot").search["parts"]["gcp"]:
        node = listed_types.node("gcp", kind)
        assert node is not None
        assert node.gpus_per_node


@pytest.fixture
async def feeds(sandbox: str) -> AsyncIterator[dict[str, Feed]]:
    found = {name: one for name, one in configured({}, sandbox).items() if name in LISTS}
    built = dict(build_adapters(found, hasty))
    yield built
    for feed in built.values():
        await feed.aclose()


@pytest.mark.parametrize("name", LISTS)
async def test_a_list_sells_nothing_itself_and_names_its_sellers(feeds: dict[str, Feed], name: str) -> None:
    batch = await feeds[name].list_offers(datetime.now(UTC))
    assert len(batch.offers) > 500
    assert {offer.seller for offer in batch.offers} >= {"aws", "azure", "gcp", "oci", "lambda", "nebius"}
    assert {offer.tier for offer in batch.offers} == {Tier.ON_DEMAND, Tier.SPOT}
    assert all(datetime.now(UTC) - offer.observed_at < timedelta(days=1) for offer in batch.offers)
    assert any("its form factor (SXM, PCIe) is not stated" in row.reason for row in batch.rejected)
    assert sellers(feeds) == {}
    assert SPECS[name].idempotency is None


async def test_the_machine_and_its_gpus_add_up_to_the_recorded_price(feeds: dict[str, Feed]) -> None:
    offers = {offer.offer_id: offer for offer in (await feeds["skypilot"].list_offers(NOW)).offers}
    found = offers["skypilot/gcp/us-east5-a/a2-ultragpu-8g/on_demand"]
    assert str(found.price_usd_per_node_hour) == "44.19056"


async def test_the_mirror_answers_when_the_first_host_has_enough(
    sandbox: str, feeds: dict[str, Feed]
) -> None:
    whole = await feeds["skypilot"].list_offers(NOW)
    fault(sandbox, provider="skypilot", operation="list", kind="rate_limited", count=3)
    assert (await feeds["skypilot"].list_offers(NOW)).offers == whole.offers


@pytest.mark.parametrize("name", LISTS)
async def test_a_feed_that_cannot_be_read_says_why(sandbox: str, feeds: dict[str, Feed], name: str) -> None:
    refusals = 6 if name == "skypilot" else 3
    for kind, count, error in (
        ("http_500", 3, ProviderUnavailable),
        ("rate_limited", refusals, RateLimited),
    ):
        fault(sandbox, provider=name, operation="list", kind=kind, count=count)
        with pytest.raises(error):
            await feeds[name].list_offers(NOW)
    assert (await feeds[name].list_offers(NOW)).offers
