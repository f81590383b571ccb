"""Launch statistics of an offer: how likely our orders succeed, and how long they take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

RETRY_HOURS = 0.25
"""Time that a failed launch costs: until the next pass of the reconciler finds another offer."""
RARE_SHARE = 0.5
RARE_ATTEMPTS = 3


class StatisticsLevel(StrEnum):
    """What the counted attempts have in common with the offer: offer, SKU at the provider, or provider."""

    OFFER = "offer"
    SKU = "sku"
    PROVIDER = "provider"


@dataclass(frozen=True, slots=True)
class LaunchStatistics:
    """How likely a launch succeeds (``success_share``), and the minutes from the order until it is usable.

    ``attempts`` is the number of attempts on the level ``basis``. With few of them the prior has more weight.
    """

    success_share: float
    minutes_to_usable: float
    attempts: int
    basis: StatisticsLevel

    @property
    def wait_hours(self) -> float:
        """Expected hours from the first order until a node is usable, including failed launches."""
        failed_before = 1 / self.success_share - 1
        return self.minutes_to_usable / 60 + failed_before * RETRY_HOURS

    @property
    def is_rare(self) -> bool:
        """Whether most launches of this offer itself fail; the planner then treats it as sold out."""
        of_its_own = self.basis is StatisticsLevel.OFFER and self.attempts >= RARE_ATTEMPTS
        return of_its_own and self.success_share < RARE_SHARE

    def __str__(self) -> str:
        of = "" if self.basis is StatisticsLevel.OFFER else f" of its {self.basis}"
        tries = "launch" if self.attempts == 1 else "launches"
        sold_out = ", treated as sold out" if self.is_rare else ""
        share, minutes = f"{self.success_share:.0%}", f"{self.minutes_to_usable:.0f} min"
        return f"{share} in {minutes} ({self.attempts} {tries}{of}){sold_out}"


LAUNCH_PRIOR = LaunchStatistics(0.95, 5.0, 0, StatisticsLevel.PROVIDER)
"""The prior without any attempts: a cloud's VM starts in minutes, and orders are seldom refused."""
