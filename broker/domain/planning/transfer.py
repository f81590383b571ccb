"""Transfers of data to the place of a workload: amount, egress cost and duration."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from broker.domain.market.offer import Offer


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A location of data: one operator's part of a provider's region.

    A region of an aggregator has several operators. ``operator`` is empty if it is unknown.
    """

    provider: str
    region: str
    operator: str = ""

    @classmethod
    def of(cls, offer: Offer) -> Place:
        """The location of an offer."""
        return cls(offer.provider, offer.region, offer.place.rpartition("/")[0])

    def is_run_with(self, other: Place) -> bool:
        """Whether both have the same provider and operator; an unknown operator counts as the same."""
        one = self.operator == other.operator or not self.operator or not other.operator
        return self.provider == other.provider and one

    def is_at(self, other: Place) -> bool:
        """Whether both are the same location, so that no copy is needed."""
        return self.region == other.region and self.is_run_with(other)


class TransferKind(StrEnum):
    """Kind of data that is transferred."""

    DATASET = "dataset"
    WEIGHTS = "weights"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer of ``gb`` (10⁹ bytes) from ``provider`` in ``region`` to a placement.

    ``provider`` bills ``usd`` (whole cents) of egress. ``hours`` is the estimated duration.
    """

    what: TransferKind
    gb: float
    provider: str
    region: str
    usd: Decimal
    hours: float
