"""Actual charges as FOCUS rows.

Usage has one row per unit and hour, with the increments that begin in that hour. Capacity that is billed in
advance (windows, and blocks of more than an hour such as minimum terms and months) has a Purchase row with
the billed cost, and hourly Committed rows, Used or Unused, with the amortized cost up to now. The charge
period of a Purchase is its term, and its billing period that of the bill.
Costs are in the currency of the provider's invoice (``currencies``).
``BilledCost`` and ``EffectiveCost`` are whole cents, as bills are. ``ListCost`` and ``ContractedCost`` are
price times quantity and are not rounded. The cost of an hour comes from the same running totals as the cost
of a day, so later exports repeat the cost of a past hour. A refund or resale of
capacity that was left early is a Credit of the hour of its release. The hours that were given up are one
Unused row of that hour, so Used and Unused still sum to the Purchase. A Credit that exceeds their cost also
reduces the effective cost of the days before, each by a Credit of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.money import CENT, ZERO
from broker.domain.basics.window import Segment, Window
from broker.domain.focus.columns import Cell
from broker.domain.focus.currencies import billed_in, from_usd, in_its_currency, with_usd
from broker.domain.holding.reservation import Reservation
from broker.domain.market.billing import MICROS_PER_HOUR, billed_seconds, holding_cost_usd
from broker.domain.market.offer import Offer, Tier
from broker.domain.market.sku import Form
from broker.domain.spend.billed_spans import (
    MICROSECOND,
    SHORTEST,
    BilledSpan,
    cents_until,
    parts_of,
    prepaid_block,
    reduced_days,
    rounded_spans,
    surrender_of,
    used_part,
)
from broker.domain.spend.charging import credits_of
from broker.domain.spend.spend import ChargeBasis

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

    ``reservations`` must contain all reservations of a plan or none. By day, the billed USD sum exactly to
    the actual charges on their billing day, and the effective USD to the amortized charges of past days.
    """
    own = [in_its_currency(row) for row in reservations]
    usd = (
        None if all(billed_in(row) is None for row in reservations) else _rows(reservations, now, install_id)
    )
    yield from with_usd(_rows(own, now, install_id), usd, reservations)


def _rows(reservations: Sequence[Reservation], now: datetime, install_id: str) -> Iterator[Row]:
    """Rows with all costs in the currency of ``reservations``."""
    reduced: dict[tuple[str, int], dict[Window, int]] = {}
    for span, usd in rounded_spans(reservations, now):
        lot = _Lot.of(span)
        base = _base(span, lot, install_id)
        terms = span.reservation.offer.window
        if span.owed and terms is not None and terms.is_prepaid:
            yield from _window_rows(span, usd, now, lot, base)
        else:
            yield from _lease_rows(span, usd, now, lot, base)
        reduced[span.reservation.reservation_id, span.unit.ordinal] = dict(reduced_days(span, usd))
    for reservation in reservations:
        yield from _leaving_rows(reservation, install_id, reduced)


@dataclass(frozen=True, slots=True)
class _Lot:
    """The number of GPUs of a span, and its prices in USD per billed GPU-hour."""

    gpus: int
    list_price: Decimal
    contracted_price: Decimal

    @classmethod
    def of(cls, span: BilledSpan) -> _Lot:
        """The prices of a span, with one-time fees spread over its billed hours."""
        offer, segment, held = span.reservation.offer, span.segment, span.held
        gpus = segment.nodes * offer.sku.gpus_per_node
        priced = _hours(held)
        if not offer.is_sold_whole:
            priced = max(priced, Decimal(billed_seconds(offer, held)) / 3600)
        billed, whole = span.offer, (Segment(held.start, held.end, segment.nodes),)
        exact_list = holding_cost_usd(billed.at_list_price(), whole)
        exact = holding_cost_usd(billed, whole) if span.is_open_ended else span.usd
        return cls(gpus, _kept(exact_list / priced / gpus), _kept(exact / priced / gpus))

    def gpu_hours(self, window: Window) -> Decimal:
        """GPU-hours over ``window``."""
        return _kept(self.gpus * _hours(window))


