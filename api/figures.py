"""Figures as people read them: money, rates, times, durations."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import usd_words


def usd(amount: Decimal | float) -> str:
    """Dollars and cents with thousands separators."""
    return usd_words(Decimal(str(amount)))


def whole_usd(amount: Decimal | float) -> str:
    """Whole dollars."""
    return f"-${-amount:,.0f}" if amount < 0 else f"${amount:,.0f}"


def percent(share: float) -> str:
    """A share as a percentage; one decimal where that says more."""
    value = 100 * share
    return f"{value:.0f} %" if abs(value) >= 10 or value == 0 else f"{value:.1f} %"


def rate(value: float) -> str:
    """A count per something, with three significant digits."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def hours(value: float) -> str:
    """A duration in minutes, hours or days, whichever reads best."""
    return _in_unit(value, value)


def hours_between(value: float, low: float, high: float) -> str:
    """A duration and its interval in one unit: ``5.4 d (4.4 to 6.6)``."""
    shown = _in_unit(value, value)
    return f"{shown} ({_in_unit(low, value).split()[0]} to {_in_unit(high, value).split()[0]})"


def _in_unit(value: float, like: float) -> str:
    if like < 1:
        return f"{60 * value:.0f} min"
    return f"{value:.1f} h" if like < 72 else f"{value / 24:.1f} d"


def day_and_time(instant: datetime) -> str:
    """``24 Nov 11:30``, UTC."""
    return f"{day(instant)} {instant:%H:%M}"


def day(instant: datetime) -> str:
    """``24 Nov``."""
    return f"{instant.day} {instant:%b}"


def plural(count: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
