"""Mithril's auctions, reserved prices and free slots, read as offers (facts of the wire: the package)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from pydantic import Field

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.basics.window import Segment
from broker.domain.market.offer import (
    CancelRule,
    GpuPool,
    NativePrice,
    Offer,
    OfferBatch,
    Stock,
    StockLevel,
    Tier,
    WindowKind,
    WindowTerms,
)
from broker.domain.market.sku import Fabric, FabricKind, Form, Sku
from broker.provider_facts import ProviderFacts, load_provider_facts
from providers.payload import (
    Amount,
    GpuCount,
    Name,
    PayloadModel,
    RowRejected,
    as_list,
    as_payload,
    canonical_gpu,
    collect,
    decode_json,
    decode_model,
    join_batches,
    require_gpus,
    require_price,
    slug,
)
from providers.rows import gpu_node
from providers.schema import Rows
from providers.spec import NamedPayload

NAME = "mithril"
HOUR = timedelta(hours=1)
SHORTEST_HOURS, LONGEST_HOURS = 3, 336
DURATIONS_HOURS = tuple(float(hours) for hours in range(SHORTEST_HOURS, LONGEST_HOURS + 1))
MOST_QUANTITY = 256
"""The most instances that a price can be asked for."""
_MONEY = re.compile(r"\$?(\d{1,3}(?:,\d{3}){1,4}|\d{1,12})(\.\d{1,12})?")


class InstanceType(PayloadModel):
    """A row of ``GET /v2/instance-types``."""

    fid: Name
    name: Name
    num_cpus: Amount | None = None
    ram_gb: Amount | None = None
    num_gpus: GpuCount = 0
    gpu_type: str = ""
    gpu_memory_gb: Amount | None = None
    gpu_socket: str = ""
    local_storage_gb: Amount | None = None
    ib_count: int = Field(default=0, ge=0, le=64)


class Auction(PayloadModel):
    """A row of ``GET /v2/spot/availability``."""

    instance_type: Name
    region: Name
    capacity: int = Field(ge=0, le=1_000_000)
    last_instance_price: str | None = None


class _Prices(PayloadModel):
    """``GET /v2/pricing/current``."""

    reserved_price_cents: Decimal | None = None


class _Slot(PayloadModel):
    start_time: datetime
    end_time: datetime
    quantity: int = Field(ge=0, le=1_000_000)


class _Slots(PayloadModel):
    slots: tuple[_Slot, ...]


@dataclass(frozen=True, slots=True)
class WindowAnswers:
    """The answers about reservations of one type in one region; ``problem``: why there are none.

    ``prices`` are those of one instance, ``prices_of_most`` those of as many as are free at once (empty: the
    same).
    """

    instance_type: str
    region: str
    prices: bytes = b""
    slots: bytes = b""
    prices_of_most: bytes = b""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Market:
    """The answers of one poll."""

    types: bytes
    auctions: bytes
    windows: Sequence[WindowAnswers] = field(default=())


def dollars(text: str | None, name: str) -> Decimal:
    """The amount of ``"$1,234.50"``; RowRejected for anything else."""
    if text is None:
        raise RowRejected(f"{name} is null")
    found = _MONEY.fullmatch(text.strip())
    if found is None:
        raise RowRejected(f"{name} {text[:40]!r} is not an amount of dollars")
    return Decimal(found.group(1).replace(",", "") + (found.group(2) or ""))


def read_types(payload: bytes) -> Mapping[str, Any]:
    """Raw rows of instance types by FID; PayloadUnreadable when the answer is not their list."""
    rows = as_list(NAME, decode_json(NAME, payload), "instance types")
    return {str(row.get("fid")): row for row in rows if isinstance(row, dict)}


def reservable(types: bytes, auctions: bytes) -> tuple[tuple[str, str], ...]:
    """(FID, region) of every auction of a type with GPUs: the types to request windows for."""
    known = read_types(types)
    rows = as_list(NAME, decode_json(NAME, auctions), "auctions")
    pairs = [(str(row.get("instance_type")), row.get("region")) for row in rows if isinstance(row, dict)]
    return tuple(
        dict.fromkeys(
            (fid, region)
            for fid, region in pairs
            if isinstance(region, str) and region and known.get(fid, {}).get("num_gpus")
        )
    )


def parse_offers(market: Market, observed_at: datetime) -> OfferBatch:
    """A spot offer for each auction, and a window offer for each type and region that can be reserved."""
    facts, types = load_provider_facts(NAME), read_types(market.types)
    auctions = as_list(NAME, decode_json(NAME, market.auctions), "auctions")
    spot = collect(
        ((_auction_name(row, types), row) for row in auctions),
        lambda row: (_spot_offer(Auction.model_validate(row), types, facts, observed_at),),
    )
    return join_batches((spot, _windows(market.windows, types, facts, observed_at)))


def _windows(
    answers: Iterable[WindowAnswers],
    types: Mapping[str, Any],
    facts: ProviderFacts,
    observed_at: datetime,
) -> OfferBatch:
    named = ((f"{_type_name(each.instance_type, types)} in {each.region}, window", each) for each in answers)
    return collect(named, lambda each: _window_offers(each, types, facts, observed_at))


def _type_name(fid: str, types: Mapping[str, Any]) -> str:
    return str(types.get(fid, {}).get("name", fid))


def _auction_name(row: Any, types: Mapping[str, Any]) -> str:
    if not isinstance(row, dict):
        return "row that is no object"
    return f"{_type_name(str(row.get('instance_type')), types)} in {row.get('region')}, spot"


def _instance_type(fid: str, types: Mapping[str, Any]) -> InstanceType:
    if fid not in types:
        raise RowRejected(f"no instance type {fid[:60]!r}")
    return InstanceType.model_validate(types[fid])


def _sku(kind: InstanceType, facts: ProviderFacts) -> Sku:
    count = require_gpus(kind.num_gpus)
    gpu = canonical_gpu(facts, f"{kind.gpu_type} {kind.gpu_socket}".strip(), kind.gpu_memory_gb)
    return gpu_node(
        kind.name,
        gpu,
        count,
        Form.VM,
        vcpus=kind.num_cpus,
        memory_gb=kind.ram_gb,
        disk_gb=kind.local_storage_gb,
        fabric=_fabric(kind, gpu, facts),
    )


def _fabric(kind: InstanceType, gpu: str, facts: ProviderFacts) -> Fabric | None:
    rule = facts.search["fabric"]
    rate = rule["gbit_s_per_port"].get(gpu)
    if not kind.ib_count or rate is None:
        return None
    return Fabric(FabricKind.INFINIBAND, float(rate * kind.ib_count), int(rule["max_nodes"]))


def _spot_offer(
    auction: Auction, types: Mapping[str, Any], facts: ProviderFacts, observed_at: datetime
) -> Offer:
    kind = _instance_type(auction.instance_type, types)
    sku = _sku(kind, facts)
    price = require_price(dollars(auction.last_instance_price, "last_instance_price"), "last_instance_price")
    if not auction.capacity:
        raise RowRejected("sold out")
    return Offer(
        offer_id=f"{NAME}/{slug(auction.region)}/{slug(kind.name)}/{Tier.SPOT}",
        provider=NAME,
        sku=sku,
        region=auction.region,
        country=facts.country_of(auction.region),
        tier=Tier.SPOT,
        price_usd_per_node_hour=price,
        observed_at=observed_at,
        source="GET /v2/spot/availability",
        native=NativePrice(price, "USD", "instance-hour"),
        billing_increment_s=facts.billed.increment_s,
        stock=Stock(StockLevel.UNKNOWN, auction.capacity),
        compliance=facts.compliance,
        reference={"instance_type": kind.fid, "region": auction.region},
    )


def _window_offers(
    answers: WindowAnswers, types: Mapping[str, Any], facts: ProviderFacts, observed_at: datetime
) -> Iterator[Offer]:
    """One offer; two of the same instances where several of them have another price than one.

    The second has the price of the most that are free at once.
    """
    kind = _instance_type(answers.instance_type, types)
    sku = _sku(kind, facts)
    if answers.problem:
        raise RowRejected(answers.problem)
    one = _reserved_cents(answers.prices)
    several = _reserved_cents(answers.prices_of_most or answers.prices)
    segments = free_segments(answers.slots, observed_at)
    most = max(segment.nodes for segment in segments)
    offer_id = f"{NAME}/{slug(answers.region)}/{slug(kind.name)}/{Tier.WINDOW}"
    pool = None if one == several else GpuPool(offer_id, most * sku.gpus_per_node)
    offer = Offer(
        offer_id=offer_id,
        provider=NAME,
        sku=sku,
        region=answers.region,
        country=facts.country_of(answers.region),
        tier=Tier.WINDOW,
        price_usd_per_node_hour=one / 100,
        observed_at=observed_at,
        source="GET /v2/pricing/current, /v2/reservation/availability?mode=slots",
        native=NativePrice(one, "USD", "cents per instance-hour"),
        min_hours=float(SHORTEST_HOURS),
        window=WindowTerms(
            kind=WindowKind.SLOTS,
            segments=segments,
            step_hours=1.0,
            durations_hours=DURATIONS_HOURS,
            cancel=CancelRule.RESELL,
            billed=facts.billed.window_billed("reservation"),
            node_counts=None if pool is None else (1,),
        ),
        stock=Stock(StockLevel.UNKNOWN, most, pool),
        compliance=facts.compliance,
        reference={"instance_type": kind.fid, "region": answers.region},
    )
    yield offer
    if pool is not None and offer.window is not None:
        yield replace(
            offer,
            offer_id=f"{offer_id}-of-several",
            price_usd_per_node_hour=several / 100,
            native=NativePrice(several, "USD", "cents per instance-hour"),
            window=replace(offer.window, node_counts=tuple(range(2, min(MOST_QUANTITY, most) + 1))),
        )


def _reserved_cents(prices: bytes) -> Decimal:
    cents = decode_model(NAME, prices, _Prices).reserved_price_cents
    return require_price(cents, "reserved_price_cents")


def most_priced(slots: bytes) -> int:
    """The largest number of instances in a free slot that a price can be asked for; 1 where there is none."""
    rows = as_list(NAME, decode_json(NAME, slots), "slots")
    free = max((slot.quantity for slot in as_payload(NAME, {"slots": rows}, _Slots).slots), default=1)
    return min(MOST_QUANTITY, free) or 1


def free_segments(payload: bytes, observed_at: datetime) -> tuple[Segment, ...]:
    """Free nodes over whole hours from ``observed_at`` on, as steps.

    Slots may overlap; each says what is free throughout, so the largest count at an instant is kept.
    RowRejected when no step is left.
    """
    rows = as_list(NAME, decode_json(NAME, payload), "slots")
    slots = as_payload(NAME, {"slots": rows}, _Slots).slots
    spans = [span for slot in slots if (span := _whole_hours(slot, observed_at)) is not None]
    edges = sorted({edge for start, end, _ in spans for edge in (start, end)})
    steps: list[Segment] = []
    for start, end in pairwise(edges):
        nodes = max((count for left, right, count in spans if left <= start and end <= right), default=0)
        if nodes and steps and (steps[-1].end, steps[-1].nodes) == (start, nodes):
            steps[-1] = Segment(steps[-1].start, end, nodes)
        elif nodes:
            steps.append(Segment(start, end, nodes))
    if not steps:
        raise RowRejected("no free slot")
    return tuple(steps)


def _whole_hours(slot: _Slot, observed_at: datetime) -> tuple[datetime, datetime, int] | None:
    if slot.start_time.tzinfo is None or slot.end_time.tzinfo is None:
        raise RowRejected("the times of a slot have no zone")
    start = max(slot.start_time.astimezone(UTC), observed_at)
    floor = start.replace(minute=0, second=0, microsecond=0)
    start = floor if floor == start else floor + HOUR
    end = slot.end_time.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return (start, end, slot.quantity) if slot.quantity and start < end else None


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Offers of recorded answers.

    ``pricing__<type>__<region>``, ``slots__…`` and, where several instances have another price,
    ``pricing_of_most__…`` belong together; auctions are recognized by the word in the file's name.
    """
    types = auctions = None
    windows: dict[tuple[str, str], dict[str, bytes]] = {}
    for name, body in payloads:
        stem = PurePath(name).name.rpartition(".json")[0] or name
        kind, *asked = stem.split("__")
        if len(asked) == 2:
            windows.setdefault((asked[0], asked[1]), {})[kind] = body
        elif "availab" in kind:
            auctions = body
        else:
            types = body
    if types is None or auctions is None:
        raise PayloadUnreadable(NAME, "both instance types and spot availability are needed")
    answers = [
        WindowAnswers(
            fid,
            region,
            found.get("pricing", b"null"),
            found.get("slots", b"null"),
            found.get("pricing_of_most", b""),
        )
        for (fid, region), found in windows.items()
    ]
    return parse_offers(Market(types, auctions, answers), observed_at)


ROWS = (
    Rows("GET /v2/instance-types", "[]", InstanceType),
    Rows("GET /v2/spot/availability", "[]", Auction),
    Rows("GET /v2/pricing/current", "", _Prices),
    Rows("GET /v2/reservation/availability?mode=slots", "[]", _Slot),
)
