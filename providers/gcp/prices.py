"""The Cloud Billing catalogue of Compute Engine: hourly prices of the parts that nodes are made of.

Units: ``units`` (a string of whole dollars) plus ``nanos`` (10⁻⁹ dollars) per ``usageUnit``: ``h`` for a
GPU or a core, ``GiBy.h`` for memory, ``GiBy.mo`` for local SSD (a month of 730 hours). A SKU's ``usageType``
does not tell calendar, flex-start and reserved rows from on demand (all say OnDemand, some spot rows too):
the description decides. Rows of reservations under a commitment cost $0 and are no price.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Any

from pydantic import Field, ValidationError

from broker.domain.market.offer import RejectedRow
from broker.provider_facts import load_provider_facts
from providers.gpu_words import is_slice
from providers.payload import (
    Amount,
    PayloadModel,
    RowRejected,
    as_dict,
    as_list,
    decode_json,
    first_problem,
    require_price,
)
from providers.schema import Rows

PROVIDER = "gcp"
SERVICE = "6F81-5844-456A"
"""Compute Engine in the catalogue of services."""
SOURCE = f"GET /v1/services/{SERVICE}/skus"
MOST_REJECTED = 500

_NANO = Decimal("1e-9")
HOURS_PER_MONTH = 730
"""Google's month."""
_SSD = "SSD backed Local Storage"
"""Local SSD of every family that has no SKU of its own ("G4 Instance Local SSD")."""
_UNITS = {" Ram": "GiBy.h", " Local SSD": "GiBy.mo", _SSD: "GiBy.mo", " Capacity": "GiBy.mo"}
_VM_PART = re.compile(r"(?P<family>[A-Z][0-9][A-Za-z]*)(?: Instance)? (?P<part>Core|Ram|Local SSD)")
_PLACE = re.compile(r" (?:running )?in .+$")
_MARKS = re.compile(
    r"^(?:Reserved |Spot Preemptible |DWS Defined Duration |DWS Calendar Mode |DWS Flex Start )+"
    r"| attached to .+ VMs$"
)


class Mode(StrEnum):
    """How a part is sold."""

    ON_DEMAND = "on demand"
    SPOT = "spot"
    CALENDAR = "calendar mode"
    FLEX = "flex-start"


class _Money(PayloadModel):
    currencyCode: str = "USD"
    units: int = Field(default=0, ge=-(10**9), le=10**9)
    nanos: int = Field(default=0, ge=-999_999_999, le=999_999_999)


class _Tier(PayloadModel):
    startUsageAmount: Amount = 0.0
    unitPrice: _Money


class _Expression(PayloadModel):
    usageUnit: str = ""
    tieredRates: tuple[_Tier, ...] = ()


class _Pricing(PayloadModel):
    effectiveTime: str = ""
    pricingExpression: _Expression


class _Category(PayloadModel):
    resourceGroup: str = ""
    usageType: str = ""


class _Sku(PayloadModel):
    skuId: str = ""
    description: str
    category: _Category = _Category()
    serviceRegions: tuple[str, ...] = ()
    pricingInfo: tuple[_Pricing, ...] = ()

    @property
    def row(self) -> str:
        """The name of a rejected row."""
        return f"{self.skuId} {self.description}".strip()


@dataclass(frozen=True, slots=True)
class _Rate:
    usd: Decimal
    effective: str


@dataclass(frozen=True, slots=True)
class NodeSizes:
    """How much of each part a node has."""

    gpus: int
    vcpus: int
    memory_gib: Decimal
    ssd_gib: int = 0


