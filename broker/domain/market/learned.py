"""What our own launches taught about an offer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

RETRY_HOURS = 0.25
"""How long a failed launch keeps what it was for waiting: until the next pass finds another offer."""
RARE_SHARE = 0.5
RARE_ATTEMPTS = 3


class Basis(StrEnum):
    """What the nearest attempts were of: this offer, the same SKU of its provider, or its provider."""

    OFFER = "offer"
    SKU = "sku"
    PROVIDER = "provider"


@dataclass(frozen=True, slots=True)
class Learned:
    """How likely a launch comes to be, and how long it takes until it can be used.

    ``attempts``: how many stand behind it, of ``basis``; with few of them a guess stands beside.
    """

    success_share: float
    minutes_to_usable: float
    attempts: int
    basis: Basis

    @property
    def wait_hours(self) -> float:
        """Expected hours from the order until a node can be used, failed launches before it included."""
        failed_before = 1 / self.success_share - 1
        return self.minutes_to_usable / 60 + failed_before * RETRY_HOURS

    @property
    def is_rare(self) -> bool:
        """Whether launches of this very offer mostly fail: the planner then takes it for sold out."""
        of_its_own = self.basis is Basis.OFFER and self.attempts >= RARE_ATTEMPTS
        return of_its_own and self.success_share < RARE_SHARE

    def __str__(self) -> str:
        of = "" if self.basis is Basis.OFFER else f" of its {self.basis}"
        tries = "launch" if self.attempts == 1 else "launches"
        sold_out = ", taken for sold out" if self.is_rare else ""
        share, minutes = f"{self.success_share:.0%}", f"{self.minutes_to_usable:.0f} min"
        return f"{share} in {minutes} ({self.attempts} {tries}{of}){sold_out}"


GUESS = Learned(0.95, 5.0, 0, Basis.PROVIDER)
"""What is expected where nothing was tried: a cloud's VM takes minutes and is seldom refused."""
