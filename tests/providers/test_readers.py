"""SkyPilot's and gpuhunt's own readers and ours see the same in the same files.

Both run in environments of their own (``tests/peers_env.py``). A row that a reader sees and we do not sell
must be among the rejected; what we sell must be in what it read, at its price.
"""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.catalogue import load_gpus
from broker.domain.market.offer import Offer, OfferBatch, Tier
from providers import gpuhunt, skypilot
from providers.gpu_words import MEMORY_TOLERANCE
from providers.hosted_list import ANYWHERE
from providers.registry import build_adapters, configured
from tests.contract.exchanges import FIXTURES, OBSERVED_AT, payloads
from tests.peers_env import run

GIB = 2**30 / 1e9
CLOUDS = ("aws", "azure", "gcp", "oci", "lambda", "nebius", "verda", "cudo")
"""Without Hyperstack, of which SkyPilot has no cloud, and Mithril, whose prices there are none."""
HUNTED = tuple(gpuhunt.CLOUDS.split(","))

pytestmark = [pytest.mark.xdist_group("peers"), pytest.mark.timeout(420)]


class Place(NamedTuple):
    """One price: type and place as a list writes them."""

    seller: str
    instance_type: str
    place: str
    tier: Tier


@dataclass(frozen=True)
class Read:
    """What a peer read of it. ``memory_gb``: of one GPU, None where the peer could not tell."""

    price: float
    gpu: str
    gpus: float
    memory_gb: float | None


Prices = dict[Place, list[Read]]


def of_skypilot(found: dict[str, Any]) -> Prices:
    seen: Prices = defaultdict(list)
    for cloud, answer in found.items():
        memory = {(row[0], row[1], row[2]): row[3] for row in answer["listed"]}
        for row in answer["rows"]:
            kind, gpu, count = row["InstanceType"], row["AcceleratorName"], row["AcceleratorCount"]
            if kind is None or gpu is None:
                continue
            gib = memory.get((kind, gpu, count))
            where = row.get("AvailabilityZone") or row["Region"]
            for tier, price in ((Tier.ON_DEMAND, row["Price"]), (Tier.SPOT, row["SpotPrice"])):
                if price is not None:
                    read = Read(as_price(price), gpu, count, gib * GIB if gib else None)
                    seen[Place(cloud, kind, where, tier)].append(read)
        for kind, _, zone, gpu, count, usual, spot in answer.get("sums", ()):
            for tier, price in ((Tier.ON_DEMAND, usual), (Tier.SPOT, spot)):
                if price is not None:
                    seen[Place(cloud, kind, zone, tier)].append(Read(price, gpu, count, None))
    return seen


def as_price(price: float | str) -> float:
    """A word in the column of prices is no price, and nobody's number."""
    return float("nan") if isinstance(price, str) and not re.match(r"[\d.]+$", price) else float(price)


def of_gpuhunt(found: list[list[Any]]) -> Prices:
    seen: Prices = defaultdict(list)
    for cloud, kind, place, spot, price, gpu, gpus, memory in found:
        if gpus:
            seller = "lambda" if cloud == "lambdalabs" else cloud
            key = Place(seller, kind, place, Tier.SPOT if spot else Tier.ON_DEMAND)
            seen[key].append(Read(price, gpu, gpus, memory))
    return seen


def place(offer: Offer) -> Place:
    kind = str(offer.reference["instance_type"])
    return Place(offer.seller or "", kind, offer.zone or offer.region, offer.tier)


def places_of(offer: Offer, seen: Prices) -> list[Place]:
    """The peer's places of an offer; all of a type where the list has it everywhere, at one price."""
    own = place(offer)
    if offer.region != ANYWHERE:
        return [own]
    return [key for key in seen if key._replace(place=own.place) == own]


def reads_of(offer: Offer, seen: Prices) -> list[Read]:
    return [read for key in places_of(offer, seen) for read in seen[key]]


def family(word: str) -> str:
    """``A100-80GB`` and ``A100-SXM-80GB`` are A100s; ``RTXPRO6000`` and ``RTX-PRO-6000-…`` the same card."""
    plain = word.upper().replace("RTX-PRO", "RTXPRO").replace("RTXPRO-", "RTXPRO").replace("RTX-", "")
    return plain.replace("RTX", "", 1).split("-")[0]