def _lease_rows(span: BilledSpan, usd: Decimal, now: datetime, lot: _Lot, base: Row) -> Iterator[Row]:
    """Rows of capacity that is billed by time: prepaid blocks as commitments, the rest as usage."""
    for segment, basis in parts_of(span, now):
        if basis is not ChargeBasis.ACTUAL:
            continue
        start = segment.start
        while start < segment.end and (block := prepaid_block(span, start)) is not None:
            yield from _block_rows(span, usd, block, now, lot, base)
            start = block.end
        if start < segment.end:
            yield from _usage_rows(span, usd, Window(start, segment.end), lot, base)


def _usage_rows(span: BilledSpan, usd: Decimal, whole: Window, lot: _Lot, base: Row) -> Iterator[Row]:
    category = "Dynamic" if span.reservation.offer.tier is Tier.SPOT else "Standard"
    for hour, cost_usd in _hours_of(span, usd, whole, ()):
        yield {
            **base,
            **_period(hour),
            **_cost(lot, _kept(lot.gpus * _priced_hours(span, hour)), cost_usd, cost_usd),
            "ChargeCategory": "Usage",
            "ChargeFrequency": "Usage-Based",
            "PricingCategory": category,
            "ConsumedQuantity": lot.gpu_hours(hour),
            "ConsumedUnit": GPU_HOURS,
        }


def _hours_of(
    span: BilledSpan, usd: Decimal, whole: Window, edges: Sequence[datetime]
) -> Iterator[tuple[Window, Decimal]]:
    """The hours of a part of a span with their amortized cost, which sums to the cost of each day."""
    before = cents_until(span, usd, whole.start)
    for hour in _pieces(whole, edges):
        until = cents_until(span, usd, hour.end)
        yield hour, (until - before) * CENT
        before = until


