"""Vast.ai's search results, and the offers in them (facts of the wire: the package's docstring)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field

from broker.domain.market.offer import (
    GpuPool,
    HostKind,
    NativePrice,
    Offer,
    OfferBatch,
    Stock,
    StockLevel,
    Tier,
)
from broker.domain.market.sku import Form, IntraNode, LinkKind, Sku, SoldAmount
from broker.provider_facts import ProviderFacts, infer_intra_node, load_provider_facts
from providers.payload import (
    Amount,
    GpuCount,
    PayloadModel,
    RowRejected,
    canonical_gpu,
    collect,
    nominal_memory_gb,
    require_gpus,
    require_price,
    sold_amount,
)
from providers.rows import rows_under
from providers.schema import Rows
from providers.spec import NamedPayload

NAME = "vast"
UNKNOWN_REGION = "unknown"
SEARCHED_DISK_GB = 50.0
HOURS_A_MONTH = 720


_NO_END_S = 253_402_300_800
"""The year 10000 in Unix seconds: a later date cannot be represented."""


class _Ask(PayloadModel):
    """A row of ``POST /api/v0/bundles/``."""

    id: int
    gpu_name: str | None = None
    num_gpus: GpuCount | None = None
    gpu_frac: Amount | None = None
    gpu_ram: Amount | None = None
    bw_nvlink: Amount | None = None
    cpu_cores: Amount | None = None
    cpu_cores_effective: Amount | None = None
    cpu_ram: Amount | None = None
    disk_space: Amount | None = None
    storage_cost: Decimal | None = None
    dph_base: Decimal | None = None
    dph_total: Decimal | None = None
    min_bid: Decimal | None = None
    is_bid: bool = False
    geolocation: str | None = None
    hosting_type: int | None = None
    machine_id: int | None = None
    host_id: int | None = None
    reliability2: Annotated[float, Field(ge=0, le=1)] | None = None
    end_date: Annotated[float, Field(gt=0, lt=_NO_END_S)] | None = None
    duration: Annotated[float, Field(gt=-_NO_END_S, lt=_NO_END_S)] | None = None
    cuda_max_good: Decimal | None = None
    direct_port_count: int | None = None
    rentable: bool = True
    rented: bool | None = None


def parse_offers(
    rows: Sequence[Any],
    observed_at: datetime,
    least_cuda: Decimal | None = None,
    disk_gb: float = SEARCHED_DISK_GB,
) -> OfferBatch:
    """Offers from the rows of one or more searches.

    Rows of a search for ``bid`` are spot offers. Without such a search, the lowest bid of an on-demand row
    is one. ``least_cuda``: the CUDA version of the image to order, which the host's driver must support;
    None: any. ``disk_gb`` is the disk that the search named, which prices contain.
    """
    facts = load_provider_facts(NAME)
    bids_searched = any(isinstance(row, dict) and row.get("is_bid") is True for row in rows)

    def offers_of(row: Any) -> Iterator[Offer]:
        ask = _Ask.model_validate(row)
        sku = _sku(ask, facts)
        _require_usable(ask, observed_at, least_cuda)
        disk = _sold_disk(ask, disk_gb)
        found = _offers_of(ask, sku, facts, bids_searched, observed_at)
        return (replace(offer, sku=replace(sku, disk_gb=disk.default_gb), disk=disk) for offer in found)

    batch = collect(((_row_name(row), row) for row in rows), offers_of)
    return OfferBatch(_pooled(batch.offers), batch.rejected)


def _pooled(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """The slices of one machine, on demand and by bid, as one pool of its GPUs.

    Slices of one size do not overlap, slices of different sizes do. So the free GPUs are the largest sum of
    slices of one size, and at most the GPUs of the machine.
    """
    free: defaultdict[str, Counter[tuple[Tier, int]]] = defaultdict(Counter)
    for offer in offers:
        gpus = offer.sku.gpus_per_node
        free[offer.reference["machine_id"]][offer.tier, gpus] += gpus
    return tuple(_of_machine(offer, max(free[offer.reference["machine_id"]].values())) for offer in offers)


def _of_machine(offer: Offer, free_gpus: int) -> Offer:
    machine, whole = offer.reference["machine_id"], offer.reference["machine_gpus"]
    if not machine:
        return offer
    pool = GpuPool(f"{NAME}/machine-{machine}", min(free_gpus, int(whole or free_gpus)))
    return replace(offer, stock=replace(offer.stock, pool=pool))


def _row_name(row: Any) -> str:
    return f"offer {row.get('id')}" if isinstance(row, dict) else "row that is no object"


def _require_usable(ask: _Ask, observed_at: datetime, least_cuda: Decimal | None) -> None:
    """Raises RowRejected for an offer that is taken, over, or unsuitable (CUDA version, SSH port)."""
    if ask.rented or not ask.rentable:
        raise RowRejected("already rented")
    end_s = None if ask.end_date is None else ask.end_date - observed_at.timestamp()
    if any(left_s is not None and left_s <= 0 for left_s in (ask.duration, end_s)):
        raise RowRejected("its host's offer has ended")
    if ask.direct_port_count is not None and ask.direct_port_count < 1:
        raise RowRejected("no open port, which direct SSH needs")
    if least_cuda is not None and ask.cuda_max_good is not None and ask.cuda_max_good < least_cuda:
        raise RowRejected(f"its driver supports CUDA {ask.cuda_max_good}, the image needs {least_cuda}")


def _offers_of(
    ask: _Ask, sku: Sku, facts: ProviderFacts, bids_searched: bool, observed_at: datetime
) -> Iterator[Offer]:
    disk = _disk_price(ask)
    if not ask.is_bid:
        price = require_price(ask.dph_total, "dph_total")
        yield _offer(ask, sku, Tier.ON_DEMAND, price, price, facts, observed_at)
    if ask.is_bid or (not bids_searched and ask.min_bid):
        bid = require_price(ask.min_bid, "min_bid")
        yield _offer(ask, sku, Tier.SPOT, bid + disk, bid, facts, observed_at)


def _sold_disk(ask: _Ask, searched_gb: float) -> SoldAmount:
    """Disk is rented by the GB, up to what is free, at the price of the searched disk.

    Without that, at the price of a month, which is that of 720 hours.
    """
    hourly = _disk_price(ask) / Decimal(str(searched_gb)) or (ask.storage_cost or Decimal(0)) / HOURS_A_MONTH
    return sold_amount(
        searched_gb if ask.disk_space is None else min(searched_gb, ask.disk_space),
        hourly,
        least=0.0,
        most=ask.disk_space,
    )


def _disk_price(ask: _Ask) -> Decimal:
    """The hourly price of the requested disk: the part of the total that is not the machine."""
    if ask.dph_total is None or ask.dph_base is None:
        return Decimal(0)
    return max(Decimal(0), ask.dph_total - ask.dph_base)


def _offer(
    ask: _Ask,
    sku: Sku,
    tier: Tier,
    price: Decimal,
    quoted: Decimal,
    facts: ProviderFacts,
    observed_at: datetime,
) -> Offer:
    region, host = (ask.geolocation or "").strip() or UNKNOWN_REGION, _host(ask.hosting_type)
    return Offer(
        offer_id=f"{NAME}/{ask.id}/{tier}",
        provider=NAME,
        sku=sku,
        region=region,
        country=_country(region),
        seller=None if ask.host_id is None else f"host {ask.host_id}",
        tier=tier,
        price_usd_per_node_hour=price,
        observed_at=observed_at,
        source=f"POST /api/v0/bundles/ {'bid' if ask.is_bid else 'on-demand'}",
        native=NativePrice(quoted, "USD", "offer-hour"),
        billing_increment_s=facts.billed.increment_s,
        stock=Stock(StockLevel.LOW, 1),
        compliance=facts.compliance if host is HostKind.DATACENTER else frozenset(),
        reference={
            "ask_id": str(ask.id),
            "bid": str(quoted) if tier is Tier.SPOT else "",
            "machine_id": "" if ask.machine_id is None else str(ask.machine_id),
            "machine_gpus": _machine_gpus(ask),
        },
        host=host,
        reliability=ask.reliability2,
        available_until=_available_until(ask, observed_at),
    )


def _available_until(ask: _Ask, observed_at: datetime) -> datetime | None:
    """When the host's offer, and every rental of it, ends; None where the row does not say."""
    if ask.end_date is not None:
        return datetime.fromtimestamp(ask.end_date, UTC)
    if ask.duration is None or observed_at.timestamp() + ask.duration >= _NO_END_S:
        return None
    return observed_at + timedelta(seconds=ask.duration)


