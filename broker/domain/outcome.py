"""What came of an order: the reservation after it, and the provider's word when it did not go well."""

from __future__ import annotations

from dataclasses import dataclass

from broker.domain.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    OrderRejected,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from broker.domain.reservation import Reservation

REFUSALS = (InsufficientCapacity, QuotaExceeded, OrderRejected, CredentialsRejected, RateLimited)
HOPELESS = (OrderRejected, CredentialsRejected)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A reservation after a step, and what the provider said when it did not go well."""

    reservation: Reservation
    error: ProviderError | None = None

    @property
    def refused(self) -> bool:
        """Whether surely nothing was bought by the last call."""
        return isinstance(self.error, REFUSALS)
