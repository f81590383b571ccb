"""What may happen to a plan: the chances of its workloads, its cost, and what went wrong most, over draws."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

DRAWS, SEED = 4000, 1
"""Of a simulation for which nobody states them, and of the costs that a plan states."""


@dataclass(frozen=True, slots=True)
class CostQuantiles:
    """What is paid in the end, in USD: capacity by the hour until the work ends, windows and terms as they
    are held, the rest of work that outlasts them on other capacity, and late hours at their price.
    """

    p10: Decimal
    p50: Decimal
    p90: Decimal
    mean: Decimal


@dataclass(frozen=True, slots=True)
class SimulatedWorkload:
    """``chance``: share of draws in which the workload is done in time on what the plan holds, or meets its
    objective in every hour. ``late_hours_p50`` and ``late_hours_p90``: percentiles of its lateness, with the
    rest of its work on other capacity; None for services. ``cost_usd`` is what is paid for it.
    """

    workload: str
    chance: float
    late_hours_p90: float | None
    late_hours_p50: float | None
    cost_usd: CostQuantiles


@dataclass(frozen=True, slots=True)
class CostShare:
    """The share of draws in which the cost lies between ``from_usd`` and ``to_usd``."""

    from_usd: Decimal
    to_usd: Decimal
    share: float


@dataclass(frozen=True, slots=True)
class Reason:
    """What went wrong, and the share of draws in which it did."""

    what: str
    share: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """``draws`` of what a plan does not know: step times, rates, failures and launches. Prices stay as
    planned. ``cost_shares`` is the histogram of the cost, lowest first.
    """

    draws: int
    workloads: tuple[SimulatedWorkload, ...]
    cost_usd: CostQuantiles
    reasons: tuple[Reason, ...]
    cost_shares: tuple[CostShare, ...] = ()