@dataclass(slots=True)
class Rates:
    """Hourly prices by (region, mode, part).

    A part is a GPU's words, a family with "Core", "Ram" or "Local SSD", or the words of a disk.
    """

    _rates: dict[tuple[str, Mode, str], _Rate] = field(default_factory=dict)
    rejected: list[RejectedRow] = field(default_factory=list)
    others: int = 0
    unlisted: int = 0

    def feed(self, page: bytes) -> str:
        """Reads a page and returns the pagination cursor of the next one, empty after the last.

        PayloadUnreadable for a page without a list of SKUs.
        """
        envelope = as_dict(PROVIDER, decode_json(PROVIDER, page), "a page of SKUs")
        for row in as_list(PROVIDER, envelope.get("skus", []), "skus"):
            self._read(row)
        return str(envelope.get("nextPageToken") or "")

    def _read(self, row: Any) -> None:
        if _is_of_other_things(row):
            self.others += 1
            return
        try:
            sku = _Sku.model_validate(row)
        except ValidationError as error:
            name = (
                f"{row.get('skuId', '')} {row.get('description', '')}" if isinstance(row, dict) else "a SKU"
            )
            self.reject(name, first_problem(error))
            return
        try:
            part, mode = _part(sku.description), _mode(sku)
            if part is None:
                is_part_of_card = is_slice(sku.description)
                raise RowRejected("a fraction of a GPU" if is_part_of_card else "unknown GPU")
            rate = _rate(sku, next((unit for end, unit in _UNITS.items() if part.endswith(end)), "h"))
        except RowRejected as error:
            self.reject(sku.row, str(error))
            return
        for region in sku.serviceRegions:
            self._keep((region, mode, part), rate, sku.row)

    def node_usd(self, mode: Mode, region: str, machine_type: str, sizes: NodeSizes) -> Decimal:
        """The price of a node: the sum of its parts; RowRejected names a part without a price."""
        family = families().get(machine_type.rpartition("-")[0])
        if family is None:
            raise RowRejected(f"the price list has no known words for machine type {machine_type!r}")
        total = sizes.gpus * self._one_of(mode, region, family["gpu"])
        if "vm" in family:
            total += sizes.vcpus * self._one_of(mode, region, [f"{family['vm']} Core"])
            total += sizes.memory_gib * self._one_of(mode, region, [f"{family['vm']} Ram"])
            total += self._ssd_usd(mode, region, family["vm"], sizes.ssd_gib)
        return require_price(total)

    def _ssd_usd(self, mode: Mode, region: str, vm: str, gib: int) -> Decimal:
        """Local SSD an hour; a mode without a price of its own is taken to pay that on demand."""
        if not gib:
            return Decimal(0)
        for each in dict.fromkeys((mode, Mode.ON_DEMAND)):
            for part in (f"{vm} Local SSD", _SSD):
                if (rate := self._rates.get((region, each, part))) is not None:
                    return (gib * rate.usd).quantize(_NANO)
        raise RowRejected(f"no price of the local SSD that comes with it in {region}")

    def disk_usd(self, region: str, words: str) -> Decimal:
        """USD per GiB and hour of a boot disk, which is never sold as spot; RowRejected without a price."""
        return self._one_of(Mode.ON_DEMAND, region, [words])

    def sells_gpu(self, mode: Mode, region: str, machine_type: str) -> bool:
        """Whether the GPU of a machine type has a price of that mode."""
        family = families().get(machine_type.rpartition("-")[0], {"gpu": ()})
        return any((region, mode, part) in self._rates for part in family["gpu"])

    def _one_of(self, mode: Mode, region: str, parts: Iterable[str]) -> Decimal:
        for part in parts:
            rate = self._rates.get((region, mode, part))
            if rate is not None:
                return rate.usd
        raise RowRejected(f"no {mode} price of {next(iter(parts))} in {region}")

    def _keep(self, key: tuple[str, Mode, str], rate: _Rate, row: str) -> None:
        """Keeps a price; of two, the newer one, and of equally new ones the more expensive."""
        before = self._rates.get(key)
        if before is None or before.usd == rate.usd:
            self._rates[key] = rate
            return
        kept = max(before, rate, key=lambda r: (r.effective, r.usd))
        self._rates[key] = kept
        self.reject(row, f"a second price in {key[0]}; kept {kept.usd}")

    def reject(self, row: str, reason: str) -> None:
        """Counts a row that is no price of a GPU node."""
        if len(self.rejected) < MOST_REJECTED:
            self.rejected.append(RejectedRow(row[:200], reason[:200]))
        else:
            self.unlisted += 1

    def all_rejected(self) -> tuple[RejectedRow, ...]:
        """Every rejected row.

        Rows of other products, and rows beyond the list's limit, are summed up in one row each.
        """
        counted = (
            (self.others, "neither a GPU nor core, RAM or local SSD of a GPU machine"),
            (self.unlisted, f"no prices of ours either, past the first {MOST_REJECTED} that are named"),
        )
        rest = (RejectedRow(f"{count} SKUs", reason) for count, reason in counted if count)
        return (*self.rejected, *rest)


