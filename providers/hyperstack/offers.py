"""Hyperstack's price book, stocks and flavors, joined (facts of the wire: the package's docstring)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field, ValidationError

from broker.catalogue import load_gpus
from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, RejectedRow, Stock, StockLevel, Tier
from broker.domain.market.sku import Form, IntraNode, LinkKind, Sku
from broker.provider_facts import ProviderFacts, infer_intra_node, load_provider_facts
from providers.payload import (
    Amount,
    GpuCount,
    Name,
    PayloadModel,
    RowRejected,
    as_dict,
    as_list,
    as_payload,
    canonical_gpu,
    collect,
    decode_json,
    first_problem,
    nominal_memory_gb,
    require_gpus,
    require_price,
    slug,
)
from providers.schema import Rows
from providers.spec import NamedPayload

NAME = "hyperstack"

Machines = Annotated[int, Field(ge=0, le=1_000_000)]
_SUFFIX = re.compile(r"-(nvlink|spot)$", re.IGNORECASE)


class _Price(PayloadModel):
    """An entry of the price book; ``value`` is what is charged, after any discount."""

    name: Name
    value: Decimal | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None


class _Model(PayloadModel):
    model: Name
    configurations: Mapping[str, Machines | None] | None = None


class _RegionStock(PayloadModel):
    region: Name
    models: tuple[_Model, ...] | None = None


class _Flavor(PayloadModel):
    name: Name
    region_name: Name
    gpu: str | None = None
    gpu_count: GpuCount = 0
    cpu: Amount | None = None
    ram: Amount | None = None
    disk: Amount | None = None
    ephemeral: Amount | None = None
    stock_available: bool | None = None

    @property
    def is_spot(self) -> bool:
        return any(name.lower().endswith("spot") for name in (self.name, self.gpu or ""))

    @property
    def is_bridged(self) -> bool:
        return any("nvlink" in name.lower() for name in (self.name, self.gpu or ""))


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables by which a flavor is looked up: prices by GPU word, machines by (region, GPU word, size)."""

    prices: Mapping[str, Decimal | None]
    stocks: Mapping[tuple[str, str, str], int]
    facts: ProviderFacts
    observed_at: datetime


def parse_offers(pricebook: bytes, stocks: bytes, flavors: bytes, observed_at: datetime) -> OfferBatch:
    """Offers of ``/v1/core/flavors``, with prices of ``/v1/pricebook`` and stock of ``/v1/core/stocks``."""
    prices, unread = _prices(pricebook, observed_at)
    machines = _stocks(stocks)
    tables = _Tables(prices, machines, load_provider_facts(NAME), observed_at)
    groups = as_list(NAME, as_dict(NAME, decode_json(NAME, flavors), "flavors").get("data"), "data")
    rows = [row for group in groups for row in _flavors_of(group)]
    batch = collect(((_row_name(row), row) for row in rows), lambda row: (_offer(row, tables),))
    return OfferBatch(batch.offers, (*unread, *batch.rejected))


def _flavors_of(group: Any) -> list[Any]:
    if not isinstance(group, dict) or not isinstance(group.get("flavors"), list):
        return [group]
    return list(group["flavors"])


def _row_name(row: Any) -> str:
    if not isinstance(row, dict):
        return "row that is no object"
    return f"{row.get('name', 'flavor without name')} {row.get('region_name', '')}".strip()


def _prices(pricebook: bytes, at: datetime) -> tuple[dict[str, Decimal | None], list[RejectedRow]]:
    """For each name, the newest price in force (of equally new ones the highest), and the unreadable
    entries."""
    found: dict[str, tuple[datetime, Decimal | None]] = {}
    unread = []
    for row in as_list(NAME, decode_json(NAME, pricebook), "the price book"):
        try:
            price = _Price.model_validate(row)
        except ValidationError as error:
            name = str(row.get("name", "")) if isinstance(row, dict) else ""
            unread.append(RejectedRow(f"price book {name[:80]}".strip(), first_problem(error)))
            continue
        start = _utc(price.start_time) or datetime.min.replace(tzinfo=UTC)
        end = _utc(price.end_time)
        if start > at or (end is not None and end <= at):
            continue
        key = price.name.lower()
        entry = (start, price.value)
        found[key] = max(found.get(key, entry), entry, key=lambda e: (e[0], e[1] or Decimal(0)))
    return {name: value for name, (_, value) in found.items()}, unread


def _utc(instant: datetime | None) -> datetime | None:
    """The instant in UTC; the price book's times have no zone."""
    if instant is None or instant.tzinfo is not None:
        return instant
    return instant.replace(tzinfo=UTC)


