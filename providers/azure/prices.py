"""Meters of the Retail Prices API, and the offers in them (facts of the wire: the package's docstring)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Any

from pydantic import AwareDatetime, ValidationError

from broker.catalogue import load_gpus
from broker.domain.market.offer import (
    NativePrice,
    Offer,
    OfferBatch,
    RejectedRow,
    Stock,
    StockLevel,
    Tier,
    WindowTerms,
)
from broker.domain.market.sku import Sku
from broker.provider_facts import NodeFacts, ProviderFacts, infer_intra_node, load_provider_facts
from providers.azure.windows import DAY_HOURS, PROVIDER, block_terms, future_terms
from providers.payload import (
    PayloadModel,
    RowRejected,
    address_usd_per_hour,
    as_dict,
    as_list,
    collect,
    decode_json,
    require_price,
    slug,
    source_with_rate,
    usd_of,
)
from providers.schema import Rows

SOURCE = "GET /api/retail/prices"
NO_BLOCK_PRICE = "at the size's pay-as-you-go rate; Azure lists no price of its own for it"
_HOUR = "1 Hour"


class Hold(StrEnum):
    """How an offer is bought: the kind of resource that an order creates."""

    SCALE_SET = "scale_set"
    TARGETED = "targeted"
    BLOCK = "block"
    FUTURE = "future"


class _Meter(PayloadModel):
    """A row of ``Items``.

    ``retailPrice``: of one VM (not of its GPUs) per hour.
    """

    currencyCode: str = "USD"
    retailPrice: Decimal | None = None
    tierMinimumUnits: Decimal = Decimal(0)
    armRegionName: str = ""
    armSkuName: str = ""
    productName: str | None = None
    skuName: str = ""
    meterName: str = ""
    unitOfMeasure: str = ""
    type: str = ""
    effectiveStartDate: AwareDatetime | None = None
    effectiveEndDate: AwareDatetime | None = None
    reservationTerm: str | None = None


@dataclass(frozen=True, slots=True)
class PricePage:
    """The rows of one answer, and the query of the next one (None: the last)."""

    rows: tuple[Any, ...]
    next_link: str | None


def read_page(payload: bytes) -> PricePage:
    """One page of meters; raises PayloadUnreadable."""
    envelope = as_dict(PROVIDER, decode_json(PROVIDER, payload), "the answer")
    rows = as_list(PROVIDER, envelope.get("Items"), "Items")
    link = envelope.get("NextPageLink")
    return PricePage(tuple(rows), link if isinstance(link, str) and link else None)


def parse_rows(rows: Iterable[Any], observed_at: datetime) -> OfferBatch:
    """Offers of the rows of all pages; meters that say the same of the same size are reported once.

    Of several prices in force the newest stands, in whatever order and on whatever pages they come: the older
    ones are read after it, and rejected.
    """
    facts = load_provider_facts(PROVIDER)
    newest: dict[str, datetime] = {}

    def offers_of(row: Any) -> Iterator[Offer | RejectedRow]:
        since = _since(row)
        for item in _offers_of(row, facts, observed_at):
            if isinstance(item, Offer) and since < newest.setdefault(item.offer_id, since):
                kept = newest[item.offer_id]
                yield RejectedRow(
                    f"{_row_name(row)} {item.region}", f"older than the price of {kept:%Y-%m-%d}"
                )
            else:
                yield item

    newest_first = sorted(rows, key=_since, reverse=True)
    batch = collect(((_row_name(row), row) for row in newest_first), offers_of)
    return OfferBatch(batch.offers, tuple(dict.fromkeys(batch.rejected)))


def _since(row: Any) -> datetime:
    """When the row's price took effect; the earliest time if the row does not say."""
    try:
        since = _Meter.model_validate(row).effectiveStartDate
    except ValidationError:
        since = None
    return since or datetime.min.replace(tzinfo=UTC)


def _row_name(row: Any) -> str:
    if not isinstance(row, dict):
        return "row that is no object"
    parts = [str(row.get(name) or "") for name in ("armSkuName", "productName", "skuName")]
    return " / ".join(part for part in parts if part) or "row without names"


def _offers_of(row: Any, facts: ProviderFacts, observed_at: datetime) -> Iterator[Offer | RejectedRow]:
    meter = _Meter.model_validate(row)
    _require_pay_as_you_go_linux(meter)
    _require_in_force(meter, observed_at)
    region = meter.armRegionName.lower().replace(" ", "")
    if not region:
        raise RowRejected("no region")
    sku = sku_of(meter.armSkuName)
    named = f"{meter.armSkuName} {region}"
    tier = Tier.SPOT if _says(meter, " spot") else Tier.ON_DEMAND
    try:
        offer = _offer(meter, sku, tier, region, facts, observed_at)
    except RowRejected as error:
        yield RejectedRow(f"{named} {tier}", str(error))
        return
    yield from held(offer, _documented_types(sku.name, facts), observed_at)


def _documented_types(size: str, facts: ProviderFacts) -> frozenset[str]:
    known = {"Targeted": facts.search["targeted"], "Block": facts.search["block"]}
    return frozenset(kind for kind, sizes in known.items() if size in sizes)


