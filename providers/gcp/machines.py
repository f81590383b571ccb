"""Machine types by zone, and the on-demand and spot offers that they make with the price list.

Units: ``memoryMb`` is MiB. A type is named with all its GPUs ("a3-highgpu-8g"); Google says that it exists
in a zone, never that any is free. A type with a part of a card counts one accelerator, as one with a whole
card does (``providers/gcp/slices.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from pydantic import Field, ValidationError

from broker.domain.market.offer import NativePrice, Offer, OfferBatch, RejectedRow, Tier
from broker.domain.market.sku import Form, Sku
from broker.provider_facts import NodeFacts, ProviderFacts, infer_intra_node, load_provider_facts
from providers.gcp.prices import PROVIDER, SOURCE, Mode, NodeSizes, Rates
from providers.gcp.slices import Share, require_whole_cards, shares_of
from providers.payload import (
    GB_PER_GIB,
    GpuCount,
    Name,
    PayloadModel,
    RowRejected,
    as_dict,
    as_list,
    canonical_gpu,
    collect,
    decode_json,
    gb_of_gib,
    nominal_memory_gb,
    require_gpus,
    require_sold,
    sold_amount,
    with_address,
    with_disk,
)
from providers.schema import Rows

PRICED_AS = "GPU, core, RAM and local SSD SKUs of a node, an hour"
LOCAL_SSD_GIB = 375
"""A partition of local SSD; those of A4X, which has no public price, are larger."""
MEMORY_TOLERANCE_GB = 1.0
_TIERS = {Mode.ON_DEMAND: Tier.ON_DEMAND, Mode.SPOT: Tier.SPOT}

_GONE = frozenset({"OBSOLETE", "DELETED"})
"""In these states a type cannot be used; a deprecated type still can."""


class _Accelerator(PayloadModel):
    guestAcceleratorType: Name
    guestAcceleratorCount: GpuCount


class _Deprecation(PayloadModel):
    state: str = ""


class _LocalSsds(PayloadModel):
    partitionCount: int = Field(default=0, ge=0, le=1000)


class _MachineType(PayloadModel):
    name: Name
    description: str = ""
    deprecated: _Deprecation | None = None
    guestCpus: int = Field(ge=1, le=4096)
    memoryMb: int = Field(ge=1, le=10**9)
    accelerators: tuple[_Accelerator, ...] = ()
    bundledLocalSsds: _LocalSsds = _LocalSsds()


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine type as a SKU, with the memory and the local SSD that its price covers."""

    sku: Sku
    vcpus: int
    memory_gib: Decimal
    ssd_gib: int

    def usd_per_hour(self, rates: Rates, mode: Mode, region: str) -> Decimal:
        """The price of a node; RowRejected names a part without a price."""
        sku = self.sku
        sizes = NodeSizes(sku.gpus_per_node, self.vcpus, self.memory_gib, self.ssd_gib)
        return rates.node_usd(mode, region, sku.name, sizes)


def with_boot_disk(offer: Offer, machine: Machine, rates: Rates) -> Offer:
    """The offer of an instance with a boot disk of choice beside its price, if it has no local SSD and the
    list has a price of the disk; else the image decides.
    """
    if machine.ssd_gib:
        return offer
    known = load_provider_facts(PROVIDER).search["disk"]
    kind = known["type"].get(machine.sku.name.partition("-")[0], known["other_type"])
    try:
        usd = rates.disk_usd(offer.region, known["sku"][kind])
    except RowRejected:
        return offer
    disk = sold_amount(known["default_gib"], usd, most=known["most_gib"], unit_gb=GB_PER_GIB)
    noted = replace(offer, reference={**offer.reference, "disk_type": kind})
    return with_disk(noted, disk)


def region_of(zone: str) -> str:
    """``us-central1`` of ``us-central1-a``; RowRejected for another form."""
    region, dash, letter = zone.rpartition("-")
    if not dash or not region or not letter.isalnum() or " " in zone or "/" in zone:
        raise RowRejected(f"not a zone: {zone[:40]!r}")
    return region


def zone_of(scope: str) -> str:
    """``us-central1-a`` of ``zones/us-central1-a`` or of a zone's URL."""
    return scope.rpartition("/")[2]


def machine_rows(pages: Iterable[bytes]) -> list[tuple[str, tuple[str, Any]]]:
    """(name, (zone, row)) of ``machineTypes.aggregatedList``; PayloadUnreadable for other answers."""
    found = []
    for page in pages:
        envelope = as_dict(PROVIDER, decode_json(PROVIDER, page), "a page of machine types")
        scopes = as_dict(PROVIDER, envelope.get("items", {}), "items")
        for scope, content in scopes.items():
            rows = as_dict(PROVIDER, content, scope).get("machineTypes", [])
            for row in as_list(PROVIDER, rows, f"machineTypes of {scope}"):
                name = row.get("name") if isinstance(row, dict) else None
                found.append((f"{zone_of(scope)} {name}", (zone_of(scope), row)))
    return found


