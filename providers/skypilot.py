"""SkyPilot's hosted catalogue (v8): list prices of many clouds, one CSV file a cloud; read only.

Listed: USD per instance and hour, on demand (``Price``) and spot (``SpotPrice``); an empty cell is not sold.
Columns differ by cloud and go by name; counts may be written ``8.0``; ``GpuInfo`` is a Python literal, in
the file of Hyperstack with a ``null`` in it, whose ``MemoryInfo`` is one GPU's (``TotalGpuMemoryInMiB`` is
not always the total; the file of Shadeform writes GB in it); AWS zones are zone *ids*; Google's machines and
GPUs are rows of their own, whose prices add up. Not said: stock, age, the network, and mostly the GPU's
form: a type is read by ``config/providers/skypilot.toml``, by the cloud's own configuration or by its name.

Environment: ``BROKER_SKYPILOT_CLOUDS`` (comma-separated), ``BROKER_SKYPILOT_MIRROR_URL`` (asked when the
first host refuses because of too many calls; empty: never). ``BROKER_SKYPILOT_BASE_URL`` takes the place
of both hosts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from broker.domain.basics.errors import RateLimited
from broker.domain.market.offer import OfferBatch, RejectedRow, Tier
from broker.provider_facts import load_provider_facts
from providers.hosted_list import (
    ANYWHERE,
    GB_PER_MIB,
    HOSTED_EVERY_S,
    FileMissing,
    HostedList,
    Listed,
    classify,
    number,
    read_csv,
    size,
    whole,
)
from providers.http import HttpFactory, HttpPolicy, Operation, Reply
from providers.payload import RowRejected, gb_of_gib
from providers.spec import Capability, NamedPayload, ProviderSettings, ProviderSpec

NAME = "skypilot"
BASE_URL = "https://raw.githubusercontent.com"
MIRROR_URL = "https://skypilot-catalog.s3.us-east-1.amazonaws.com"
PATH = "/skypilot-org/skypilot-catalog/master/catalogs/v8/{cloud}/vms.csv"
SOURCE = f"GET {PATH}"
MIRROR_PATH = "/catalogs/v8/{cloud}/vms.csv"
CLOUDS = "aws,azure,gcp,oci,lambda,nebius,verda,hyperstack,cudo"
POLICY = HttpPolicy(concurrency=4, max_bytes=64 * 1024 * 1024)
COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
LONGEST_GPU_INFO = 1000
LEAST_MIB = 1024
"""The smallest ``SizeInMiB`` that counts MiB: no card on sale has less than 1 GiB, so smaller numbers count
GB."""
_PRICES = ((Tier.ON_DEMAND, "Price"), (Tier.SPOT, "SpotPrice"))
_NULL = re.compile(r"(?<=: )null(?=[,}])")
_CLOUD = re.compile(r"[a-z0-9_-]{1,40}")

_Row = Mapping[str, str]
_Place = tuple[str, int, str]


def parse_offers(files: Mapping[str, bytes], observed_at: datetime) -> OfferBatch:
    """Offers of ``vms.csv``, by the catalogue's name of the cloud."""
    listed = HostedList(NAME, SOURCE)
    for cloud, body in files.items():
        _read(listed, cloud, body, observed_at)
    return listed.batch()


def _read(listed: HostedList, cloud: str, body: bytes, observed_at: datetime) -> None:
    search = load_provider_facts(NAME).search
    seller: str = search.get("sellers", {}).get(cloud, cloud)
    parts: Mapping[str, str] = search.get("parts", {}).get(cloud, {})
    rows = list(read_csv(NAME, f"{cloud}/vms.csv", body, COLUMNS))
    cards = _cards(rows) if parts else {}
    for row in rows:
        name = f"{seller} {row.get('InstanceType') or row.get('AcceleratorName', '')}"[:120].strip()
        try:
            if not row:
                raise RowRejected("the row and the header differ in length")
            if row["InstanceType"].strip() in parts:
                row = _with_cards(row, parts[row["InstanceType"].strip()], listed, seller, cards)
            elif parts and row["AcceleratorName"] in parts.values() and not row["InstanceType"].strip():
                continue
            for found in _prices_of(row, seller):
                listed.add(found, observed_at)
        except _NoGpu:
            listed.reject(f"{cloud} vms.csv", "no GPU in the row")
        except RowRejected as error:
            listed.reject(name, str(error))


class _NoGpu(RowRejected):
    """A machine without a GPU; a file has thousands of them."""


def _prices_of(row: _Row, seller: str) -> Iterator[Listed]:
    """The prices of a row, on demand and spot."""
    name = row["InstanceType"].strip()
    if not row["AcceleratorName"].strip():
        raise _NoGpu("no GPU in the row")
    if not name:
        raise RowRejected("the GPU has no matching machine")
    prices = [(tier, row[column]) for tier, column in _PRICES if row[column].strip()]
    if not prices:
        raise RowRejected("no price")
    for tier, price in prices:
        yield Listed(
            seller=seller,
            instance_type=name,
            region=row["Region"].strip() or ANYWHERE,
            zone=row.get("AvailabilityZone", "").strip() or None,
            tier=tier,
            price=price,
            gpu=row["AcceleratorName"].strip(),
            gpus=whole(row["AcceleratorCount"], "AcceleratorCount"),
            gpu_memory_gb=_gpu_memory_gb(row.get("GpuInfo", "")),
            vcpus=size(row.get("vCPUs", ""), "vCPUs"),
            memory_gb=gb_of_gib(size(row.get("MemoryGiB", ""), "MemoryGiB")),
        )


