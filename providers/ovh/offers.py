"""OVHcloud's catalogue and flavors, read as offers (facts of the wire: the package)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from pydantic import Field

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.exchange import Exchange
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, RejectedRow, Stock, StockLevel, Tier
from broker.domain.market.sku import Form, Sku
from broker.provider_facts import ProviderFacts, load_provider_facts
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
    require_gpus,
    require_price,
    slug,
    source_with_rate,
    usd_of,
)
from providers.rows import gpu_node
from providers.schema import Rows
from providers.spec import NamedPayload

NAME = "ovh"
ANY_REGION = "any"
PRICE_UNIT = Decimal(10) ** 8
INSTANCE = "publiccloud-instance"


class _Locale(PayloadModel):
    currencyCode: Name


class _Pricing(PayloadModel):
    price: Decimal | None = Field(default=None, le=10**15)
    interval: int = 1
    intervalUnit: str = ""


class _Size(PayloadModel):
    size: Amount | None = None


class _Cpu(PayloadModel):
    cores: Amount | None = None


class _Gpu(PayloadModel):
    model: str = ""
    number: GpuCount = 0
    memory: _Size = _Size()


class _Disk(PayloadModel):
    capacity: Amount = 0
    number: Amount = 1


class _Storage(PayloadModel):
    disks: tuple[_Disk, ...] = ()


class _Os(PayloadModel):
    family: str = "linux"


class _Technical(PayloadModel):
    cpu: _Cpu = _Cpu()
    gpu: _Gpu | None = None
    memory: _Size = _Size()
    storage: _Storage = _Storage()
    os: _Os = _Os()


class _Blobs(PayloadModel):
    technical: _Technical | None = None


class _Plan(PayloadModel):
    """An addon of the catalogue that is an instance."""

    planCode: Name
    invoiceName: Name
    pricings: tuple[_Pricing, ...] = ()
    blobs: _Blobs | None = None


class _PlanCodes(PayloadModel):
    hourly: str | None = None


class _Flavor(PayloadModel):
    """A row of ``GET /cloud/project/{id}/flavor``."""

    id: Name
    name: Name
    region: Name
    available: bool = False
    planCodes: _PlanCodes | None = None


_Flavors = Mapping[str, Sequence[_Flavor]]
"""Flavors by hourly plan."""


def parse_offers(catalogue: bytes, flavors: bytes | None, observed_at: datetime) -> OfferBatch:
    """Offers of plans in the regions of their flavors; without flavors, prices only, in region ``any``."""
    facts = load_provider_facts(NAME)
    body = as_dict(NAME, decode_json(NAME, catalogue), "the catalogue")
    currency = as_payload(NAME, body.get("locale"), _Locale).currencyCode
    addons = as_list(NAME, body.get("addons"), "addons")
    rows = [(_row_name(row), row) for row in addons if _is_instance(row)]
    rejected: list[RejectedRow] = []
    places = None if flavors is None else _places(flavors, {name for name, _ in rows}, rejected)
    reader = _Reader(facts, currency, places, observed_at)
    batch = collect(rows, lambda row: reader.offers_of(_Plan.model_validate(row)))
    return OfferBatch(batch.offers, (*batch.rejected, *rejected))


def _is_instance(row: Any) -> bool:
    return not isinstance(row, dict) or str(row.get("product", INSTANCE)).startswith(INSTANCE)


def _row_name(row: Any) -> str:
    return str(row.get("planCode")) if isinstance(row, dict) else "row that is no object"


def _places(payload: bytes, plans: set[str], rejected: list[RejectedRow]) -> _Flavors:
    """Flavors by their hourly plan; a flavor without a priced plan is rejected by name."""
    found: dict[str, list[_Flavor]] = {}
    for row in as_list(NAME, decode_json(NAME, payload), "flavors"):
        try:
            flavor = _Flavor.model_validate(row)
        except ValueError:
            rejected.append(RejectedRow(f"flavor {str(row)[:80]}", "the row lacks an id, a name or a region"))
            continue
        hourly = flavor.planCodes.hourly if flavor.planCodes else None
        if hourly in plans and hourly is not None:
            found.setdefault(hourly, []).append(flavor)
        else:
            reason = "no plan by the hour" if hourly is None else f"no plan {hourly[:60]!r} in the catalogue"
            rejected.append(RejectedRow(f"{flavor.name} in {flavor.region}", reason))
    return found


@dataclass(frozen=True, slots=True)
class _Price:
    """A price as quoted (hundred-millionths), in dollars, and how it was converted."""

    units: Decimal
    usd: Decimal
    exchange: Exchange | None


class _Reader:
    """What the reader of one poll's plans needs."""

    def __init__(
        self, facts: ProviderFacts, currency: str, places: _Flavors | None, observed_at: datetime
    ) -> None:
        self._facts, self._currency = facts, currency
        self._places, self._observed_at = places, observed_at

    def offers_of(self, plan: _Plan) -> Iterator[Offer | RejectedRow]:
        """One offer per region."""
        technical = plan.blobs.technical if plan.blobs else None
        if technical is None or technical.gpu is None:
            raise RowRejected("no GPU")
        sku = _sku(plan, technical, technical.gpu, self._facts)
        if technical.os.family != "linux":
            raise RowRejected(f"sold with {technical.os.family[:40]}")
        units = _hourly(plan)
        amount = require_price(units / PRICE_UNIT)
        usd, exchange = usd_of(amount, self._currency, self._observed_at.date(), is_billed=True)
        price = _Price(units, require_price(usd), exchange)
        if self._places is None:
            yield self._offer(plan, sku, price, None)
            return
        flavors = self._places.get(plan.planCode, ())
        if not flavors:
            raise RowRejected("in no region of the project")
        for flavor in flavors:
            if flavor.available:
                yield self._offer(plan, sku, price, flavor)
            else:
                yield RejectedRow(f"{flavor.name} in {flavor.region}", "sold out")

    def _offer(self, plan: _Plan, sku: Sku, price: _Price, flavor: _Flavor | None) -> Offer:
        region = flavor.region if flavor else ANY_REGION
        call = "GET /order/catalog/public/cloud"
        return Offer(
            offer_id=f"{NAME}/{slug(region)}/{slug(plan.invoiceName)}/{Tier.ON_DEMAND}",
            provider=NAME,
            sku=sku,
            region=region,
            country=self._facts.country_of(region),
            tier=Tier.ON_DEMAND,
            price_usd_per_node_hour=price.usd,
            observed_at=self._observed_at,
            source=source_with_rate(call, self._currency, price.exchange),
            native=NativePrice(
                price.units, self._currency, "hundred-millionths per instance-hour", price.exchange
            ),
            stock=Stock(StockLevel.SOME if flavor else StockLevel.UNKNOWN),
            billing_increment_s=self._facts.billed.increment_s,
            compliance=self._facts.compliance,
            reference={"flavor_id": flavor.id if flavor else "", "region": flavor.region if flavor else ""},
        )


