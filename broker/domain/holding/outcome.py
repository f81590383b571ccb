"""What came of an order: the reservation after it, and the provider's word when it did not go well."""

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
    """A reservation after a step, and what the provider said when it did not go well.

    ``is_news`` False: it said the same at the try before.
    """

    reservation: Reservation
    error: ProviderError | None = None
    is_news: bool = True

    @property
    def refused(self) -> bool:
        """Whether the last call surely bought nothing that is kept."""
        return isinstance(self.error, REFUSALS)
