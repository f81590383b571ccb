"""OCI's price list and capacity reports, and the offers in them (the wire: the package's docstring)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, RejectedRow, Stock, StockLevel, Tier
from broker.domain.market.sku import Sku
from broker.provider_facts import ProviderFacts, infer_intra_node, load_provider_facts
from providers.payload import (
    Name,
    PayloadModel,
    RowRejected,
    as_dict,
    as_list,
    as_payload,
    collect,
    decode_json,
    nominal_memory_gb,
    require_price,
)
from providers.schema import Rows
from providers.spec import NamedPayload

NAME = "oci"
ANY_REGION = "any"
SOURCE = "GET cetools/api/v1/products, POST /20160918/computeCapacityReports"
_AVAILABLE = "AVAILABLE"
_REFUSALS = {
    "OUT_OF_HOST_CAPACITY": "sold out",
    "HARDWARE_NOT_SUPPORTED": "not sold in this availability domain",
}
_DOMAIN = re.compile(r"[^:]*:(?P<place>.+)-AD-\d")
_GPU_HOUR, _GPU_CATEGORY = "GPU Per Hour", "Compute - GPU"


class _Amount(PayloadModel):
    model: str
    value: Decimal | None = None


class _Localization(PayloadModel):
    currencyCode: str
    prices: tuple[_Amount, ...]


class _Part(PayloadModel):
    """An item of the price list."""

    partNumber: Name
    displayName: str = ""
    currencyCodeLocalizations: tuple[_Localization, ...]


class _ShapeAvailability(PayloadModel):
    """One line of a capacity report, for a fault domain or for the whole availability domain."""

    instanceShape: Name
    availabilityStatus: str
    availableCount: int | None = None


class _Report(PayloadModel):
    availabilityDomain: Name
    shapeAvailabilities: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Prices:
    usd_per_gpu_hour: Mapping[str, Decimal]
    rejected: tuple[RejectedRow, ...]


def known_shapes() -> tuple[str, ...]:
    """Every shape with a known part number."""
    return tuple(shape for shapes in _parts().values() for shape in shapes)


def parse_offers(
    price_lists: Sequence[bytes], reports: Sequence[bytes] | None, observed_at: datetime
) -> OfferBatch:
    """Shapes at list price in every availability domain that has some now.

    ``reports`` None: prices only, in region ``any`` with unknown stock, not orderable.
    """
    prices = _prices(price_lists)
    if reports is None:
        rows = ((shape, shape) for shape in prices.usd_per_gpu_hour)
        batch = collect(rows, lambda shape: (_offer(shape, prices, None, Stock(), observed_at),))
    else:
        batch = collect(
            (row for body in reports for row in _report_rows(body)),
            lambda row: (_reported(row, prices, observed_at),),
        )
    return OfferBatch(batch.offers, (*prices.rejected, *batch.rejected))


def _prices(price_lists: Sequence[bytes]) -> _Prices:
    parts = [
        item
        for body in price_lists
        for item in as_list(
            NAME, as_dict(NAME, decode_json(NAME, body), "the price list").get("items"), "items"
        )
    ]
    gpu_parts = [item for item in parts if not isinstance(item, dict) or _is_gpu_hour(item)]
    found: dict[str, Decimal] = {}
    rejected: list[RejectedRow] = []
    for item in gpu_parts:
        name = _part_name(item)
        try:
            found |= _priced_shapes(as_payload(NAME, item, _Part))
        except RowRejected as error:
            rejected.append(RejectedRow(name, str(error)))
        except PayloadUnreadable as error:
            rejected.append(RejectedRow(name, str(error).removeprefix(f"{NAME}: ")))
    others = len(parts) - len(gpu_parts)
    if others:
        rejected.append(RejectedRow(f"price list: {others} parts", "not priced per GPU-hour"))
    return _Prices(found, tuple(rejected))


def _is_gpu_hour(item: Mapping[str, Any]) -> bool:
    category = str(item.get("serviceCategory", ""))
    return item.get("metricName") == _GPU_HOUR and category.startswith(_GPU_CATEGORY)


def _part_name(item: Any) -> str:
    if not isinstance(item, dict):
        return "part that is no object"
    return f"{item.get('partNumber', 'part without number')} {item.get('displayName', '')}"[:120].strip()


def _priced_shapes(part: _Part) -> dict[str, Decimal]:
    shapes = _parts().get(part.partNumber)
    if shapes is None:
        raise RowRejected("no configured shape has this part number")
    amounts = [
        amount.value
        for place in part.currencyCodeLocalizations
        if place.currencyCode == "USD"
        for amount in place.prices
        if amount.model == "PAY_AS_YOU_GO"
    ]
    if len(amounts) != 1:
        raise RowRejected(f"{len(amounts)} pay-as-you-go prices in USD")
    return dict.fromkeys(shapes, require_price(amounts[0]))


@cache
def _parts() -> Mapping[str, tuple[str, ...]]:
    """Shapes by part number, from ``config/providers/oci.toml``."""
    table: Mapping[str, Sequence[str]] = load_provider_facts(NAME).search.get("parts", {})
    return {part: tuple(shapes) for part, shapes in table.items()}


@dataclass(frozen=True, slots=True)
class _ReportRow:
    """All lines of one shape in one availability domain."""

    domain: str
    shape: str
    lines: tuple[Any, ...]


def _report_rows(body: bytes) -> Iterator[tuple[str, _ReportRow]]:
    report = as_payload(NAME, decode_json(NAME, body), _Report)
    lines: dict[str, list[Any]] = defaultdict(list)
    for line in report.shapeAvailabilities:
        shape = line.get("instanceShape") if isinstance(line, dict) else None
        lines[shape if isinstance(shape, str) else "row without a shape"].append(line)
    for shape, found in lines.items():
        name = f"{report.availabilityDomain} {shape}"
        yield name, _ReportRow(report.availabilityDomain, shape, tuple(found))


def _reported(row: _ReportRow, prices: _Prices, observed_at: datetime) -> Offer:
    lines = [_ShapeAvailability.model_validate(line) for line in row.lines]
    open_lines = [line for line in lines if line.availabilityStatus == _AVAILABLE]
    if not open_lines:
        status = lines[0].availabilityStatus
        raise RowRejected(_REFUSALS.get(status, f"availabilityStatus {status[:40]!r}"))
    counts = [line.availableCount for line in open_lines]
    nodes = None if None in counts else sum(count for count in counts if count is not None)
    if nodes is not None and nodes <= 0:
        raise RowRejected("sold out")
    stock = Stock(StockLevel.UNKNOWN, nodes)
    return _offer(row.shape, prices, row.domain, stock, observed_at)


def _offer(shape: str, prices: _Prices, domain: str | None, stock: Stock, observed_at: datetime) -> Offer:
    facts = load_provider_facts(NAME)
    usd = prices.usd_per_gpu_hour.get(shape)
    if usd is None:
        raise RowRejected("no price in the list")
    sku = _sku(shape, facts)
    region = ANY_REGION if domain is None else region_of(domain)
    place = region if domain is None else domain.partition(":")[2]
    return Offer(
        offer_id=f"{NAME}/{place}/{shape}/{Tier.ON_DEMAND}",
        provider=NAME,
        sku=sku,
        region=region,
        zone=domain,
        country=facts.country_of(region),
        tier=Tier.ON_DEMAND,
        price_usd_per_node_hour=usd * sku.gpus_per_node,
        observed_at=observed_at,
        source=SOURCE,
        native=NativePrice(usd, "USD", "GPU-hour"),
        stock=stock,
        billing_increment_s=facts.billed.increment_s,
        compliance=facts.compliance,
        reference={"availability_domain": domain or "", "shape": shape},
    )


@cache
def region_of(domain: str) -> str:
    """``us-chicago-1`` of ``Uocm:US-CHICAGO-1-AD-1``; RowRejected for another form."""
    found = _DOMAIN.fullmatch(domain)
    if found is None:
        raise RowRejected(f"not an availability domain: {domain[:60]!r}")
    place = found["place"]
    named: Mapping[str, str] = load_provider_facts(NAME).search.get("availability_domains", {})
    return named.get(place, place.lower())


def _sku(shape: str, facts: ProviderFacts) -> Sku:
    node = facts.nodes.get(shape)
    if node is None or node.gpu is None or node.gpus_per_node is None:
        raise RowRejected(f"unknown shape {shape[:60]!r}")
    return Sku(
        name=shape,
        gpu=node.gpu,
        gpus_per_node=node.gpus_per_node,
        gpu_memory_gb=nominal_memory_gb(node.gpu),
        vcpus=node.vcpus,
        memory_gb=node.memory_gb,
        form=node.form,
        intra_node=infer_intra_node(node.gpu, node.gpus_per_node),
        fabric=node.fabric,
    )


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded answers, told apart by content: price lists and capacity reports."""
    price_lists: list[bytes] = []
    reports: list[bytes] = []
    for name, body in payloads:
        read = as_dict(NAME, decode_json(NAME, body), name)
        (reports if "shapeAvailabilities" in read else price_lists).append(body)
    return parse_offers(price_lists, reports or None, observed_at)


ROWS = (
    Rows(
        "GET apexapps.oracle.com …/products/", "items[]", _Part, also_read=("metricName", "serviceCategory")
    ),
    Rows("POST /20160918/computeCapacityReports", "shapeAvailabilities[]", _ShapeAvailability),
)