def _hourly(plan: _Plan) -> Decimal:
    hourly = [each.price for each in plan.pricings if (each.intervalUnit, each.interval) == ("hour", 1)]
    if not hourly:
        raise RowRejected("not priced by the hour")
    if hourly[0] is None:
        raise RowRejected("price is null")
    return hourly[0]


def _sku(plan: _Plan, technical: _Technical, gpu: _Gpu, facts: ProviderFacts) -> Sku:
    count = require_gpus(gpu.number)
    name = _card(gpu, count, facts)
    disk_gb = sum(disk.capacity * disk.number for disk in technical.storage.disks)
    return gpu_node(
        plan.invoiceName,
        name,
        count,
        Form.VM,
        vcpus=technical.cpu.cores,
        memory_gb=technical.memory.size,
        disk_gb=disk_gb or None,
    )


def _card(gpu: _Gpu, count: int, facts: ProviderFacts) -> str:
    """The card, by the memory of one GPU or, if that does not fit, of all GPUs."""
    stated = gpu.memory.size
    try:
        return canonical_gpu(facts, gpu.model, stated)
    except RowRejected:
        if stated is None or count == 1:
            raise
    return canonical_gpu(facts, gpu.model, stated / count)


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded answers: the flavors are told by the word in the file's name."""
    flavors = next((body for name, body in payloads if "flavor" in name), None)
    catalogue = next((body for name, body in payloads if "flavor" not in name), None)
    if catalogue is None:
        raise PayloadUnreadable(NAME, "no catalogue among the payloads")
    return parse_offers(catalogue, flavors, observed_at)


ROWS = (
    Rows("GET /v1/order/catalog/public/cloud", "addons[]", _Plan),
    Rows("GET /v1/cloud/project/{id}/flavor", "[]", _Flavor),
)