def held(offer: Offer, reservation_types: frozenset[str], observed_at: datetime) -> Iterator[Offer]:
    """The offer with the kind of resource that its size allows, and the windows sold of that size."""
    if offer.tier is not Tier.ON_DEMAND:
        yield _as(offer, Hold.SCALE_SET)
        return
    yield _as(offer, Hold.TARGETED if "Targeted" in reservation_types else Hold.SCALE_SET)
    if "Block" in reservation_types:
        source = f"{offer.source}; {NO_BLOCK_PRICE}"
        yield _window(_as(offer, Hold.BLOCK), Hold.BLOCK, block_terms(observed_at), source)
    if "Targeted" in reservation_types:
        yield _window(_as(offer, Hold.FUTURE), Hold.FUTURE, future_terms(), offer.source)


def _as(offer: Offer, hold: Hold) -> Offer:
    """The offer held as ``hold``: VMs of a scale set have public addresses, which are charged beside them."""
    had, has = (one == Hold.SCALE_SET for one in (offer.reference.get("hold"), hold))
    usd = address_usd_per_hour(offer, load_provider_facts(PROVIDER)) * (has - had)
    return replace(offer.dearer(usd) if usd else offer, reference={**offer.reference, "hold": hold})


def _window(offer: Offer, hold: Hold, terms: WindowTerms, source: str) -> Offer:
    return replace(
        offer,
        offer_id=f"{PROVIDER}/{slug(offer.region)}/{offer.sku.name}/{hold}",
        tier=Tier.WINDOW,
        source=source,
        min_hours=DAY_HOURS,
        window=terms,
    )


def _require_pay_as_you_go_linux(meter: _Meter) -> None:
    if meter.type != "Consumption":
        term = f" for {meter.reservationTerm}" if meter.reservationTerm else ""
        raise RowRejected(f"price of type {meter.type[:40]!r}{term}, not by the hour used")
    if not meter.productName:
        raise RowRejected("no product name, which alone tells Linux from Windows")
    if "Windows" in meter.productName:
        raise RowRejected("Windows, whose licence is in the price")
    if "CloudServices" in meter.productName.replace(" ", ""):
        raise RowRejected("Cloud Services, not virtual machines")
    if _says(meter, "low priority"):
        raise RowRejected("Low Priority, which only Azure Batch runs")
    if meter.unitOfMeasure != _HOUR:
        raise RowRejected(f"price per {meter.unitOfMeasure[:20]!r}, not per hour")
    if meter.tierMinimumUnits != 0:
        raise RowRejected("price of a volume tier")


def _require_in_force(meter: _Meter, at: datetime) -> None:
    since, until = meter.effectiveStartDate, meter.effectiveEndDate
    if since is not None and since > at:
        raise RowRejected(f"the price only holds from {since:%Y-%m-%d} on")
    if until is not None and until <= at:
        raise RowRejected(f"the price only held until {until:%Y-%m-%d}")


def _says(meter: _Meter, word: str) -> bool:
    return word in f" {meter.skuName} {meter.meterName}".lower()


@cache
def _known_sizes() -> dict[str, tuple[str, NodeFacts]]:
    """Sizes by lower-case name, because the spelling differs between Azure's APIs."""
    return {name.lower(): (name, node) for name, node in load_provider_facts(PROVIDER).nodes.items()}


def sku_of(size: str) -> Sku:
    """The SKU of a VM size; RowRejected when the configuration does not know its GPU."""
    if size.lower() in {name.lower() for name in load_provider_facts(PROVIDER).search["fractional"]}:
        raise RowRejected("a fraction of a GPU")
    name, node = _known_sizes().get(size.lower(), (size, NodeFacts()))
    if node.gpu is None or node.gpus_per_node is None:
        # Azure's sizes with accelerators all begin with N (size naming conventions).
        is_accelerated = size.lower().startswith("standard_n")
        raise RowRejected(f"unknown GPU size {size[:60]!r}" if is_accelerated else "no GPU")
    return Sku(
        name=name,
        gpu=node.gpu,
        gpus_per_node=node.gpus_per_node,
        gpu_memory_gb=load_gpus()[node.gpu].memory_gb,
        vcpus=node.vcpus,
        memory_gb=node.memory_gb,
        disk_gb=node.disk_gb,
        form=node.form,
        intra_node=node.intra_node or infer_intra_node(node.gpu, node.gpus_per_node),
        fabric=node.fabric,
    )


def _offer(
    meter: _Meter, sku: Sku, tier: Tier, region: str, facts: ProviderFacts, observed_at: datetime
) -> Offer:
    amount = require_price(meter.retailPrice, "retailPrice")
    usd, exchange = usd_of(amount, meter.currencyCode, observed_at.date(), is_billed=True)
    return Offer(
        offer_id=f"{PROVIDER}/{slug(region)}/{sku.name}/{tier}",
        provider=PROVIDER,
        sku=sku,
        region=region,
        country=facts.country_of(region),
        tier=tier,
        price_usd_per_node_hour=usd,
        observed_at=observed_at,
        source=source_with_rate(SOURCE, meter.currencyCode, exchange),
        native=NativePrice(amount, meter.currencyCode.upper(), "VM-hour", exchange),
        billing_increment_s=facts.billed.increment_s,
        stock=Stock(StockLevel.UNKNOWN),
        compliance=facts.compliance,
        reference={"location": region, "size": sku.name},
    )


ROWS = Rows(f"{SOURCE} (Retail Prices)", "Items[]", _Meter, at_times=("effectiveEndDate", "reservationTerm"))
