"""FOCUS rows in the currency of the provider's invoice, with the same amounts in USD beside them.

``BillingCurrency`` is the currency of the invoice, and all costs of a row are in it. Our own columns have the
USD with which everything else reckons, and the exchange rate of the row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import MICRO, ZERO, to_cents
from broker.domain.focus.columns import Cell
from broker.domain.holding.reservation import Reservation, Unit
from broker.domain.market.exchange import Exchange

Row = dict[str, Cell]
KEPT = Decimal("1e-12")
_COSTS = ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "PricingCurrencyEffectiveCost")
_KEY = ("ResourceId", "ChargeCategory", "ChargePeriodStart", "CommitmentDiscountStatus", "ChargeDescription")
_PRICED = (
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice",
)


def billed_in(reservation: Reservation) -> Exchange | None:
    """The exchange of what is invoiced in another currency; None: the invoice is in USD."""
    exchange = reservation.offer.native.exchange
    return None if exchange is None or exchange.billed_per_node_hour is None else exchange


def in_its_currency(reservation: Reservation) -> Reservation:
    """``reservation`` with all amounts in the currency of its invoice, in which its price does not move."""
    exchange = billed_in(reservation)
    if exchange is None:
        return reservation
    first, price, row = exchange.rates[0].usd_per_unit, exchange.billed_per_node_hour, reservation.offer
    assert price is not None
    contract = row.contract
    if contract is not None:
        price = row.price_usd_per_node_hour / first
        listed = contract.list_upfront_usd
        contract = replace(
            contract,
            list_usd_per_node_hour=contract.list_usd_per_node_hour / first,
            list_upfront_usd=None if listed is None else listed / first,
        )
    offer = replace(
        row,
        price_usd_per_node_hour=price,
        upfront_usd=None if row.upfront_usd is None else row.upfront_usd / first,
        contract=contract,
        native=replace(row.native, exchange=replace(exchange, rates=exchange.rates[:1])),
    )
    units = tuple(_unit_in(unit, first, price) for unit in reservation.units)
    return replace(reservation, offer=offer, units=units)


def _unit_in(unit: Unit, first: Decimal, price: Decimal) -> Unit:
    def divided(usd: Decimal | None) -> Decimal | None:
        return None if usd is None else usd / first

    rate = divided(unit.price_usd_per_node_hour)
    if rate is not None and abs(rate - price) <= MICRO:
        rate = price  # the same price, rounded to micro-dollars when it was converted
    return replace(
        unit,
        price_usd_per_node_hour=rate,
        paid_usd=divided(unit.paid_usd),
        credit_usd=None if unit.credit_usd is None else to_cents(unit.credit_usd / first),
    )


def with_usd(
    own: Iterable[Row], usd: Iterable[Row] | None, reservations: Sequence[Reservation]
) -> Iterator[Row]:
    """Rows in the currencies of their invoices; ``usd`` are the same rows in USD (None: ``own`` are)."""
    exchanges = {row.reservation_id: row.offer.native.exchange for row in reservations}
    amounts: defaultdict[tuple[Cell, ...], list[tuple[Cell, Cell]]] = defaultdict(list)
    for row in usd or ():
        amounts[_key(row)].append((row["BilledCost"], row["EffectiveCost"]))
    for row in own:
        exchange = exchanges[str(row["x_ReservationId"])]
        told = (row["BilledCost"], row["EffectiveCost"])
        if usd is not None:
            found = amounts[_key(row)]
            told = found.pop(0) if found else (ZERO, ZERO)
        yield {**row, **_usd_cells(*told, rate_of(exchange, row)), **_priced_in(exchange, row)}


def rate_of(exchange: Exchange | None, row: Mapping[str, Cell]) -> Decimal:
    """USD per unit of the row's billing currency."""
    if exchange is None or exchange.billed_per_node_hour is None:
        return Decimal(1)
    at = row.get("x_BilledAt") or row["ChargePeriodStart"]
    assert isinstance(at, datetime)
    return exchange.rate_on(at.date()).usd_per_unit


def _usd_cells(billed: Cell, effective: Cell, rate: Decimal) -> Row:
    return {"x_BilledCostUsd": billed, "x_EffectiveCostUsd": effective, "x_ExchangeRate": rate}


def _key(row: Mapping[str, Cell]) -> tuple[Cell, ...]:
    return (row["x_ReservationId"], *(row.get(name) for name in _KEY))


def _priced_in(exchange: Exchange | None, row: Row) -> Row:
    """Cells of what is priced in another currency than that of its invoice."""
    if exchange is None or exchange.billed_per_node_hour is not None:
        return {}
    first = exchange.rates[0].usd_per_unit
    cells = ((name, row.get(name)) for name in _PRICED)
    return {name: (cell / first).quantize(KEPT) for name, cell in cells if isinstance(cell, Decimal)}


def from_usd(row: Row, exchange: Exchange | None) -> Row:
    """A row whose amounts are known in USD alone, in the currency of its invoice at the rate of its day."""
    rate = rate_of(exchange, row)
    cells = {name: row[name] for name in _COSTS}
    own = {name: to_cents(cell / rate) for name, cell in cells.items() if isinstance(cell, Decimal)}
    billed, effective = row["BilledCost"], row["EffectiveCost"]
    return {**row, **own, **_usd_cells(billed, effective, rate), **_priced_in(exchange, {**row, **own})}