def families() -> Mapping[str, Mapping[str, Any]]:
    """Words of the price list by machine type without its size."""
    found: Mapping[str, Mapping[str, Any]] = load_provider_facts(PROVIDER).search["families"]
    return found


def parse_catalogue(pages: Iterable[bytes]) -> Rates:
    """Prices of every page; PayloadUnreadable for one without a list of SKUs."""
    rates = Rates()
    for page in pages:
        rates.feed(page)
    return rates


@cache
def _words() -> tuple[frozenset[str], frozenset[str]]:
    """The words of GPUs and disks, and of families whose core and memory have a price."""
    known = families().values()
    gpus = frozenset(word for family in known for word in family["gpu"])
    disks = load_provider_facts(PROVIDER).search["disk"]["sku"].values()
    return gpus | {*disks, _SSD}, frozenset(family["vm"] for family in known if "vm" in family)


def _is_of_other_things(row: Any) -> bool:
    """Whether a SKU certainly prices no part of a GPU machine, which holds for most of the list."""
    if not isinstance(row, dict) or not isinstance(row.get("description"), str):
        return False
    category = row.get("category")
    group = category.get("resourceGroup") if isinstance(category, dict) else ""
    return group != "GPU" and _part(row["description"]) is None


def _part(description: str) -> str | None:
    """The part that a SKU prices, without mode and place; None for other SKUs."""
    words, vms = _words()
    plain = description.removeprefix("Commitment v1: ")
    plain = _MARKS.sub("", _PLACE.sub("", plain)).strip()
    plain = _MARKS.sub("", plain)
    if plain in words:
        return plain
    found = _VM_PART.fullmatch(plain)
    if found is None or found["family"] not in vms:
        return None
    return f"{found['family']} {found['part']}"


def _mode(sku: _Sku) -> Mode:
    usage, text = sku.category.usageType, sku.description
    if usage.startswith("Commit") or text.startswith("Commitment"):
        raise RowRejected("priced under a commitment of years")
    if "Calendar Mode" in text:
        return Mode.CALENDAR
    if text.startswith("Reserved "):
        raise RowRejected("reserved under a commitment: no price of its own")
    if "DWS " in text:
        return Mode.FLEX
    if "Spot Preemptible" in text or usage == "Preemptible":
        return Mode.SPOT
    if usage == "OnDemand":
        return Mode.ON_DEMAND
    raise RowRejected(f"usage type is {usage[:40]!r}")


def _rate(sku: _Sku, unit: str) -> _Rate:
    if not sku.pricingInfo:
        raise RowRejected("no pricingInfo")
    latest = sku.pricingInfo[-1]
    expression = latest.pricingExpression
    if expression.usageUnit != unit:
        raise RowRejected(f"priced per {expression.usageUnit[:20]!r}, not per {unit}")
    if not expression.tieredRates:
        raise RowRejected("no tieredRates")
    money = max(expression.tieredRates, key=lambda tier: tier.startUsageAmount).unitPrice
    if money.currencyCode != "USD":
        raise RowRejected(f"currency is {money.currencyCode[:10]!r}, not USD")
    usd = Decimal(money.units) + Decimal(money.nanos) / 1_000_000_000
    hours = HOURS_PER_MONTH if unit.endswith(".mo") else 1
    return _Rate(require_price(usd) / hours, latest.effectiveTime)


ROWS = Rows(SOURCE, "skus[]", _Sku)
