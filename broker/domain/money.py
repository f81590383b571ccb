"""Money: exact decimals in memory, integer micro-dollars at rest, cents in a bill."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

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
    return tuple(Decimal(share) * CENT for share in split_whole(int(total_usd / CENT), weights))


def split_whole(total: int, weights: Sequence[Decimal]) -> tuple[int, ...]:
    """``total`` split by ``weights`` into whole numbers that sum to it exactly, as ``split_cents`` does."""
    if not weights:
        raise ValueError("a sum is split over at least one weight")
    whole = sum(weights, ZERO)
    if whole == 0:
        return (total, *(0 for _ in weights[1:]))
    exact = [Decimal(total) * weight / whole for weight in weights]
    floors = [int(share.to_integral_value(rounding=ROUND_FLOOR)) for share in exact]
    missing = total - sum(floors)
    order = sorted(range(len(weights)), key=lambda i: (floors[i] - exact[i], i))
    for i in order[:missing]:
        floors[i] += 1
    return tuple(floors)


def format_usd(usd: Decimal) -> str:
    """Plain decimal string without an exponent, as the JSON forms carry it."""
    return format(usd, "f")
