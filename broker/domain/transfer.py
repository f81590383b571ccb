"""Data on its way to where work is placed: what leaves whom, for how much, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where data lies: a provider's region."""

    provider: str
    region: str


class TransferKind(StrEnum):
    """What is copied."""

    DATASET = "dataset"
    WEIGHTS = "weights"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Transfer:
    """``gb`` (10⁹ bytes) that leave ``provider`` in ``region`` for a placement; ``usd`` in whole cents.

    That provider bills it. ``hours``: how long the copy is taken to last.
    """

    what: TransferKind
    gb: float
    provider: str
    region: str
    usd: Decimal
    hours: float
