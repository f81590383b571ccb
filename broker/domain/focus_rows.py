"""Actual charges as FOCUS rows: one bill, said in the specification's columns.

Usage is one row a unit and hour. What is bought ahead (windows, minimum terms) is a Purchase, which carries
the money, and hourly Committed rows, which carry its amortised cost up to now, Used or Unused. Bills are
whole cents, so ``BilledCost`` and ``EffectiveCost`` are; ``ListCost`` and ``ContractedCost`` are price times
quantity and not rounded. Hours are cut from running totals: a later export says the same of a past hour.
What a seller gives back for a window that was left early is a Credit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.billing import billed_seconds, holding_cost_usd, spread_by_day
from broker.domain.charging import credits_of
from broker.domain.focus_columns import Cell
from broker.domain.money import CENT, ZERO
from broker.domain.offer import Offer, Tier
from broker.domain.reservation import Reservation
from broker.domain.sku import Form
from broker.domain.spend import ChargeBasis
from broker.domain.spreading import Spread, micros
from broker.domain.stretches import (
    SHORTEST,
    Stretch,
    cents_until,
    parts_of,
    rounded_stretches,
    used_part,
)
from broker.domain.window import Segment, Window

HOUR = timedelta(hours=1)
GPU_HOURS = "GPU Hours"
KEPT = Decimal("1e-12")
_SERVICES: Mapping[Form | None, tuple[str, str]] = {
    Form.VM: ("GPU Virtual Machines", "Virtual Machines"),
    Form.CONTAINER: ("GPU Containers", "Containers"),
}
_ANY_SERVICE = ("GPU Nodes", "Other (Compute)")

_COSTS = ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "PricingCurrencyEffectiveCost")
_PRICED = (
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyListUnitPrice",
    "PricingUnit",
    "SkuPriceDetails",
    "SkuPriceId",
)

Row = dict[str, Cell]


def focus_rows(reservations: Sequence[Reservation], now: datetime, install_id: str) -> Iterator[Row]:
    """Rows of every actual charge of ``reservations`` up to ``now``, with the columns of both versions.

    ``reservations`` hold all of a plan or none of it. The sum of ``BilledCost`` is that of the ledger's
    actual charges, exactly; so is the sum of ``EffectiveCost`` once what was bought ahead is over.
    """
    for stretch, usd in rounded_stretches(reservations, now):
        lot = _Lot.of(stretch)
        base = _base(stretch, lot, install_id)
        terms = stretch.reservation.offer.window
        if stretch.owed and terms is not None and not terms.waits:
            yield from _window_rows(stretch, usd, now, lot, base)
        elif terms is None and stretch.reservation.offer.tier is Tier.COMMITTED:
            yield from _committed_rows(stretch, usd, now, lot, base)
        else:
            yield from _usage_rows(stretch, usd, now, lot, base)
    for reservation in reservations:
        yield from _leaving_rows(reservation, install_id)


@dataclass(frozen=True, slots=True)
class _Lot:
    """GPUs of a stretch, USD per GPU-hour that is priced, and GPU-hours that are priced beyond those held."""

    gpus: int
    list_price: Decimal
    contracted_price: Decimal
    rounded_up: Decimal

    @classmethod
    def of(cls, stretch: Stretch) -> _Lot:
        """Prices with one-off fees spread over the hours that they buy."""
        offer, segment = stretch.reservation.offer, stretch.segment
        gpus = segment.nodes * offer.sku.gpus_per_node
        held = _hours(segment.window)
        priced = held if offer.is_sold_whole else Decimal(billed_seconds(offer, segment.window)) / 3600
        beyond = gpus * max(priced - held, ZERO)
        exact_list = holding_cost_usd(offer.at_list_price(), (segment,))
        return cls(gpus, _kept(exact_list / priced / gpus), _kept(stretch.usd / priced / gpus), beyond)

    def held(self, window: Window) -> Decimal:
        """GPU-hours held over ``window``."""
        return _kept(self.gpus * _hours(window))

    def priced(self, window: Window, *, ended: bool) -> Decimal:
        """GPU-hours that ``window`` is priced at; at the end (``ended``) with what is rounded up."""
        return _kept(self.gpus * _hours(window) + (self.rounded_up if ended else ZERO))


def _usage_rows(stretch: Stretch, usd: Decimal, now: datetime, lot: _Lot, base: Row) -> Iterator[Row]:
    category = "Dynamic" if stretch.reservation.offer.tier is Tier.SPOT else "Standard"
    for segment, basis, part_usd in parts_of(stretch, usd, now):
        if basis is not ChargeBasis.ACTUAL:
            continue
        for hour, cost_usd in _hours_of(stretch, segment, part_usd, usd):
            ended = hour.end == stretch.segment.end
            yield {
                **base,
                **_period(hour),
                **_cost(lot, lot.priced(hour, ended=ended), cost_usd, cost_usd),
                "ChargeCategory": "Usage",
                "ChargeFrequency": "Usage-Based",
                "PricingCategory": category,
                "ConsumedQuantity": lot.held(hour),
                "ConsumedUnit": GPU_HOURS,
            }


def _hours_of(
    stretch: Stretch, segment: Segment, part_usd: Decimal, usd: Decimal
) -> Iterator[tuple[Window, Decimal]]:
    """The hours of one of ``parts_of(stretch, usd, …)`` with their money, which sums to that of each day."""
    if stretch.reservation.offer.is_sold_whole:
        for day, day_usd in spread_by_day(part_usd, (segment,)):
            for hour in _pieces(day, ()):
                yield hour, Spread(day_usd, day_usd, day).of(hour)
        return
    before = cents_until(stretch, usd, segment.start)
    for hour in _pieces(segment.window, ()):
        until = cents_until(stretch, usd, hour.end)
        yield hour, (until - before) * CENT
        before = until


def _window_rows(stretch: Stretch, usd: Decimal, now: datetime, lot: _Lot, base: Row) -> Iterator[Row]:
    row, term = stretch.reservation, stretch.segment.window
    bought_at = stretch.unit.ordered_at or row.created_at
    begin = bought_at.replace(minute=0, second=0, microsecond=0)
    bought = {**base, **_commitment(stretch, "Forward window")}
    yield {
        **bought,
        **_purchase(lot, lot.held(term), usd, term),
        **_period(Window(begin, begin + HOUR)),
        "ChargeFrequency": "One-Time",
    }
    yield from _covered(stretch, Spread(usd, usd, term), used_part(stretch), now, lot, bought)


def _leaving_rows(reservation: Reservation, install_id: str) -> Iterator[Row]:
    """What a seller gave back for a window that was left early (Credit), or charged for it (Adjustment)."""
    for unit, left_at, usd in credits_of(reservation):
        segment = Segment(reservation.start, reservation.end or left_at + SHORTEST, unit.nodes)
        stretch = Stretch(reservation, unit, segment, abs(usd), owed=True)
        hour = left_at.replace(minute=0, second=0, microsecond=0)
        yield {
            **_base(stretch, _Lot.of(stretch), install_id),
            **dict.fromkeys(_PRICED),
            **_period(Window(hour, hour + HOUR)),
            **dict.fromkeys(_COSTS, -usd),
            "ChargeCategory": "Credit" if usd > 0 else "Adjustment",
            "ChargeDescription": f"{reservation.offer.sku.name} in {reservation.offer.region} left early",
            "ChargeFrequency": "One-Time",
            "ResourceId": reservation.reservation_id,
        }


def correction_row(
    reservation: Reservation, install_id: str, at: datetime, billed_usd: Decimal, effective_usd: Decimal
) -> Row:
    """What closed months came to differ by since, in the first hour of the month that is open at ``at``."""
    segment = Segment(reservation.start, reservation.ends_at or reservation.start + HOUR, reservation.nodes)
    stretch = Stretch(reservation, reservation.units[0], segment, abs(billed_usd), owed=True)
    return {
        **_base(stretch, _Lot.of(stretch), install_id),
        **dict.fromkeys(_PRICED),
        **_period(Window(at, at + HOUR)),
        **dict.fromkeys(_COSTS, billed_usd),
        "EffectiveCost": effective_usd,
        "PricingCurrencyEffectiveCost": effective_usd,
        "ChargeCategory": "Adjustment",
        "ChargeClass": "Correction",
        "ChargeDescription": f"{reservation.offer.sku.name} in {reservation.offer.region} before {at:%Y-%m}",
        "ChargeFrequency": "One-Time",
        "ResourceId": reservation.reservation_id,
    }


def _committed_rows(stretch: Stretch, usd: Decimal, now: datetime, lot: _Lot, base: Row) -> Iterator[Row]:
    """A minimum term: a Purchase a month of what is owed so far, and its hours."""
    bought = {**base, **_commitment(stretch, "Reserved")}
    for segment, basis, part_usd in parts_of(stretch, usd, now):
        if basis is not ChargeBasis.ACTUAL:
            continue
        end = segment.end + HOUR * float(lot.rounded_up / lot.gpus)
        term = Window(segment.start, end if segment.end == stretch.segment.end else segment.end)
        plain = _Lot(lot.gpus, lot.list_price, lot.contracted_price, ZERO)
        whole_s = billed_seconds(stretch.reservation.offer, stretch.segment.window)
        exact_usd = stretch.usd * (micros(term.duration) / Decimal(1_000_000)) / whole_s
        spread = Spread(part_usd, exact_usd, term)
        months = tuple(_months(segment.window))
        for month in months:
            piece = month if month is not months[-1] else Window(month.start, term.end)
            yield {
                **bought,
                **_purchase(plain, plain.held(piece), spread.of(piece), piece),
                **_period(month),
                "ChargeFrequency": "Recurring",
            }
        yield from _covered(stretch, spread, segment.window, now, plain, bought)


def _covered(
    stretch: Stretch,
    spread: Spread,
    used: Window | None,
    now: datetime,
    lot: _Lot,
    bought: Row,
) -> Iterator[Row]:
    """The hours of what was bought ahead, up to ``now``."""
    term = spread.term
    past = term.intersection(Window(term.start, now)) if now > term.start else None
    if past is None:
        return
    edges = () if used is None else (used.start, used.end)
    for hour in _pieces(past, edges):
        in_use = used is not None and used.contains(hour.start)
        quantity, status = lot.held(hour), "Used" if in_use else "Unused"
        resource = {} if in_use else {"ResourceId": stretch.reservation.reservation_id}
        yield {
            **bought,
            **resource,
            **_period(hour),
            **_cost(lot, quantity, ZERO, spread.of(hour)),
            "ChargeCategory": "Usage",
            "ChargeFrequency": "Usage-Based",
            "PricingCategory": "Committed",
            "ConsumedQuantity": quantity if in_use else None,
            "ConsumedUnit": GPU_HOURS if in_use else None,
            "CommitmentDiscountQuantity": quantity,
            "CommitmentDiscountStatus": status,
            "CapacityReservationStatus": status,
        }


def _purchase(lot: _Lot, quantity: Decimal, usd: Decimal, term: Window) -> Row:
    return {
        **_cost(lot, quantity, usd, ZERO),
        "ChargeCategory": "Purchase",
        "PricingCategory": "Standard",
        "CommitmentDiscountQuantity": quantity,
        "x_TermStart": term.start,
        "x_TermEnd": term.end,
    }


def _commitment(stretch: Stretch, type_: str) -> Row:
    offer = stretch.reservation.offer
    name = stretch.unit.reference or stretch.unit.tag
    return {
        "CapacityReservationId": name,
        "CommitmentDiscountCategory": "Usage",
        "CommitmentDiscountId": name,
        "CommitmentDiscountName": f"{offer.sku.name} in {offer.region}",
        "CommitmentDiscountType": type_,
        "CommitmentDiscountUnit": GPU_HOURS,
    }


def _cost(lot: _Lot, quantity: Decimal, billed_usd: Decimal, effective_usd: Decimal) -> Row:
    return {
        "BilledCost": billed_usd,
        "EffectiveCost": effective_usd,
        "ListCost": _kept(lot.list_price * quantity),
        "ContractedCost": _kept(lot.contracted_price * quantity),
        "PricingQuantity": quantity,
        "PricingCurrencyEffectiveCost": effective_usd,
    }


def _period(window: Window) -> Row:
    month = window.start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return {
        "ChargePeriodStart": window.start,
        "ChargePeriodEnd": window.end,
        "BillingPeriodStart": month,
        "BillingPeriodEnd": _next_month(month),
    }


def _base(stretch: Stretch, lot: _Lot, install_id: str) -> Row:
    """What every row of a stretch says."""
    row, unit = stretch.reservation, stretch.unit
    offer, workload = row.offer, row.workload or "-"
    service, subcategory = _SERVICES.get(offer.sku.form, _ANY_SERVICE)
    nodes = f"{unit.nodes} node{'' if unit.nodes == 1 else 's'}"
    tags = {"team": row.team, "workload": workload, "broker/tier": str(offer.tier)}
    return {
        "AvailabilityZone": offer.zone,
        "BillingAccountId": f"{offer.provider}/{install_id}",
        "BillingAccountName": f"{offer.provider} account of this broker",
        "BillingAccountType": "Billing Account",
        "BillingCurrency": "USD",
        "ChargeDescription": f"{nodes} of {offer.sku.name} in {offer.region} for {workload}",
        "ContractedUnitPrice": lot.contracted_price,
        "HostProviderName": offer.seller or offer.provider,
        "InvoiceIssuerName": offer.provider,
        "ListUnitPrice": lot.list_price,
        "PricingCurrency": "USD",
        "PricingCurrencyContractedUnitPrice": lot.contracted_price,
        "PricingCurrencyListUnitPrice": lot.list_price,
        "PricingUnit": GPU_HOURS,
        "ProviderName": offer.provider,
        "PublisherName": offer.seller or offer.provider,
        "RegionId": offer.region,
        "RegionName": offer.region,
        "ResourceId": unit.reference or unit.tag,
        "ResourceName": unit.tag,
        "ResourceType": "GPU Node",
        "ServiceCategory": "Compute",
        "ServiceName": service,
        "ServiceProviderName": offer.provider,
        "ServiceSubcategory": subcategory,
        "SkuId": f"{offer.provider}/{offer.sku.name}",
        "SkuMeter": "GPU Time",
        "SkuPriceDetails": _price_details(offer),
        "SkuPriceId": offer.offer_id,
        "SubAccountId": row.team,
        "SubAccountName": row.team,
        "SubAccountType": "Team",
        "Tags": _json(tags),
        "x_AcceleratorType": offer.sku.gpu,
        "x_GpuCount": Decimal(lot.gpus),
        "x_PlacementId": f"{workload}@{offer.offer_id}",
        "x_PlanId": row.plan_id,
        "x_PriceSnapshotId": f"{offer.offer_id}@{offer.observed_at:%Y-%m-%dT%H:%M:%SZ}",
        "x_ReservationId": row.reservation_id,
    }


def _price_details(offer: Offer) -> str:
    sku = offer.sku
    details: dict[str, object] = {"GpuCount": sku.gpus_per_node, "InstanceType": sku.name}
    if sku.vcpus is not None:
        details["CoreCount"] = sku.vcpus
    if sku.memory_gb is not None:
        details["MemorySize"] = sku.memory_gb
    native = {"Amount": str(offer.native.amount), "Currency": offer.native.currency, "Per": offer.native.per}
    return _json({**details, **{f"x_Native{name}": value for name, value in native.items()}})


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _pieces(window: Window, edges: Iterable[datetime]) -> Iterator[Window]:
    """``window`` cut at every UTC hour and at those of ``edges`` that lie in it."""
    cuts = sorted(edge for edge in edges if window.start < edge < window.end)
    start = window.start
    while start < window.end:
        full = start.replace(minute=0, second=0, microsecond=0) + HOUR
        while cuts and cuts[0] <= start:
            cuts.pop(0)
        end = min(full, window.end, *cuts[:1])
        yield Window(start, end)
        start = end


def _months(window: Window) -> Iterator[Window]:
    start = window.start
    while start < window.end:
        month = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = min(_next_month(month), window.end)
        yield Window(start, end)
        start = end


def _next_month(month: datetime) -> datetime:
    return (month + timedelta(days=32)).replace(day=1)


def _hours(window: Window) -> Decimal:
    return Decimal(micros(window.duration)) / 3_600_000_000


def _kept(value: Decimal) -> Decimal:
    return value.quantize(KEPT)