def card_shares(rows: Iterable[tuple[str, tuple[str, Any]]]) -> Mapping[str, Share]:
    """What a whole card comes with, by machine type without its size."""
    read = []
    for _, (_, row) in rows:
        with suppress(ValidationError):
            read.append(_MachineType.model_validate(row))
    return shares_of(
        (
            each.name,
            each.description,
            each.accelerators[0].guestAcceleratorCount,
            each.guestCpus,
            each.memoryMb,
        )
        for each in read
        if each.accelerators
    )


def read_machine(row: Any, facts: ProviderFacts, shares: Mapping[str, Share]) -> Machine:
    """A row as a machine; RowRejected (or a validation error) for other rows, parts of a card among them."""
    read = _MachineType.model_validate(row)
    if not read.accelerators:
        raise RowRejected("no GPU")
    if read.deprecated is not None and read.deprecated.state in _GONE:
        raise RowRejected(f"the type cannot be used: {read.deprecated.state}")
    if len(read.accelerators) > 1:
        raise RowRejected("several kinds of accelerators")
    count = require_gpus(read.accelerators[0].guestAcceleratorCount)
    gpu = canonical_gpu(facts, read.accelerators[0].guestAcceleratorType)
    memory_gib = Decimal(read.memoryMb) / 1024
    memory_gb = gb_of_gib(float(memory_gib))
    ssd_gib = read.bundledLocalSsds.partitionCount * LOCAL_SSD_GIB
    known_shares = {} if read.name in facts.nodes else shares
    require_whole_cards(read.name, read.description, count, (read.guestCpus, read.memoryMb), known_shares)
    known = facts.nodes.get(read.name, NodeFacts())
    _require_known(known, gpu, count, read.guestCpus, memory_gb)
    sku = Sku(
        name=read.name,
        gpu=gpu,
        gpus_per_node=count,
        gpu_memory_gb=nominal_memory_gb(gpu),
        vcpus=read.guestCpus,
        memory_gb=memory_gb,
        disk_gb=gb_of_gib(ssd_gib) or None,
        form=known.form or Form.VM,
        intra_node=known.intra_node or infer_intra_node(gpu, count),
        fabric=known.fabric,
    )
    return Machine(sku, read.guestCpus, memory_gib, ssd_gib)


def _require_known(known: NodeFacts, gpu: str, count: int, vcpus: int, memory_gb: float | None) -> None:
    """Raises RowRejected when the answer contradicts the published facts of the type."""
    pairs = ((known.gpu, gpu), (known.gpus_per_node, count), (known.vcpus, vcpus))
    for expected, found in pairs:
        if expected is not None and expected != found:
            raise RowRejected(f"inconsistent: {found} listed, {expected} known of this type")
    if known.memory_gb and memory_gb and abs(known.memory_gb - memory_gb) > MEMORY_TOLERANCE_GB:
        raise RowRejected(f"inconsistent: {memory_gb} GB listed, {known.memory_gb} GB known of this type")


def parse_machines(
    rows: Iterable[tuple[str, tuple[str, Any]]], rates: Rates, observed_at: datetime
) -> OfferBatch:
    """On-demand and spot offers: one per zone, type and tier with a price; others are rejected by name."""
    facts, listed = load_provider_facts(PROVIDER), list(rows)
    shares = card_shares(listed)

    def build(row: tuple[str, Any]) -> Iterator[Offer | RejectedRow]:
        zone, body = row
        return _offers_of(zone, read_machine(body, facts, shares), rates, facts, observed_at)

    return collect(listed, build)


def _offers_of(
    zone: str, machine: Machine, rates: Rates, facts: ProviderFacts, observed_at: datetime
) -> Iterator[Offer | RejectedRow]:
    region = region_of(zone)
    for mode, tier in _TIERS.items():
        try:
            require_sold(facts, machine.sku.name, tier)
            offer = _offer(zone, machine, tier, machine.usd_per_hour(rates, mode, region), facts, observed_at)
            is_instance = tier is Tier.SPOT
            yield with_address(with_boot_disk(offer, machine, rates), facts) if is_instance else offer
        except RowRejected as error:
            yield RejectedRow(f"{zone} {machine.sku.name} {tier}", str(error))


def _offer(
    zone: str, machine: Machine, tier: Tier, usd: Decimal, facts: ProviderFacts, observed_at: datetime
) -> Offer:
    region = region_of(zone)
    return Offer(
        offer_id=f"{PROVIDER}/{tier}/{zone}/{machine.sku.name}",
        provider=PROVIDER,
        sku=machine.sku,
        region=region,
        zone=zone,
        country=facts.country_of(region),
        tier=tier,
        price_usd_per_node_hour=usd,
        observed_at=observed_at,
        source=SOURCE,
        native=NativePrice(usd, "USD", PRICED_AS),
        min_hours=facts.billed.min_hours,
        billing_increment_s=facts.billed.increment_s,
        compliance=facts.compliance,
        reference={"zone": zone, "machine_type": machine.sku.name},
    )


ROWS = Rows(
    "GET aggregated/machineTypes",
    "items.*.machineTypes[]",
    _MachineType,
    at_times=("deprecated", "bundledLocalSsds", "description"),
)