def _priced_hours(span: BilledSpan, window: Window) -> Decimal:
    """Hours that are billed for ``window`` of one node; without a window: the increments that begin in it."""
    meter, start = span.meter, span.segment.start
    if meter is None:
        return _hours(window)
    at_end, at_start = (
        meter.billed_us(micros) if micros else 0
        for micros in ((edge - start) // MICROSECOND for edge in (window.end, window.start))
    )
    return Decimal(at_end - at_start) / MICROS_PER_HOUR


def _block_rows(
    span: BilledSpan, usd: Decimal, block: Window, now: datetime, lot: _Lot, base: Row
) -> Iterator[Row]:
    """Rows of a prepaid block: its Purchase, which recurs if it is one increment, and its hours."""
    meter = span.meter
    recurs = meter is not None and block.duration == meter.step_us * MICROSECOND
    bought = {**base, **_commitment(span, "Reserved")}
    billed = cents_until(span, usd, block.end) - cents_until(span, usd, block.start)
    yield {
        **bought,
        **_purchase(lot, lot.gpu_hours(block), billed * CENT, block),
        "ChargeFrequency": "Recurring" if recurs else "One-Time",
    }
    yield from _covered(span, usd, block, now, lot, bought)


def _window_rows(span: BilledSpan, usd: Decimal, now: datetime, lot: _Lot, base: Row) -> Iterator[Row]:
    term = span.segment.window
    bought = {**base, **_commitment(span, "Forward window")}
    yield {
        **bought,
        **_purchase(lot, lot.gpu_hours(term), usd, term),
        **_billed_at(span.unit.ordered_at or span.reservation.created_at),
        "ChargeFrequency": "One-Time",
    }
    yield from _covered(span, usd, term, now, lot, bought)


def _leaving_rows(
    reservation: Reservation, install_id: str, reduced: Mapping[tuple[str, int], Mapping[Window, int]]
) -> Iterator[Row]:
    """Rows of credits (Credit) and fees (Adjustment) for capacity that was left early.

    ``reduced`` is by reservation and unit what a credit gives back of days before the release, in cents.
    """
    for unit, left_at, usd in credits_of(reservation):
        segment = Segment(reservation.start, reservation.end or left_at + SHORTEST, unit.nodes)
        span = BilledSpan(reservation, unit, segment, segment.window, abs(usd), owed=True)
        row: Row = {
            **_base(span, _Lot.of(span), install_id),
            **dict.fromkeys(_PRICED),
            "ChargeCategory": "Credit" if usd > 0 else "Adjustment",
            "ChargeDescription": f"{reservation.offer.sku.name} in {reservation.offer.region} left early",
            "ChargeFrequency": "One-Time",
            "ResourceId": reservation.reservation_id,
        }
        effective_usd = -usd
        for day, cents in reduced.get((reservation.reservation_id, unit.ordinal), {}).items():
            if day.start.date() != left_at.date():
                effective_usd += cents * CENT
                yield {**row, **_hour_of(day.start), **_credited(ZERO, -cents * CENT)}
        yield {**row, **_hour_of(left_at), **_credited(-usd, effective_usd)}


def _credited(billed_usd: Decimal, effective_usd: Decimal) -> Row:
    return {
        **dict.fromkeys(_COSTS, billed_usd),
        "EffectiveCost": effective_usd,
        "PricingCurrencyEffectiveCost": effective_usd,
    }


def correction_row(
    reservation: Reservation, install_id: str, at: datetime, billed_usd: Decimal, effective_usd: Decimal
) -> Row:
    """The correction of closed months, in the first hour of the open month, which begins ``at``."""
    segment = Segment(reservation.start, reservation.ends_at or reservation.start + HOUR, reservation.nodes)
    span = BilledSpan(reservation, reservation.units[0], segment, segment.window, abs(billed_usd), owed=True)
    row: Row = {
        **_base(span, _Lot.of(span), install_id),
        **dict.fromkeys(_PRICED),
        **_period(Window(at, at + HOUR)),
        **_credited(billed_usd, effective_usd),
        "ChargeCategory": "Adjustment",
        "ChargeClass": "Correction",
        "ChargeDescription": f"{reservation.offer.sku.name} in {reservation.offer.region} before {at:%Y-%m}",
        "ChargeFrequency": "One-Time",
        "ResourceId": reservation.reservation_id,
    }
    return from_usd(row, reservation.offer.native.exchange)


def _covered(
    span: BilledSpan, usd: Decimal, term: Window, now: datetime, lot: _Lot, bought: Row
) -> Iterator[Row]:
    """Hourly rows of capacity that was bought in advance, up to ``now`` or to its release for a credit."""
    surrender, until = surrender_of(span, usd), now
    if surrender is not None:
        until = min(now, surrender.left_at)
        given_up = term.intersection(Window(surrender.left_at, max(term.end, surrender.left_at + SHORTEST)))
        if given_up is not None:
            cents = cents_until(span, usd, given_up.end) - cents_until(span, usd, given_up.start)
            yield {
                **bought,
                **_hour_of(surrender.left_at),
                **_use(lot, given_up, cents * CENT, "Unused"),
                "ChargeDescription": f"{bought['ChargeDescription']}, given up",
                "ResourceId": span.reservation.reservation_id,
                "x_TermStart": given_up.start,
                "x_TermEnd": given_up.end,
            }
    past = term.intersection(Window(term.start, until)) if until > term.start else None
    if past is None:
        return
    used = used_part(span)
    edges = () if used is None else (used.start, used.end)
    for hour, cost_usd in _hours_of(span, usd, past, edges):
        in_use = used is not None and used.contains(hour.start)
        resource = {} if in_use else {"ResourceId": span.reservation.reservation_id}
        status = "Used" if in_use else "Unused"
        yield {**bought, **resource, **_period(hour), **_use(lot, hour, cost_usd, status)}


def _use(lot: _Lot, window: Window, cost_usd: Decimal, status: str) -> Row:
    """The cells of a ``window`` of committed capacity; ``status`` is Used or Unused."""
    quantity, in_use = lot.gpu_hours(window), status == "Used"
    return {
        **_cost(lot, quantity, ZERO, cost_usd),
        "ConsumedQuantity": quantity if in_use else None,
        "ConsumedUnit": GPU_HOURS if in_use else None,
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "PricingCategory": "Committed",
        "CommitmentDiscountQuantity": quantity,
        "CommitmentDiscountStatus": status,
        "CapacityReservationStatus": status,
    }


def _purchase(lot: _Lot, quantity: Decimal, usd: Decimal, term: Window) -> Row:
    return {
        **_cost(lot, quantity, usd, ZERO),
        **_period(term),
        **_billed_at(term.start),
        "ChargeCategory": "Purchase",
        "PricingCategory": "Standard",
        "CommitmentDiscountQuantity": quantity,
        "x_TermStart": term.start,
        "x_TermEnd": term.end,
    }


def _commitment(span: BilledSpan, type_: str) -> Row:
    offer = span.reservation.offer
    name = span.unit.reference or span.unit.tag
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


def _hour_of(instant: datetime) -> Row:
    """The charge period of the hour in which an event is."""
    hour = instant.replace(minute=0, second=0, microsecond=0)
    return _period(Window(hour, hour + HOUR))


def _period(window: Window) -> Row:
    return {
        "ChargePeriodStart": window.start,
        "ChargePeriodEnd": window.end,
        **_billing_period(window.start),
    }


def _billing_period(instant: datetime) -> Row:
    month = instant.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return {"BillingPeriodStart": month, "BillingPeriodEnd": _next_month(month)}


def _billed_at(instant: datetime) -> Row:
    """The billing of a purchase, of which the charge period is the term that it buys."""
    return {**_billing_period(instant), "x_BilledAt": instant}


def _base(span: BilledSpan, lot: _Lot, install_id: str) -> Row:
    """The cells that all rows of a span have in common."""
    row, unit = span.reservation, span.unit
    offer, workload = row.offer, row.workload or "-"
    service, subcategory = _SERVICES.get(offer.sku.form, _ANY_SERVICE)
    nodes = f"{unit.nodes} node{'' if unit.nodes == 1 else 's'}"
    tags = {"team": row.team, "workload": workload, "broker/tier": str(offer.tier)}
    return {
        "AvailabilityZone": offer.zone,
        "BillingAccountId": f"{offer.provider}/{install_id}",
        "BillingAccountName": f"{offer.provider} account of this broker",
        "BillingAccountType": "Billing Account",
        "BillingCurrency": "USD" if billed_in(row) is None else offer.native.currency,
        "ChargeDescription": f"{nodes} of {offer.sku.name} in {offer.region} for {workload}",
        "ContractedUnitPrice": lot.contracted_price,
        "HostProviderName": offer.seller or offer.provider,
        "InvoiceIssuerName": offer.provider,
        "ListUnitPrice": lot.list_price,
        "PricingCurrency": "USD" if offer.native.exchange is None else offer.native.currency,
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
    """``window`` cut at every full UTC hour and at those of ``edges`` that are in it."""
    cuts = sorted(edge for edge in edges if window.start < edge < window.end)
    start = window.start
    while start < window.end:
        full = start.replace(minute=0, second=0, microsecond=0) + HOUR
        while cuts and cuts[0] <= start:
            cuts.pop(0)
        end = min(full, window.end, *cuts[:1])
        yield Window(start, end)
        start = end


def _next_month(month: datetime) -> datetime:
    return (month + timedelta(days=32)).replace(day=1)


def _hours(window: Window) -> Decimal:
    return Decimal(window.duration // MICROSECOND) / MICROS_PER_HOUR


def _kept(value: Decimal) -> Decimal:
    return value.quantize(KEPT)
