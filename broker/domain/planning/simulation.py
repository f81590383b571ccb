"""What may happen to a plan: the chances of its workloads, its cost, and what went wrong most, over draws."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class SimulatedWorkload:
    """``chance``: share of draws in which the workload is done in time on what the plan holds, or meets its
    objective in every hour. ``late_hours_p90``: 90th percentile of its lateness, with the rest of its work on
    other capacity; None for services.
    """

    workload: str
    chance: float
    late_hours_p90: float | None


@dataclass(frozen=True, slots=True)
class CostQuantiles:
    """Cost of the plan in USD with the reactions: the longer holding, the rest on other capacity."""

    p10: Decimal
    p50: Decimal
    p90: Decimal
    mean: Decimal


@dataclass(frozen=True, slots=True)
class Reason:
    """What went wrong, and the share of draws in which it did."""

    what: str
    share: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """``draws`` of what a plan does not know: step times, rates, failures, launches and prices."""

    draws: int
    workloads: tuple[SimulatedWorkload, ...]
    cost_usd: CostQuantiles
    reasons: tuple[Reason, ...]
