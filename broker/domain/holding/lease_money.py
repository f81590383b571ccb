"""Prices, bills and credits that providers report for leases. Pure.

Rates are in USD per node-hour. A lease keeps the first rate that its provider confirms. Some providers show
another rate for a machine that is being stopped, which does not apply to the time before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.errors import PriceAboveLimit
from broker.domain.basics.money import CENT, MICRO, ZERO, price_words, usd_words
from broker.domain.holding.holding_orders import leaves_cheaply
from broker.domain.holding.reservation import Lease, PriceBasis, Reservation, Unit, UnitState
from broker.domain.market.offer import Offer


def billed_offer(reservation: Reservation, unit: Unit) -> Offer:
    """The offer of ``reservation`` at the rate at which ``unit`` is billed.

    A contract price overrides the provider's list price and the rate that it reports.
    """
    offer, rate = reservation.offer, unit.price_usd_per_node_hour
    if rate is None or offer.contract is not None or rate == offer.price_usd_per_node_hour:
        return offer
    return replace(offer, price_usd_per_node_hour=rate)


def at_its_rate(reservation: Reservation) -> Offer:
    """The offer of ``reservation`` at its average rate; windows keep the price at which they were ordered."""
    offer, rate = reservation.offer, rate_usd_per_node_hour(reservation)
    if offer.window is not None or rate == offer.price_usd_per_node_hour:
        return offer
    return replace(offer, price_usd_per_node_hour=rate)


def rate_usd_per_node_hour(reservation: Reservation) -> Decimal:
    """Average price of a node-hour of ``reservation``; for windows from the provider's bill, if known."""
    rates = [(_rate_of(reservation, unit), unit.nodes) for unit in reservation.units]
    nodes, offer = sum(count for _, count in rates), reservation.offer
    if not nodes or all(rate == offer.price_usd_per_node_hour for rate, _ in rates):
        return offer.price_usd_per_node_hour
    return (sum((rate * count for rate, count in rates), ZERO) / nodes).quantize(MICRO)


def _rate_of(reservation: Reservation, unit: Unit) -> Decimal:
    offer, end = reservation.offer, reservation.end
    if offer.window is None or unit.paid_usd is None or end is None or offer.contract is not None:
        return billed_offer(reservation, unit).price_usd_per_node_hour
    return unit.paid_usd / _node_hours(reservation.start, end, unit.nodes)


def _node_hours(start: datetime, end: datetime, nodes: int) -> Decimal:
    return Decimal((end - start).total_seconds()) * nodes / 3600


def price_basis(reservation: Reservation) -> PriceBasis:
    """The source of the price at which ``reservation`` is billed."""
    if reservation.offer.contract is not None:
        return PriceBasis.CONTRACT
    bought = [unit for unit in reservation.units if unit.reference is not None]
    if reservation.offer.window is None:
        told = all(unit.is_price_confirmed for unit in bought)
    else:
        told = all(unit.paid_usd is not None for unit in bought)
    return PriceBasis.CONFIRMED if bought and told else PriceBasis.ESTIMATED


def has_news_of_money(reservation: Reservation, leases: Iterable[Lease]) -> bool:
    """Whether ``leases`` report a window's bill or a rate that the reservation does not have yet."""
    after = with_money(reservation, leases)
    return any(
        (unit.paid_usd, unit.is_price_confirmed) != (before.paid_usd, before.is_price_confirmed)
        for before, unit in zip(reservation.units, after.units, strict=True)
    )


def with_money(reservation: Reservation, leases: Iterable[Lease]) -> Reservation:
    """``reservation`` with the money that ``leases`` report.

    That is the begin of billing and the rate of hourly capacity, or the bill and the credit of a window.
    """
    shown = {lease.reference: lease for lease in leases}
    for unit in reservation.units:
        lease = shown.get(unit.reference or "")
        if lease is None:
            continue
        if reservation.offer.window is None:
            told = replace(unit, began_at=lease.began_at or unit.began_at)
            reservation = reservation.with_unit(_at_rate(told, lease.price_usd_per_node_hour))
        else:
            paid = unit.paid_usd if lease.billed_usd is None else lease.billed_usd
            credit = unit.credit_usd if lease.credit_usd is None else lease.credit_usd
            reservation = reservation.with_unit(replace(unit, paid_usd=paid, credit_usd=credit))
    return reservation


