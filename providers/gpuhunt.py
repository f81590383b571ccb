"""gpuhunt's hosted catalogue (v3): list prices of many clouds, a zipped CSV file a cloud; read only.

Listed: USD per instance and hour; spot is a row of its own (``True``); memory in GB and per GPU; a place is
a region, of Google a zone. A text file names the version, whose date is when its prices were collected: that
day's noon (UTC) is when offers were observed, so that old lists show as old. A flag may say that a row is no
single machine. Not said: stock, the GPU's form factor, the network; hence only types that the configuration
knows (``config/providers/gpuhunt.toml``).

Environment: ``BROKER_GPUHUNT_CLOUDS`` (comma-separated).
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.offer import OfferBatch, RejectedRow, Tier
from broker.provider_facts import load_provider_facts
from providers.hosted_list import (
    ANYWHERE,
    HOSTED_EVERY_S,
    FileMissing,
    HostedList,
    Listed,
    classify,
    read_csv,
    region_and_zone,
    size,
    whole,
)
from providers.http import HttpFactory, HttpPolicy, Operation
from providers.payload import RowRejected, gb_of_gib
from providers.spec import Capability, NamedPayload, ProviderSettings, ProviderSpec

NAME = "gpuhunt"
BASE_URL = "https://dstack-gpu-pricing.s3.eu-west-1.amazonaws.com"
VERSION_PATH = "/v3/{cloud}/version"
CATALOG_PATH = "/v3/{cloud}/{version}/catalog.zip"
CLOUDS = "aws,azure,gcp,oci,lambdalabs,nebius,runpod,verda"
POLICY = HttpPolicy(concurrency=4, max_bytes=16 * 1024 * 1024)
COLUMNS = ("instance_name", "location", "price", "gpu_count", "gpu_name", "gpu_memory", "spot")
MOST_CSV_BYTES = 128 * 1024 * 1024
MOST_RATIO = 200
"""The largest accepted ratio of a file to its compressed size; repetitive price lists reach about 50."""
_VERSION = re.compile(r"(?P<day>\d{8})-\d{1,9}")
_CLOUD = re.compile(r"[a-z0-9_-]{1,40}")
_RECORDED = re.compile(r"(?P<cloud>[a-z0-9_]+)(-(?P<version>\d{8}-\d+))?\.(?P<form>zip|csv)")
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    KeyError,
    EOFError,
    RuntimeError,
    ValueError,
    OverflowError,
    OSError,
)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """One cloud's packed file and the version it was fetched under."""

    cloud: str
    version: str
    packed: bytes


def parse_offers(catalogues: Sequence[Catalogue], observed_at: datetime) -> OfferBatch:
    """Offers of packed catalogues."""
    listed = HostedList(NAME, f"GET {CATALOG_PATH}")
    for catalogue in catalogues:
        seen_at = collected_at(catalogue.version, observed_at)
        _read(listed, catalogue.cloud, unpacked(catalogue), seen_at)
    return listed.batch()


def _read(listed: HostedList, cloud: str, body: bytes, seen_at: datetime) -> None:
    for row in read_csv(NAME, f"{cloud}.csv", body, COLUMNS):
        _add(listed, cloud, row, seen_at)


def collected_at(version: str, observed_at: datetime) -> datetime:
    """Noon of a version's day, at most ``observed_at``; PayloadUnreadable for a version without a date."""
    found = _VERSION.fullmatch(version)
    try:
        day = datetime.strptime(found["day"] if found else "", "%Y%m%d").replace(tzinfo=UTC).date()
    except ValueError:
        raise PayloadUnreadable(NAME, f"version {version[:40]!r} has no date") from None
    return min(observed_at, datetime.combine(day, time(12), UTC))


def unpacked(catalogue: Catalogue) -> bytes:
    """The CSV file in a compressed catalogue; PayloadUnreadable when it is too large or not a catalogue."""
    cloud, packed = catalogue.cloud, catalogue.packed
    most = min(MOST_CSV_BYTES, MOST_RATIO * max(1, len(packed)))
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive, archive.open(f"{cloud}.csv") as file:
            body = file.read(most + 1)
    except _BROKEN as error:
        kind = type(error).__name__
        raise PayloadUnreadable(NAME, f"the catalogue of {cloud} cannot be decompressed ({kind})") from None
    if len(body) > most:
        raise PayloadUnreadable(NAME, f"the catalogue of {cloud} is too large when decompressed")
    return body


