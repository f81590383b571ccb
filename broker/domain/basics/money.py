"""Money: exact decimals in memory, integer micro-dollars in the database, whole cents on a bill."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

CENT = Decimal("0.01")
MICRO = Decimal("0.000001")
ZERO = Decimal("0")
LARGEST_USD = Decimal(1_000_000_000_000)
"""The largest amount that a person may state."""


def plain_digits(value: Any) -> Any:
    """The value. Raises ValueError for digits of other scripts, which Decimal and int would accept."""
    if isinstance(value, str) and not value.isascii():
        raise ValueError("a number in the digits 0 to 9")
    return value


def to_cents(usd: Decimal) -> Decimal:
    """``usd`` rounded half-even to whole cents, as a bill shows it."""
    return usd.quantize(CENT, rounding=ROUND_HALF_EVEN)


def to_micro_usd(usd: Decimal) -> int:
    """``usd`` as integer micro-dollars, rounded half-even."""
    return int((usd / MICRO).to_integral_value(rounding=ROUND_HALF_EVEN))


def from_micro_usd(micro_usd: int) -> Decimal:
    """Dollars of an integer number of micro-dollars, exactly."""
    return Decimal(micro_usd) * MICRO


def split_cents(total_usd: Decimal, weights: Sequence[Decimal] | Sequence[int]) -> tuple[Decimal, ...]:
    """``total_usd`` (whole cents) split by ``weights`` into whole cents that sum to it exactly.

    Largest remainder; ties go to the earlier share. All-zero weights give everything to the first.
    """
    return tuple(Decimal(share) * CENT for share in split_whole(int(total_usd / CENT), weights))


def split_whole(total: int, weights: Sequence[Decimal] | Sequence[int]) -> tuple[int, ...]:
    """``total`` split by ``weights`` into integers that sum to it exactly, by largest remainder.

    Raises ValueError without weights.
    """
    if not weights:
        raise ValueError("splitting a total needs at least one weight")
    wholes = _as_whole(weights)
    divisor = sum(wholes)
    if divisor == 0:
        return (total, *(0 for _ in weights[1:]))
    parts = [total * weight for weight in wholes]
    shares = [part // divisor for part in parts]
    missing = total - sum(shares)
    order = sorted(range(len(parts)), key=lambda i: (-(parts[i] % divisor), i))
    for i in order[:missing]:
        shares[i] += 1
    return tuple(shares)


def _as_whole(weights: Sequence[Decimal] | Sequence[int]) -> list[int]:
    """Integers in the proportions of ``weights``: dividing by them is many times faster than by decimals."""
    if all(isinstance(weight, int) for weight in weights):
        return [int(weight) for weight in weights]
    exact = [Decimal(weight) for weight in weights]
    places = max(0, *(-int(weight.as_tuple().exponent) for weight in exact))
    return [int(weight.scaleb(places)) for weight in exact]


def format_usd(usd: Decimal) -> str:
    """Plain decimal string without an exponent, as the JSON forms carry it."""
    return format(usd, "f")


def usd_words(usd: Decimal) -> str:
    """Money as people read it, to the cent: ``$1,234.56``, ``-$7.31``."""
    cents = to_cents(usd)
    return f"{'-' if cents < 0 else ''}${abs(cents):,.2f}"


_USD = re.compile(r"\$?\s*(?P<figure>\d{1,15}|\d{1,3}(,\d{3}){1,4})(?P<cents>\.\d{1,2})?(\s*USD)?", re.ASCII)
USD_FORMS = "US dollars in whole cents, such as 5000, 5,000, $5,000.00 or 5000 USD"


def read_usd(text: str) -> Decimal | None:
    """An amount as people write it (see USD_FORMS); None for any other text, such as ``5k``."""
    found = _USD.fullmatch(text.strip())
    return None if found is None else Decimal(found["figure"].replace(",", "") + (found["cents"] or ""))


def price_words(usd_per_hour: Decimal) -> str:
    """A price as people read it: four significant digits, and at least whole cents (``$2.906``)."""
    return f"${price_figure(usd_per_hour)}"


def price_figure(usd_per_hour: Decimal) -> str:
    """``price_words`` without the dollar sign (``2.906``), for columns in USD."""
    places = max(2, 3 - usd_per_hour.adjusted()) if usd_per_hour else 2
    whole, _, part = f"{usd_per_hour:,.{places}f}".partition(".")
    return f"{whole}.{part[:2]}{part[2:].rstrip('0')}"