def _host(hosting_type: int | None) -> HostKind | None:
    if hosting_type is None:
        return None
    return HostKind.DATACENTER if hosting_type >= 1 else HostKind.COMMUNITY


def _machine_gpus(ask: _Ask) -> str:
    """How many GPUs the whole machine has, computed from the row's share; None where it has no share."""
    if not ask.gpu_frac or not ask.num_gpus:
        return ""
    return str(max(ask.num_gpus, round(ask.num_gpus / ask.gpu_frac)))


def _country(region: str) -> str | None:
    """The ISO code that ends a ``geolocation``."""
    found = re.search(r"(?:^|, *)([A-Z]{2})$", region)
    return found.group(1) if found else None


def _sku(ask: _Ask, facts: ProviderFacts) -> Sku:
    count = require_gpus(ask.num_gpus)
    word = (ask.gpu_name or "").replace("_", " ")
    gpu = canonical_gpu(facts, word, None if ask.gpu_ram is None else ask.gpu_ram / 1024)
    share = _host_share(ask)
    return Sku(
        name=f"{count}x {word}",
        gpu=gpu,
        gpus_per_node=count,
        gpu_memory_gb=nominal_memory_gb(gpu),
        vcpus=ask.cpu_cores_effective,
        memory_gb=None if ask.cpu_ram is None or share is None else round(ask.cpu_ram * share / 1000, 1),
        form=Form.CONTAINER,
        intra_node=_intra_node(ask, gpu, count),
    )