def _at_rate(unit: Unit, rate: Decimal | None) -> Unit:
    if rate is None or unit.is_price_confirmed:
        return unit
    return replace(unit, price_usd_per_node_hour=rate, is_price_confirmed=True)


def quoted_usd(ordered: Offer, found: Offer) -> Decimal:
    """The price of ``found`` in USD; if it is billed in another currency, at the rate of ``ordered``."""
    first, last = ordered.native.exchange, found.native.exchange
    if first is None or last is None or last.billed_per_node_hour is None:
        return found.price_usd_per_node_hour
    return last.billed_per_node_hour * first.rates[0].usd_per_unit


def quoted(unit: Unit, rate: Decimal | None) -> Unit:
    """``unit`` at the rate that the provider quoted just before the order; None leaves it unchanged."""
    return unit if rate is None else replace(unit, price_usd_per_node_hour=rate)


def money_in_words(reservation: Reservation) -> str:
    """The bill or the confirmed hourly rate of each unit, as text."""
    words = []
    for unit in reservation.units:
        if unit.paid_usd is not None and reservation.offer.window is not None:
            words.append(f"unit {unit.ordinal}: {usd_words(unit.paid_usd)}")
        elif unit.is_price_confirmed and unit.price_usd_per_node_hour is not None:
            words.append(f"unit {unit.ordinal}: {price_words(unit.price_usd_per_node_hour)} per node-hour")
    return ", ".join(words)


def above_limit(reservation: Reservation) -> PriceAboveLimit | None:
    """The error if the confirmed rate is above the limit and ``reservation`` is to be released; else None.

    A contract price is never above the limit. Capacity with a minimum term of more than an hour is kept,
    since releasing it would save nothing.
    """
    rate = _highest_rate(reservation)
    if rate is None or not leaves_cheaply(reservation.offer):
        return None
    return dearer(reservation, rate, "charges")


def is_kept_above_limit(reservation: Reservation) -> bool:
    """Whether the rate is above the limit, but a minimum term or a window makes a release save nothing."""
    rate, limit = _highest_rate(reservation), reservation.limit_usd_per_node_hour
    dear = rate is not None and limit is not None and rate > limit
    return dear and not leaves_cheaply(reservation.offer)


def dearer(reservation: Reservation, rate: Decimal, verb: str = "asks") -> PriceAboveLimit | None:
    """The error if ``rate`` is above the limit of ``reservation``, else None. ``verb``: asks or charges."""
    limit, offer = reservation.limit_usd_per_node_hour, reservation.offer
    if limit is None or offer.contract is not None or rate <= limit:
        return None
    at_order = offer.price_usd_per_node_hour
    words = f"{verb} {price_words(rate)} per node-hour; the limit was {price_words(limit)}"
    if limit > at_order:
        words += f", {limit / at_order - 1:.1%} above the {price_words(at_order)} of the offer"
    return PriceAboveLimit(offer.provider, words, asks_usd_per_node_hour=rate)


def _highest_rate(reservation: Reservation) -> Decimal | None:
    """The highest confirmed rate of what is held; of a window from its bill, without its rounding."""
    held = [unit for unit in reservation.units if unit.state is UnitState.HELD]
    if reservation.offer.window is not None:
        exact = (replace(u, paid_usd=u.paid_usd - CENT / 2) for u in held if u.paid_usd)
        return max((_rate_of(reservation, unit) for unit in exact), default=None)
    told = (unit.price_usd_per_node_hour for unit in held if unit.is_price_confirmed)
    return max((rate for rate in told if rate is not None), default=None)
