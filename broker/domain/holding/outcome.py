"""The result of an order: the reservation after it, and the provider's error if it failed."""

from __future__ import annotations

from dataclasses import dataclass

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    OrderRejected,
    PriceAboveLimit,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from broker.domain.holding.reservation import Reservation

REFUSALS = (
    InsufficientCapacity,
    QuotaExceeded,
    OrderRejected,
    PriceAboveLimit,
    CredentialsRejected,
    RateLimited,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A reservation after a step, and the provider's error if the step failed.

    ``is_news`` is False if the try before failed with the same error.
    """

    reservation: Reservation
    error: ProviderError | None = None
    is_news: bool = True

    @property
    def refused(self) -> bool:
        """Whether the last call certainly left nothing bought."""
        return isinstance(self.error, REFUSALS)
