"""Crusoe's types, capacities and InfiniBand networks, read as offers (facts of the wire: the package)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import Field

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, RejectedRow, Stock, StockLevel, Tier
from broker.domain.market.sku import Fabric, FabricKind, Form, Sku
from broker.provider_facts import ProviderFacts, load_provider_facts
from providers.payload import (
    Amount,
    GpuCount,
    Name,
    PayloadModel,
    RowRejected,
    as_dict,
    as_list,
    canonical_gpu,
    collect,
    decode_json,
    require_gpus,
    require_price,
    slug,
)
from providers.rows import gpu_node
from providers.schema import Rows
from providers.spec import NamedPayload

NAME = "crusoe"
_INFINIBAND = re.compile(r".+-ib\.\d{1,3}x")
_JOINED = re.compile(r".+-(ib|roce)\.\d{1,3}x")
"""Types whose machines must be created in a partition of an InfiniBand network."""
_Count = Field(default=0, ge=0, le=1_000_000)


class _Type(PayloadModel):
    """An item of ``compute/vms/types``."""

    product_name: Name
    num_gpu: GpuCount = 0
    gpu_type: str = ""
    cpu_cores: Amount | None = None
    memory_gb: Amount | None = None
    disk_gb: Amount | None = None


class _Capacity(PayloadModel):
    """An item of ``capacities``."""

    type: Name
    location: Name
    quantity: int = _Count


class _Slice(PayloadModel):
    slice_type: Name
    quantity: int = _Count


class _Network(PayloadModel):
    """An item of ``networking/ib-networks``."""

    id: Name
    location: Name
    capacities: tuple[_Slice, ...] = ()


@dataclass(frozen=True, slots=True)
class Market:
    """The answers of one poll."""

    types: bytes
    capacities: bytes
    networks: bytes


_Networks = Mapping[tuple[str, str], tuple[str, int]]
"""For each (location, type), the network and how many machines it can still connect."""


def parse_offers(market: Market, observed_at: datetime) -> OfferBatch:
    """One offer for each type and location with capacity; a type without any is rejected."""
    facts = load_provider_facts(NAME)
    rejected: list[RejectedRow] = []
    stock = _stock(_items(market.capacities, "capacities"), rejected)
    networks = _networks(_items(market.networks, "ib-networks"), rejected)
    rows = [(_row_name(row), row) for row in _items(market.types, "types")]
    known = {name for name, _ in rows}
    rejected += [
        RejectedRow(f"{kind} in {location}", "the list of types lacks this type")
        for kind, places in stock.items()
        if kind not in known
        for location in places
    ]
    batch = collect(
        rows, lambda row: _offers_of(_Type.model_validate(row), stock, networks, facts, observed_at)
    )
    return OfferBatch(batch.offers, (*batch.rejected, *rejected))


def _items(payload: bytes, name: str) -> list[Any]:
    return as_list(NAME, as_dict(NAME, decode_json(NAME, payload), name).get("items"), f"{name}.items")


def _row_name(row: Any) -> str:
    return str(row.get("product_name") if isinstance(row, dict) else row)[:200]


def _stock(rows: Sequence[Any], rejected: list[RejectedRow]) -> Mapping[str, Mapping[str, int]]:
    """Counts by type and location; of several rows for one pair, the largest."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        try:
            item = _Capacity.model_validate(row)
        except ValueError:
            rejected.append(
                RejectedRow(f"capacity {str(row)[:80]}", "the row lacks a type, a location or a quantity")
            )
            continue
        places = found.setdefault(item.type, {})
        places[item.location] = max(item.quantity, places.get(item.location, 0))
    return found


def _networks(rows: Sequence[Any], rejected: list[RejectedRow]) -> _Networks:
    """For each location and type, the network that can connect the most machines."""
    found: dict[tuple[str, str], tuple[str, int]] = {}
    for row in rows:
        try:
            network = _Network.model_validate(row)
        except ValueError:
            rejected.append(
                RejectedRow(f"network {str(row)[:80]}", "the row lacks an id, a location or capacities")
            )
            continue
        for part in network.capacities:
            key = (network.location, part.slice_type)
            if part.quantity > found.get(key, ("", 0))[1]:
                found[key] = (network.id, part.quantity)
    return found


