"""CUDO's machine types, and the sizes of them on sale (facts of the wire: the package's docstring)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field

from broker.domain.market.offer import NativePrice, Offer, OfferBatch, Stock, StockLevel, Tier
from broker.domain.market.sku import Form
from broker.provider_facts import ProviderFacts, load_provider_facts
from providers.payload import (
    GB_PER_GIB,
    Amount,
    Name,
    PayloadModel,
    RowRejected,
    canonical_gpu,
    collect,
    require_price,
    slug,
    sold_amount,
)
from providers.rows import gpu_node, page_by_page, rows_under
from providers.schema import Rows

NAME = "cudo"

_Units = Annotated[int, Field(ge=0, le=10_000_000)]


class _Money(PayloadModel):
    value: Decimal | None = None


class _MachineType(PayloadModel):
    """A row of ``machineTypes``."""

    dataCenterId: Name
    machineType: Name
    gpuModel: str = ""
    minVcpuPerMemoryGib: Amount | None = None
    maxVcpuPerMemoryGib: Amount | None = None
    minVcpuPerGpu: Amount | None = None
    maxVcpuPerGpu: Amount | None = None
    minVcpu: Amount | None = None
    minMemoryGib: Amount | None = None
    vcpuPriceHr: _Money = _Money()
    memoryGibPriceHr: _Money = _Money()
    gpuPriceHr: _Money = _Money()
    minStorageGibPriceHr: _Money = _Money()
    ipv4PriceHr: _Money = _Money()
    maxVcpuFree: _Units | None = None
    totalVcpuFree: _Units | None = None
    maxMemoryGibFree: _Units | None = None
    totalMemoryGibFree: _Units | None = None
    maxGpuFree: _Units | None = None
    totalGpuFree: _Units | None = None
    maxStorageGibFree: _Units | None = None
    totalStorageGibFree: _Units | None = None


@dataclass(frozen=True, slots=True)
class _Size:
    gpus: int
    vcpus: int
    memory_gib: int
    disk_gib: int


def parse_offers(payload: bytes, observed_at: datetime) -> OfferBatch:
    """Offers of ``GET /v1/vms/machine-types-2``: one per data centre, machine type and size with free
    capacity."""
    facts = load_provider_facts(NAME)
    rows = rows_under(NAME, payload, "machineTypes")
    return collect(((_row_name(row), row) for row in rows), lambda row: _offers_of(row, facts, observed_at))


def _row_name(row: Any) -> str:
    if not isinstance(row, dict):
        return "row that is no object"
    return f"{row.get('dataCenterId', 'no data centre')} {row.get('machineType', 'no machine type')}"


def _offers_of(row: Any, facts: ProviderFacts, observed_at: datetime) -> Iterator[Offer]:
    kind = _MachineType.model_validate(row)
    if not kind.gpuModel:
        raise RowRejected("no GPU")
    gpu = canonical_gpu(facts, kind.gpuModel)
    require_price(kind.gpuPriceHr.value, "gpuPriceHr")
    if kind.maxGpuFree == 0 or kind.totalGpuFree == 0:
        raise RowRejected("sold out")
    sizes = [size for count in facts.search["gpus"] if _fits(size := _size(kind, count, facts), kind)]
    if not sizes:
        raise RowRejected("no configured size fits into what is free in one machine")
    for size in sizes:
        yield _offer(kind, gpu, size, facts, observed_at)


def _size(kind: _MachineType, gpus: int, facts: ProviderFacts) -> _Size:
    """The configured size for ``gpus``, adjusted to the limits of the machine type."""
    vcpus = max(facts.search["vcpus_per_gpu"] * gpus, (kind.minVcpuPerGpu or 0) * gpus, kind.minVcpu or 0)
    if kind.maxVcpuPerGpu:
        vcpus = min(vcpus, kind.maxVcpuPerGpu * gpus)
    memory = max(facts.search["memory_gib_per_gpu"] * gpus, kind.minMemoryGib or 0)
    if kind.maxVcpuPerMemoryGib:
        memory = max(memory, vcpus / kind.maxVcpuPerMemoryGib)
    if kind.minVcpuPerMemoryGib:
        memory = min(memory, vcpus / kind.minVcpuPerMemoryGib)
    return _Size(gpus, math.ceil(vcpus), math.ceil(memory), facts.search["disk_gib"])


def _fits(size: _Size, kind: _MachineType) -> bool:
    free = (kind.maxGpuFree, kind.maxVcpuFree, kind.maxMemoryGibFree, kind.maxStorageGibFree)
    wanted = (size.gpus, size.vcpus, size.memory_gib, size.disk_gib)
    return all(there is None or want <= there for want, there in zip(wanted, free, strict=True))


def _nodes(size: _Size, kind: _MachineType) -> int | None:
    """How many nodes the pool could hold if it were not split over hosts; at least the one that fits."""
    free = (kind.totalGpuFree, kind.totalVcpuFree, kind.totalMemoryGibFree, kind.totalStorageGibFree)
    wanted = (size.gpus, size.vcpus, size.memory_gib, size.disk_gib)
    counts = [there // want for want, there in zip(wanted, free, strict=True) if there is not None and want]
    return max(1, min(counts)) if counts else None


def _price(kind: _MachineType, size: _Size) -> Decimal:
    parts = {
        "vcpuPriceHr": (kind.vcpuPriceHr, size.vcpus),
        "memoryGibPriceHr": (kind.memoryGibPriceHr, size.memory_gib),
        "gpuPriceHr": (kind.gpuPriceHr, size.gpus),
        "minStorageGibPriceHr": (kind.minStorageGibPriceHr, size.disk_gib),
        "ipv4PriceHr": (kind.ipv4PriceHr, 1),
    }
    total = Decimal(0)
    for name, (price, units) in parts.items():
        if price.value is None:
            raise RowRejected(f"{name} is null")
        if price.value < 0:
            raise RowRejected(f"{name} is not a usable amount")
        total += price.value * units
    return require_price(total, "the sum of the parts")


def _offer(kind: _MachineType, gpu: str, size: _Size, facts: ProviderFacts, observed_at: datetime) -> Offer:
    name = f"{slug(kind.machineType)}_{size.gpus}x{size.vcpus}v{size.memory_gib}gb"
    price = _price(kind, size)
    return Offer(
        offer_id=f"{NAME}/{slug(kind.dataCenterId)}/{name}/{Tier.ON_DEMAND}",
        provider=NAME,
        sku=gpu_node(
            name,
            gpu,
            size.gpus,
            Form.VM,
            vcpus=size.vcpus,
        ),
        region=kind.dataCenterId,
        country=facts.country_of(kind.dataCenterId),
        tier=Tier.ON_DEMAND,
        price_usd_per_node_hour=price,
        observed_at=observed_at,
        source="GET /v1/vms/machine-types-2",
        native=NativePrice(price, "USD", "machine-hour, the sum of its parts"),
        stock=Stock(StockLevel.UNKNOWN, _nodes(size, kind)),
        billing_increment_s=facts.billed.increment_s,
        compliance=facts.compliance,
        reference={
            "dataCenterId": kind.dataCenterId,
            "machineType": kind.machineType,
            "gpus": str(size.gpus),
            "vcpus": str(size.vcpus),
        },
        disk=sold_amount(
            size.disk_gib,
            kind.minStorageGibPriceHr.value or Decimal(0),
            most=kind.maxStorageGibFree,
            unit_gb=GB_PER_GIB,
        ),
        memory=sold_amount(
            size.memory_gib,
            kind.memoryGibPriceHr.value or Decimal(0),
            most=_most_memory_gib(kind, size),
            unit_gb=GB_PER_GIB,
        ),
    )


def _most_memory_gib(kind: _MachineType, size: _Size) -> float | None:
    """The most memory beside the size's cores, and that is free in one machine."""
    most = [] if kind.maxMemoryGibFree is None else [kind.maxMemoryGibFree]
    if kind.minVcpuPerMemoryGib:
        most.append(math.floor(size.vcpus / kind.minVcpuPerMemoryGib))
    return min(most, default=None)


parse = page_by_page(parse_offers)
"""Recorded answers of ``machine-types-2``."""


ROWS = (Rows("GET /v1/vms/machine-types-2", "machineTypes[]", _MachineType),)