def compare(batch: OfferBatch, seen: Prices) -> None:
    """Every offer at the peer's price, GPU, count and memory; every price of the peer sold or rejected."""
    for offer in batch.offers:
        reads = reads_of(offer, seen)
        price = float(offer.price_usd_per_node_hour)
        same = [read for read in reads if read.price == pytest.approx(price, rel=1e-12)]
        assert same, f"{offer.offer_id} at {price}, the peer read {reads}"
        read = same[0]
        assert read.gpus == offer.sku.gpus_per_node, offer.offer_id
        assert family(read.gpu) == family(offer.sku.gpu), offer.offer_id
        if read.memory_gb is not None:
            assert read.memory_gb == pytest.approx(offer.sku.gpu_memory_gb, rel=MEMORY_TOLERANCE)
    sold = {key for offer in batch.offers for key in places_of(offer, seen)}
    rejected = {row.row.split(":")[0] for row in batch.rejected}
    unsold = {key for key in seen if key not in sold}
    assert {f"{key.seller} {key.instance_type}" for key in unsold} <= rejected


def zero_priced(seen: Prices) -> list[str]:
    return sorted(key.instance_type for key, reads in seen.items() if any(not r.price for r in reads))


def read_by_skypilot(cache: Path, *arguments: str) -> Prices:
    environ = {"HOME": str(cache), "SKY_RUNTIME_DIR": str(cache)}
    return of_skypilot(run("skypilot", "read_skypilot.py", *arguments, environ=environ))


def read_by_gpuhunt(clouds: Iterable[str], **environ: str) -> Prices:
    return of_gpuhunt(run("gpuhunt", "read_gpuhunt.py", *clouds, environ=environ))


async def poll(sandbox: str, name: str) -> OfferBatch:
    (feed,) = build_adapters({name: configured({}, sandbox)[name]}).values()
    try:
        return await feed.list_offers(datetime.now(UTC))
    finally:
        await feed.aclose()


def test_skypilot_reads_the_recorded_files_as_we_do(tmp_path: Path) -> None:
    files = {path.name.partition("-vms")[0]: path for path in (FIXTURES / "skypilot").glob("*-vms.csv")}
    for cloud, path in files.items():
        folder = tmp_path / ".sky" / "catalogs" / "v8" / cloud
        folder.mkdir(parents=True)
        shutil.copyfile(path, folder / "vms.csv")
    seen = read_by_skypilot(tmp_path, *sorted(files))
    batch = skypilot.parse(payloads("skypilot"), OBSERVED_AT)
    compare(batch, seen)
    assert zero_priced(seen) == ["Standard_ND96isr_H100_v5"]


async def test_skypilot_reads_the_sandbox_s_files_as_we_do(sandbox: str, tmp_path: Path) -> None:
    seen = read_by_skypilot(tmp_path, f"{sandbox}/skypilot", *CLOUDS)
    batch = await poll(sandbox, "skypilot")
    offers = tuple(offer for offer in batch.offers if offer.seller in CLOUDS)
    compare(OfferBatch(offers, batch.rejected), seen)
    assert {offer.seller for offer in offers} == {key.seller for key in seen}
    assert len(offers) > 500


def test_gpuhunt_reads_the_recorded_files_as_we_do() -> None:
    folder = FIXTURES / "gpuhunt" / "csv"
    seen = read_by_gpuhunt(sorted(path.stem for path in folder.iterdir()), GPUHUNT_CATALOG_DIR=str(folder))
    batch = gpuhunt.parse(payloads("gpuhunt"), OBSERVED_AT)
    compare(batch, seen)
    assert zero_priced(seen) == ["p6-b200.48xlarge"]


async def test_gpuhunt_reads_the_sandbox_s_files_as_we_do(sandbox: str) -> None:
    seen = read_by_gpuhunt(HUNTED, GPUHUNT_CATALOG_URL=f"{sandbox}/gpuhunt/v3")
    batch = await poll(sandbox, "gpuhunt")
    compare(batch, seen)
    assert {offer.seller for offer in batch.offers} == {key.seller for key in seen}
    assert len(batch.offers) > 500


def test_every_gpu_of_ours_has_a_family() -> None:
    assert all(family(name) for name in load_gpus())
