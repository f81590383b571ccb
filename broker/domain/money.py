"""Money: exact decimals in memory, integer micro-dollars at rest, cents in a bill."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, Decimal

CENT = Decimal("0.01")
MICRO = Decimal("0.000001")
ZERO = Decimal("0")


def to_cents(usd: Decimal) -> Decimal:
    """``usd`` rounded half-even to whole cents, as a bill shows it."""
    return usd.quantize(CENT, rounding=ROUND_HALF_EVEN)


def to_micro_usd(usd: Decimal) -> int:
    """``usd`` as integer micro-dollars, rounded half-even."""
    return int((usd / MICRO).to_integral_value(rounding=ROUND_HALF_EVEN))


def from_micro_usd(micro_usd: int) -> Decimal:
    """Dollars of an integer number of micro-dollars, exactly."""
    return Decimal(micro_usd) * MICRO


def split_cents(total_usd: Decimal, weights: Sequence[Decimal]) -> tuple[Decimal, ...]:
    """``total_usd`` (whole cents) split by ``weights`` into whole cents that sum to it exactly.

    Largest remainder; ties go to the earlier share. All-zero weights give everything to the first.
    """
    if not weights:
        raise ValueError("split_cents needs at least one weight")
    cents = int(total_usd / CENT)
    whole = sum(weights, ZERO)
    if whole == 0:
        return (total_usd, *(ZERO for _ in weights[1:]))
    exact = [Decimal(cents) * weight / whole for weight in weights]
    floors = [int(share.to_integral_value(rounding=ROUND_DOWN)) for share in exact]
    missing = cents - sum(floors)
    order = sorted(range(len(weights)), key=lambda i: (floors[i] - exact[i], i))
    for i in order[:missing]:
        floors[i] += 1
    return tuple(Decimal(share) * CENT for share in floors)


def format_usd(usd: Decimal) -> str:
    """Plain decimal string without an exponent, as the JSON forms carry it."""
    return format(usd, "f")
