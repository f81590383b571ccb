"""A first estimate of workloads before any plan: which GPUs fit, how many, for how long, and at what cost.

It looks at each workload alone. A plan places all of them together on one stock, so it may cost more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import ZERO
from broker.domain.planning.plan import DROPPED, Obstacle
from broker.domain.planning.workload import WorkloadKind

MOST_ESTIMATED = 20
"""The most workloads that one estimate looks at."""

WHOLE_DOLLARS_FROM = 100


@dataclass(frozen=True, slots=True)
class GpuEstimate:
    """One kind of GPU on which a workload fits.

    The ranges are those of the cheaper half of its sellers, each with its cheapest way. GPUs, nodes and
    replicas are those held at the peak; ``replicas`` are null for training. ``hours`` are held, start-up
    included. ``cheapest_usd`` can be had with the stock that is known, from ``provider`` first;
    ``median_usd`` is what the middle one of the sellers would cost.
    """

    gpu: str
    provider: str
    offers: int
    sellers: int
    gpus_least: int
    gpus_most: int
    nodes_least: int
    nodes_most: int
    replicas_least: int | None
    replicas_most: int | None
    hours_least: float
    hours_most: float
    cheapest_usd: Decimal
    median_usd: Decimal


@dataclass(frozen=True, slots=True)
class WorkloadEstimate:
    """What one workload would cost alone; ``gpus`` are the kinds that fit, cheapest first.

    ``median_usd`` is over each seller's cheapest way on each kind of GPU. Where no offer fits, both costs
    are null and ``obstacle`` is the gate that none passed. ``dropped`` says how many each gate left out.
    """

    workload: str
    kind: WorkloadKind
    offers: int
    cheapest_usd: Decimal | None
    median_usd: Decimal | None
    gpus: tuple[GpuEstimate, ...] = ()
    obstacle: Obstacle | None = None
    dropped: Mapping[Obstacle, int] = field(default_factory=dict, hash=False)

    @property
    def says(self) -> str:
        """The estimate in one line: GPUs of the cheapest kind, hours, other kinds, and the range of cost."""
        if self.cheapest_usd is None or self.median_usd is None:
            return _nothing_fits(self.obstacle, self.dropped)
        cost = _range(_dollars(self.cheapest_usd), _dollars(self.median_usd))
        if not self.gpus:
            return f"several kinds of GPU together, {cost}"
        best, *others = self.gpus
        held = f"{_range(f'{best.gpus_least:,}', f'{best.gpus_most:,}')} × {best.gpu}"
        span = _range(f"{best.hours_least:,.0f}", f"{best.hours_most:,.0f}")
        kinds = f", or one of {len(others)} other kinds of GPU" if len(others) > 1 else ""
        kinds = f", or {others[0].gpu}" if len(others) == 1 else kinds
        return f"{held} for {span} h{kinds}: {cost}"


def _nothing_fits(obstacle: Obstacle | None, dropped: Mapping[Obstacle, int]) -> str:
    told = [f"{count:,} {DROPPED[gate]}" for gate, count in dropped.items() if gate in DROPPED]
    if obstacle in DROPPED and told:
        return f"no offer fits; left out: {', '.join(told)}"
    reason = "none is on sale" if obstacle is None else str(obstacle).replace("_", " ")
    return f"no offer fits ({reason})" + (f"; left out: {', '.join(told)}" if told else "")


def _range(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _dollars(usd: Decimal) -> str:
    return f"${usd:,.0f}" if usd >= WHOLE_DOLLARS_FROM else f"${usd:,.2f}"


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The estimates of all workloads of a request, in its order."""

    as_of: datetime
    workloads: tuple[WorkloadEstimate, ...]

    @property
    def cheapest_usd(self) -> Decimal:
        """The sum over workloads that fit somewhere."""
        return sum((one.cheapest_usd or ZERO for one in self.workloads), ZERO)

    @property
    def median_usd(self) -> Decimal:
        """The sum over workloads that fit somewhere."""
        return sum((one.median_usd or ZERO for one in self.workloads), ZERO)
