"""Loops over rows of costs that compiled knapsacks and paths share: so short that they become vectors."""

from __future__ import annotations

from optimizer.placement.compiled import compiled
from optimizer.placement.problem import Floats


@compiled
def fill(row: Floats, value: float) -> None:
    """The same value everywhere."""
    for entry in range(len(row)):
        row[entry] = value


@compiled
def copy(row: Floats, other: Floats) -> None:
    """What is in as many entries of another."""
    for entry in range(len(row)):
        row[entry] = other[entry]


@compiled
def cap(row: Floats, value: float) -> None:
    """Nothing is more than a value."""
    for entry in range(len(row)):
        row[entry] = value if value < row[entry] else row[entry]


@compiled
def lower(row: Floats, other: Floats, more: float) -> int:
    """Takes ``other`` and ``more`` where that is less; at how many entries."""
    count = 0
    for entry in range(len(row)):
        found = other[entry] + more
        count += found < row[entry]
        row[entry] = found if found < row[entry] else row[entry]
    return count


@compiled
def most_parts(most: int) -> int:
    """How many parts sum to any number up to ``most``."""
    parts = 0
    while most > 0:
        most //= 2
        parts += 1
    return parts
