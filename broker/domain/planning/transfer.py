"""Data on its way to where work is placed: what leaves whom, for how much, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from broker.domain.market.offer import Offer


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where data lies: what an operator runs in a provider's region.

    An aggregator's region has several; ``operator`` "": nobody says which.
    """

    provider: str
    region: str
    operator: str = ""

    @classmethod
    def of(cls, offer: Offer) -> Place:
        """Where an offer is."""
        return cls(offer.provider, offer.region, offer.place.rpartition("/")[0])

    def is_run_with(self, other: Place) -> bool:
        """Whether one operator runs both for one provider, as far as anybody says."""
        one = self.operator == other.operator or not self.operator or not other.operator
        return self.provider == other.provider and one

    def is_at(self, other: Place) -> bool:
        """Whether data here need not be copied to be there."""
        return self.region == other.region and self.is_run_with(other)


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