def _stocks(payload: bytes) -> dict[tuple[str, str, str], int]:
    rows = as_list(NAME, as_dict(NAME, decode_json(NAME, payload), "stocks").get("stocks"), "stocks")
    found: dict[tuple[str, str, str], int] = {}
    for row in rows:
        place = as_payload(NAME, row, _RegionStock)
        for model in place.models or ():
            for size, machines in (model.configurations or {}).items():
                found[(place.region, model.model.lower(), size)] = machines or 0
    return found


def _offer(row: Any, tables: _Tables) -> Offer:
    flavor = _Flavor.model_validate(row)
    sku = _sku(flavor, tables.facts)
    word = (flavor.gpu or "").lower()
    if word not in tables.prices:
        raise RowRejected(f"no price of {(flavor.gpu or '')[:80]!r} in the price book")
    per_gpu = require_price(tables.prices[word], "value in the price book")
    tier = Tier.SPOT if flavor.is_spot else Tier.ON_DEMAND
    return Offer(
        offer_id=f"{NAME}/{slug(flavor.region_name)}/{slug(flavor.name)}/{tier}",
        provider=NAME,
        sku=sku,
        region=flavor.region_name,
        country=tables.facts.country_of(flavor.region_name),
        tier=tier,
        price_usd_per_node_hour=per_gpu * sku.gpus_per_node,
        observed_at=tables.observed_at,
        source="GET /v1/core/flavors, /v1/core/stocks, /v1/pricebook",
        native=NativePrice(per_gpu, "USD", "GPU-hour"),
        billing_increment_s=tables.facts.billed.increment_s,
        stock=_stock(flavor, tables),
        compliance=tables.facts.compliance,
        reference={"flavor_name": flavor.name, "region": flavor.region_name},
    )


def _stock(flavor: _Flavor, tables: _Tables) -> Stock:
    """How many machines of this size fit now; if stocks do not know the size, the flavor's own word."""
    word = (flavor.gpu or "").lower()
    machines = tables.stocks.get((flavor.region_name, word, f"{flavor.gpu_count}x"))
    if machines == 0 or flavor.stock_available is False:
        raise RowRejected("sold out")
    is_said = machines is not None or flavor.stock_available is not None
    return Stock(StockLevel.SOME if is_said else StockLevel.UNKNOWN, machines)


def _sku(flavor: _Flavor, facts: ProviderFacts) -> Sku:
    count = require_gpus(flavor.gpu_count)
    word = flavor.gpu or ""
    stated = re.search(r"-(\d{1,4})G\b", word)
    while _SUFFIX.search(word):
        word = _SUFFIX.sub("", word)
    gpu = canonical_gpu(facts, word, float(stated.group(1)) if stated else None)
    disks = [disk for disk in (flavor.disk, flavor.ephemeral) if disk is not None]
    return Sku(
        name=flavor.name,
        gpu=gpu,
        gpus_per_node=count,
        gpu_memory_gb=nominal_memory_gb(gpu),
        vcpus=flavor.cpu,
        memory_gb=flavor.ram,
        disk_gb=sum(disks) if disks else None,
        form=Form.VM,
        intra_node=_intra_node(gpu, count, flavor.is_bridged),
    )


def _intra_node(gpu: str, count: int, is_bridged: bool) -> IntraNode | None:
    """The link that the GPU's form implies.

    Bridges join pairs of PCIe cards, so more than two cards communicate at PCIe speed.
    """
    implied, spec = infer_intra_node(gpu, count), load_gpus()[gpu]
    per_dir = spec.scaleup_gbyte_s_per_dir
    if implied is None or implied.kind is not LinkKind.PCIE or not is_bridged or count != 2 or not per_dir:
        return implied
    return IntraNode(LinkKind.NVLINK, 2 * per_dir)


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Offers of recorded answers, which are distinguished by their form.

    Without stocks, a flavor's own word tells whether it is available.
    """
    found = {_list_of(name, body): body for name, body in payloads}
    if not {"price book", "flavors"} <= set(found):
        raise PayloadUnreadable(NAME, "a price book and flavors are needed")
    stocks = found.get("stocks", b'{"stocks": []}')
    return parse_offers(found["price book"], stocks, found["flavors"], observed_at)


def _list_of(name: str, body: bytes) -> str:
    """The kind of an answer: only the price book is a bare list."""
    answer = decode_json(NAME, body)
    if isinstance(answer, list):
        return "price book"
    return "stocks" if "stocks" in as_dict(NAME, answer, name) else "flavors"


ROWS = (
    Rows("GET /v1/pricebook", "[]", _Price),
    Rows("GET /v1/core/stocks", "stocks[]", _RegionStock),
    Rows("GET /v1/core/flavors", "data[].flavors[]", _Flavor),
)