def _add(listed: HostedList, cloud: str, row: Mapping[str, str], seen_at: datetime) -> None:
    seller = load_provider_facts(NAME).search.get("sellers", {}).get(cloud, cloud)
    name = row.get("instance_name", "").strip()
    try:
        if not row:
            raise RowRejected("the row and the header differ in length")
        gpus = whole(row["gpu_count"], "gpu_count")
        if gpus == 0:
            listed.reject(f"{cloud}.csv", "no GPU")
            return
        found = _listed(seller, name, gpus, row)
    except RowRejected as error:
        listed.reject(f"{seller} {name}"[:120].strip(), str(error))
    else:
        listed.add(found, seen_at)


def _listed(seller: str, name: str, gpus: int, row: Mapping[str, str]) -> Listed:
    tiers = {"True": Tier.SPOT, "False": Tier.ON_DEMAND}
    if row["spot"] not in tiers:
        raise RowRejected(f"spot is {row['spot'][:20]!r}, neither True nor False")
    flags: Mapping[str, str] = load_provider_facts(NAME).search.get("flags", {})
    for flag in row.get("flags", "").split():
        if flag in flags:
            raise RowRejected(flags[flag])
    region, zone = region_and_zone(row["location"].strip() or ANYWHERE)
    return Listed(
        seller=seller,
        instance_type=name,
        region=region,
        zone=zone,
        tier=tiers[row["spot"]],
        price=row["price"],
        gpu=row["gpu_name"].strip(),
        gpus=gpus,
        gpu_memory_gb=size(row["gpu_memory"], "gpu_memory"),
        vcpus=size(row.get("cpu", ""), "cpu"),
        memory_gb=gb_of_gib(size(row.get("memory", ""), "memory")),
    )


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Offers of recorded catalogues, named ``<cloud>-<version>`` or ``<cloud>`` (.zip or .csv)."""
    listed = HostedList(NAME, f"GET {CATALOG_PATH}")
    for name, body in payloads:
        match = _RECORDED.fullmatch(name)
        if match is None:
            raise PayloadUnreadable(NAME, f"{name} is not a catalogue")
        cloud, version = match["cloud"], match["version"] or ""
        seen_at = collected_at(version, observed_at) if version else observed_at
        plain = body if match["form"] == "csv" else unpacked(Catalogue(cloud, version, body))
        _read(listed, cloud, plain, seen_at)
    return listed.batch()


def name_of_cloud(cloud: str, name: str) -> str:
    """The file name that ``parse`` expects for the catalogue of ``cloud`` in the file ``name``."""
    version = re.search(r"\d{8}-\d+", name)
    stem = f"{cloud}-{version[0]}" if version else cloud
    return f"{stem}{'.csv' if name.endswith('.csv') else '.zip'}"


class GpuHunt:
    """Reads the catalogues of the configured clouds; an unchanged one is not downloaded again."""

    provider = NAME

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        self._http = http_factory(NAME, settings.base_url, classify, settings.tuned(POLICY))
        words = [word.strip() for word in settings.options["clouds"].split(",")]
        self._clouds = tuple(word for word in words if _CLOUD.fullmatch(word))
        self._known: dict[str, Catalogue] = {}

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Prices of every cloud's newest version; a cloud without files is a rejected row."""
        found: list[Catalogue] = []
        missing: list[RejectedRow] = []
        for cloud in self._clouds:
            try:
                found.append(await self._newest(cloud))
            except FileMissing as error:
                missing.append(RejectedRow(f"{cloud} catalogue", str(error).removeprefix(f"{NAME}: ")))
        batch = parse_offers(found, observed_at)
        return OfferBatch(batch.offers, (*missing, *batch.rejected))

    async def _newest(self, cloud: str) -> Catalogue:
        reply = await self._http.request(
            "GET", VERSION_PATH.format(cloud=cloud), operation=Operation.OFFERS, max_bytes=1000
        )
        version = reply.text.strip()
        if not _VERSION.fullmatch(version):
            raise PayloadUnreadable(NAME, f"version {version[:40]!r} of {cloud} has no date")
        known = self._known.get(cloud)
        if known is None or known.version != version:
            path = CATALOG_PATH.format(cloud=cloud, version=version)
            packed = await self._http.request("GET", path, operation=Operation.OFFERS)
            known = self._known[cloud] = Catalogue(cloud, version, packed.body)
        return known


SPEC = ProviderSpec(
    name=NAME,
    title="gpuhunt catalogue (price list)",
    base_url=BASE_URL,
    credentials={},
    options={"clouds": CLOUDS},
    capabilities=frozenset({Capability.OFFERS, Capability.SPOT}),
    idempotency=None,
    adapter=GpuHunt,
    build=GpuHunt,
    parse=parse,
    keyless=True,
    poll_every_s=HOSTED_EVERY_S,
    name_of_cloud=name_of_cloud,
)