def _cards(rows: Sequence[_Row]) -> dict[_Place, _Row]:
    """Rows of GPUs without a machine, by word, count and zone."""
    found: dict[_Place, _Row] = {}
    for row in rows:
        if row and not row["InstanceType"].strip():
            with suppress(RowRejected):
                count = whole(row["AcceleratorCount"], "AcceleratorCount")
                found.setdefault((row["AcceleratorName"], count, row.get("AvailabilityZone", "")), row)
    return found


def _with_cards(row: _Row, word: str, listed: HostedList, seller: str, cards: Mapping[_Place, _Row]) -> _Row:
    """The machine with its GPUs: a tier is sold where both parts have a price."""
    node = listed.node(seller, row["InstanceType"].strip())
    count = (node.gpus_per_node if node is not None else None) or 0
    card = cards.get((word, count, row.get("AvailabilityZone", "")))
    if card is None:
        raise RowRejected(f"its {word} have no price there")
    sums = {column: _sum(row[column], card[column]) for _, column in _PRICES}
    return {
        **row,
        **sums,
        "AcceleratorName": word,
        "AcceleratorCount": str(count),
        "GpuInfo": card.get("GpuInfo", ""),
    }


def _sum(machine: str, cards: str) -> str:
    """The sum of both prices; empty where one is missing or zero."""
    prices = [number(text, "price") for text in (machine, cards)]
    return str(sum(filter(None, prices))) if all(prices) else ""


@lru_cache(maxsize=4096)
def _gpu_memory_gb(text: str) -> float | None:
    """GB of one GPU in a ``GpuInfo``; None when it has none.

    It is parsed as a literal and never executed.
    """
    if not text.lstrip().startswith("{"):
        return None
    if len(text) > LONGEST_GPU_INFO:
        raise RowRejected(f"GpuInfo is too long ({len(text)} characters)")
    try:
        mib = ast.literal_eval(_NULL.sub("None", text))["Gpus"][0]["MemoryInfo"]["SizeInMiB"]
    except (ValueError, SyntaxError, TypeError, LookupError, RecursionError, MemoryError):
        raise RowRejected("GpuInfo is not readable") from None
    return _gb(mib)


def _gb(mib: Any) -> float | None:
    if isinstance(mib, bool) or not isinstance(mib, int | float) or not 0 <= mib < 1e9:
        raise RowRejected("GpuInfo has no memory size")
    return (float(mib) if mib < LEAST_MIB else float(mib) * GB_PER_MIB) or None


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded files, named ``<cloud>-vms.csv``."""
    return parse_offers({name.partition("-vms")[0]: body for name, body in payloads}, observed_at)


class SkyPilot:
    """Reads the files of the configured clouds."""

    provider = NAME

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        self._http = http_factory(NAME, settings.base_url, classify, settings.tuned(POLICY))
        self._clouds = tuple(_clouds(settings.options["clouds"]))
        mirror = settings.options["mirror_url"].rstrip("/")
        self._mirror = mirror if settings.base_url == BASE_URL or not mirror else settings.base_url

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Prices of every cloud; one without a file is reported as rejected."""
        listed = HostedList(NAME, SOURCE)
        missing: list[RejectedRow] = []
        for cloud in self._clouds:
            try:
                _read(listed, cloud, (await self._file(cloud)).body, observed_at)
            except FileMissing as error:
                missing.append(RejectedRow(f"{cloud} vms.csv", str(error).removeprefix(f"{NAME}: ")))
        batch = listed.batch()
        return OfferBatch(batch.offers, (*missing, *batch.rejected))

    async def _file(self, cloud: str) -> Reply:
        try:
            return await self._http.request("GET", PATH.format(cloud=cloud), operation=Operation.OFFERS)
        except RateLimited:
            if not self._mirror:
                raise
        url = self._mirror + MIRROR_PATH.format(cloud=cloud)
        return await self._http.request("GET", url, operation=Operation.OFFERS)


def _clouds(text: str) -> Iterator[str]:
    for word in text.split(","):
        cloud = word.strip()
        if cloud and not _CLOUD.fullmatch(cloud):
            raise ValueError(f"{cloud!r} is not a cloud of the catalogue")
        if cloud:
            yield cloud


SPEC = ProviderSpec(
    name=NAME,
    title="SkyPilot catalogue (price list)",
    base_url=BASE_URL,
    credentials={},
    options={"clouds": CLOUDS, "mirror_url": MIRROR_URL},
    capabilities=frozenset({Capability.OFFERS, Capability.SPOT}),
    idempotency=None,
    adapter=SkyPilot,
    build=SkyPilot,
    parse=parse,
    keyless=True,
    poll_every_s=HOSTED_EVERY_S,
    name_of_cloud=lambda cloud, _: f"{cloud}-vms.csv",
)
