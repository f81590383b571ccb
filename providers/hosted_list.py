"""Common reader of the hosted price lists: CSV files with other sellers' prices by instance type.

Such a list names the GPU without its form factor ("H100"). A row becomes an offer in one of three cases:
the list's own configuration has (seller, instance type), the seller's configuration has the type, or the
GPU's word together with the form in the type's name ("H100", "gpu-h100-sxm") identifies one card. A row has
a price and no stock, and nothing can be ordered from it. Where a list writes what it does not know of a
seller (bids as prices, every region as the place), the list's configuration says so (``no_prices``,
``no_places``).
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation

from broker.catalogue import load_gpus
from broker.domain.basics.errors import PayloadUnreadable, ProviderError
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, RejectedRow, Tier
from broker.domain.market.sku import Sku
from broker.provider_facts import NodeFacts, infer_intra_node, load_provider_facts
from providers.gpu_words import form_words, is_memory_of, memory_of_slice
from providers.http import Reply, classify_by_status
from providers.payload import RowRejected, dearer, named_card, require_price, require_sold, second_row, slug

GB_PER_MIB = 2**20 / 1e9
ANYWHERE = "any"
"""The region of a row whose place is not known."""
HOSTED_EVERY_S = 3600.0
"""Hosted lists are built a few times a day (gpuhunt names the day; SkyPilot's client asks every 7 h)."""
_NUMBER = re.compile(r"-?\d{1,12}(\.\d{1,12})?([eE]-?\d{1,2})?")
_ZONE = re.compile(r"(.+\d)-[a-z]")


class FileMissing(PayloadUnreadable):
    """A cloud has no file."""


def classify(reply: Reply) -> ProviderError:
    """The typed error of a public file: the status decides, and S3 answers 403 for a missing file."""
    if reply.status in {403, 404}:
        return FileMissing(reply.provider, f"HTTP {reply.status}: there is no such file")
    return classify_by_status(reply)


@dataclass(frozen=True, slots=True)
class Listed:
    """One price of one instance type, as written.

    ``gpu_memory_gb``: of one GPU, where it is stated.
    """

    seller: str
    instance_type: str
    region: str
    zone: str | None
    tier: Tier
    price: str
    gpu: str
    gpus: int
    gpu_memory_gb: float | None = None
    vcpus: float | None = None
    memory_gb: float | None = None

    @property
    def name(self) -> str:
        """The name of a rejected row: the type, for all of its rows."""
        return f"{self.seller} {self.instance_type}"[:120]


class HostedList:
    """Collects the rows of one list (``provider``) into offers.

    Rejected rows are counted by type and reason.
    """

    def __init__(self, provider: str, source: str) -> None:
        self._provider, self._source = provider, source
        self._facts = load_provider_facts(provider)
        self._offers: dict[str, Offer] = {}
        self._rejected: Counter[tuple[str, str]] = Counter()

    def add(self, row: Listed, observed_at: datetime) -> None:
        """Adds an offer of ``row``, or the reason why there is none."""
        try:
            offer = self._offer(self._placed(row), observed_at)
            before = self._offers.get(offer.offer_id)
            kept, other = (offer, None) if before is None else dearer(before, offer)
            self._offers[offer.offer_id] = kept
            if other is not None:
                raise RowRejected(self._second(row, kept, other))
        except RowRejected as error:
            self.reject(row.name, str(error))

    def reject(self, name: str, reason: str) -> None:
        """Counts a row that cannot be sold."""
        self._rejected[name, reason] += 1

    def batch(self) -> OfferBatch:
        """The offers and rejected rows so far."""
        rejected = (
            RejectedRow(name if count == 1 else f"{name}: {count} rows", reason)
            for (name, reason), count in self._rejected.items()
        )
        return OfferBatch(tuple(self._offers.values()), tuple(rejected))

    def node(self, seller: str, instance_type: str) -> NodeFacts | None:
        """The node of an instance type, from this list's or its seller's own configuration."""
        key = f"{seller}/{instance_type}"
        spaceless = key.replace(" ", "_")
        for provider in (self._provider, *self._facts.search.get("tables", ())):
            nodes = load_provider_facts(provider).nodes
            found = nodes.get(key) or nodes.get(spaceless)
            if found is not None:
                return found
        if seller in self._facts.search.get("sellers_tables", ()):
            return load_provider_facts(seller).nodes.get(instance_type)
        return None

    def _placed(self, row: Listed) -> Listed:
        """``row`` without its place, where the list writes every region of the seller for every type."""
        if row.seller not in self._facts.search.get("no_places", {}):
            return row
        return replace(row, region=ANYWHERE, zone=None)

    def _second(self, row: Listed, kept: Offer, other: Offer) -> str:
        no_places: Mapping[str, str] = self._facts.search.get("no_places", {})
        is_same = kept.price_usd_per_node_hour == other.price_usd_per_node_hour
        return no_places[row.seller] if is_same and row.seller in no_places else second_row(kept, other)

    def _offer(self, row: Listed, observed_at: datetime) -> Offer:
        no_prices: Mapping[str, str] = self._facts.search.get("no_prices", {})
        if row.seller in no_prices:
            raise RowRejected(no_prices[row.seller])
        sku = self._sku(row)
        price = require_price(number(row.price, "price"))
        misfiled: Mapping[str, str] = self._facts.search.get("misfiled", {})
        key = f"{row.seller}/{row.instance_type}"
        if row.tier is Tier.ON_DEMAND and key in misfiled:
            raise RowRejected(misfiled[key])
        if self._has_own(row):
            require_sold(load_provider_facts(row.seller), row.instance_type, row.tier)
        place = row.zone or row.region
        return Offer(
            offer_id=f"{self._provider}/{row.seller}/{slug(place)}/{self._kind(row)}/{row.tier}",
            provider=self._provider,
            sku=sku,
            region=row.region,
            zone=row.zone,
            country=self._country(row),
            tier=row.tier,
            price_usd_per_node_hour=price,
            observed_at=observed_at,
            source=self._source,
            native=NativePrice(price, "USD", "instance-hour"),
            seller=row.seller,
            reference={"instance_type": row.instance_type},
        )

    def _kind(self, row: Listed) -> str:
        """The type as part of an id, with the number of GPUs where the type does not determine it."""
        node = self.node(row.seller, row.instance_type)
        is_fixed = node is not None and node.gpus_per_node is not None
        return slug(row.instance_type) if is_fixed else f"{row.gpus}x-{slug(row.instance_type)}"

    def _sku(self, row: Listed) -> Sku:
        node = self.node(row.seller, row.instance_type) or NodeFacts()
        gpu = load_gpus()[node.gpu or self._named_card(row)]
        count = node.gpus_per_node or row.gpus
        if row.gpus != count:
            raise RowRejected(f"{row.gpus} GPUs, the type has {count}")
        stated = row.gpu_memory_gb
        if stated is not None and not is_memory_of(stated, gpu.memory_gb):
            sliced = memory_of_slice(stated, [gpu.memory_gb])
            raise RowRejected(sliced or f"{stated:.4g} GB a GPU, {gpu.gpu} has {gpu.memory_gb:.4g}")
        return Sku(
            name=row.instance_type,
            gpu=gpu.gpu,
            gpus_per_node=count,
            gpu_memory_gb=gpu.memory_gb,
            vcpus=node.vcpus or row.vcpus,
            memory_gb=node.memory_gb or row.memory_gb,
            disk_gb=node.disk_gb,
            form=node.form,
            intra_node=node.intra_node or infer_intra_node(gpu.gpu, count),
            fabric=node.fabric,
        )

    def _named_card(self, row: Listed) -> str:
        """The card of an unconfigured type, by its word and the form factor in the type's name."""
        fractional = (
            load_provider_facts(row.seller).search.get("fractional", ()) if self._has_own(row) else ()
        )
        if row.instance_type in fractional:
            raise RowRejected("a fraction of a GPU")
        return named_card(f"{row.gpu} {form_words(row.instance_type)}".strip(), row.gpu_memory_gb)

    def _has_own(self, row: Listed) -> bool:
        """Whether the seller's own configuration can be used."""
        return row.seller in self._facts.search.get("sellers_tables", ())

    def _country(self, row: Listed) -> str | None:
        own = self._facts.country_of(f"{row.seller}/{row.region}")
        if own is None and row.seller in self._facts.search.get("sellers_tables", ()):
            return load_provider_facts(row.seller).country_of(row.region)
        return own


def read_csv(provider: str, name: str, body: bytes, needed: Sequence[str]) -> Iterator[Mapping[str, str]]:
    """The rows by column name; a row of another length is empty. PayloadUnreadable for other files."""
    reader = csv.reader(io.StringIO(body.decode("utf-8-sig", "replace"), newline=""))
    try:
        header = next(reader, [])
        missing = [column for column in needed if column not in header]
        if missing:
            raise PayloadUnreadable(provider, f"{name} lacks the columns {', '.join(missing)}")
        for cells in reader:
            if cells:
                yield dict(zip(header, cells, strict=True)) if len(cells) == len(header) else {}
    except csv.Error as error:
        raise PayloadUnreadable(provider, f"{name} is not CSV: {error}") from None


def number(text: str, what: str) -> Decimal | None:
    """A number as written, None for an empty cell; RowRejected otherwise."""
    if not text.strip():
        return None
    if _NUMBER.fullmatch(text.strip()):
        try:
            return Decimal(text.strip())
        except InvalidOperation:
            pass
    raise RowRejected(f"{what} {text[:40]!r} is not a number")


def whole(text: str, what: str) -> int:
    """A count, also when written ``8.0``; None for an empty cell, RowRejected for a fraction."""
    found = number(text, what) or Decimal(0)
    if found != int(found) or not 0 <= found <= 1024:
        raise RowRejected(f"{what} {text[:40]!r} is not a count")
    return int(found)


def size(text: str, what: str) -> float | None:
    """A number as a float."""
    found = number(text, what)
    return None if found is None else float(found)


def region_and_zone(place: str) -> tuple[str, str | None]:
    """Region and zone of a place: ``us-central1-a`` is a zone of ``us-central1``.

    Other places are regions.
    """
    found = _ZONE.fullmatch(place)
    return (found[1], place) if found else (place, None)