def _offers_of(
    kind: _Type,
    stock: Mapping[str, Mapping[str, int]],
    networks: _Networks,
    facts: ProviderFacts,
    observed_at: datetime,
) -> Iterator[Offer | RejectedRow]:
    count = require_gpus(kind.num_gpu)
    gpu = canonical_gpu(facts, kind.gpu_type, _stated_memory_gb(kind.gpu_type))
    places = stock.get(kind.product_name)
    if not places:
        raise RowRejected("no capacity is listed anywhere")
    price = facts.prices.get(gpu, {}).get(Tier.ON_DEMAND.value)
    if price is None:
        raise RowRejected("no price in the API")
    usd = require_price(price.usd_per_gpu_hour, "the published price") * count
    for location, nodes in places.items():
        if not nodes:
            yield RejectedRow(f"{kind.product_name} in {location}", "sold out")
            continue
        network = networks.get((location, kind.product_name))
        yield Offer(
            offer_id=f"{NAME}/{slug(location)}/{slug(kind.product_name)}/{Tier.ON_DEMAND}",
            provider=NAME,
            sku=_sku(kind, gpu, count, network, facts),
            region=location,
            country=facts.country_of(location),
            tier=Tier.ON_DEMAND,
            price_usd_per_node_hour=usd,
            observed_at=observed_at,
            source=f"capacities; price of {price.on}: {price.source}",
            native=NativePrice(price.usd_per_gpu_hour, "USD", "GPU-hour"),
            stock=Stock(StockLevel.UNKNOWN, nodes),
            billing_increment_s=facts.billed.increment_s,
            compliance=facts.compliance,
            reference={
                "type": kind.product_name,
                "location": location,
                "ib_network_id": network[0] if network and _JOINED.fullmatch(kind.product_name) else "",
            },
        )


def _sku(kind: _Type, gpu: str, count: int, network: tuple[str, int] | None, facts: ProviderFacts) -> Sku:
    return gpu_node(
        kind.product_name,
        gpu,
        count,
        Form.VM,
        vcpus=kind.cpu_cores,
        memory_gb=kind.memory_gb,
        disk_gb=kind.disk_gb or None,
        fabric=_fabric(kind, gpu, network, facts),
    )


def _fabric(kind: _Type, gpu: str, network: tuple[str, int] | None, facts: ProviderFacts) -> Fabric | None:
    """The fabric, as large as the network has room for.

    None without a network, or when its rate is unknown (RoCE).
    """
    rate = facts.search["gbit_s_per_ib_node"].get(gpu)
    if network is None or rate is None or not _INFINIBAND.fullmatch(kind.product_name):
        return None
    return Fabric(FabricKind.INFINIBAND, float(rate), network[1], network[0])


def _stated_memory_gb(gpu_type: str) -> float | None:
    """Memory of one GPU as written in the text: ``H100-SXM-80GB``, ``MI355X_288GB``."""
    found = re.search(r"[-_](\d{1,4})GB$", gpu_type)
    return float(found.group(1)) if found else None


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Offers of recorded answers; names tell the kind: ``types…``, ``capacities…``, ``ib_networks…``."""
    found: dict[str, bytes] = {}
    for name, body in payloads:
        kind = next((kind for kind in ("capacities", "network", "types") if kind in name), None)
        if kind is None:
            raise PayloadUnreadable(NAME, f"{name[:80]} is neither types, capacities nor networks")
        found[kind] = body
    if "types" not in found or "capacities" not in found:
        raise PayloadUnreadable(NAME, "both types and capacities are needed")
    networks = found.get("network", b'{"items": []}')
    return parse_offers(Market(found["types"], found["capacities"], networks), observed_at)


ROWS = (
    Rows("GET /projects/{id}/compute/vms/types", "items[]", _Type),
    Rows("GET /capacities", "items[]", _Capacity),
    Rows("GET /projects/{id}/networking/ib-networks", "items[]", _Network),
)