def _host_share(ask: _Ask) -> float | None:
    if not ask.cpu_cores or ask.cpu_cores_effective is None:
        return None
    return min(1.0, ask.cpu_cores_effective / ask.cpu_cores)


def _intra_node(ask: _Ask, gpu: str, count: int) -> IntraNode | None:
    """NVLink only where the host has measured it; its rate is the measured one.

    Measured rates (478 GB/s on H100) exceed the 450 of one direction, so they count both directions.
    """
    if ask.bw_nvlink and count > 1:
        return IntraNode(LinkKind.NVLINK, ask.bw_nvlink)
    inferred = infer_intra_node(gpu, count)
    return None if inferred is not None and inferred.kind is LinkKind.NVLINK else inferred


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded answers of searches, as of when they were given."""
    rows = [row for _, body in payloads for row in rows_under(NAME, body, "offers")]
    return parse_offers(rows, _given_at(rows, observed_at))


def _given_at(rows: Sequence[Any], observed_at: datetime) -> datetime:
    """When an answer was given, as the end of a term and what is left of it say; at most ``observed_at``."""
    terms = [(row.get("end_date"), row.get("duration")) for row in rows if isinstance(row, dict)]
    given_s = [
        float(end - left)
        for end, left in terms
        if isinstance(end, int | Decimal) and isinstance(left, int | Decimal) and 0 < end - left < _NO_END_S
    ]
    return min(observed_at, datetime.fromtimestamp(max(given_s), UTC)) if given_s else observed_at


ROWS = (Rows("POST /api/v0/bundles/", "offers[]", _Ask),)
