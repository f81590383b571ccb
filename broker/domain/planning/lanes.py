"""Division of a service into lanes, which are services for requests of certain sizes.

A gateway that knows the length of requests routes each size to the GPU that serves it at the lowest cost, for
example short requests to cheap GPUs and long ones to fast GPUs (Mélange, arXiv 2404.14527). Each lane has a
fleet of its own, and is planned, reserved and scaled like any service. Every lane keeps the zones and spare
replicas of the whole service.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from decimal import Decimal

from broker.domain.basics.money import to_cents
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import Serving
from broker.domain.workloads.traffic import RequestSize, Traffic, mean_tokens


@dataclass(frozen=True, slots=True)
class Lane:
    """A share (in (0, 1)) of a service's requests. The shares of ``sizes`` are of the lane, and sum to 1."""

    name: str
    share: float
    sizes: tuple[RequestSize, ...]


@dataclass(frozen=True, slots=True)
class DividedService:
    """A service that costs less in ``lanes``, with its plans as a ``whole`` and ``divided``.

    Both plans have the market to themselves.
    """

    service: Serving
    lanes: tuple[Lane, ...]
    whole: Plan
    divided: Plan

    @property
    def saves_usd(self) -> Decimal:
        """How much less the lanes cost in the two plans."""
        return self.whole.cost_usd - self.divided.cost_usd

    @property
    def surely_saves_usd(self) -> Decimal:
        """How much less the lanes cost than the lower bound of any undivided fleet; at least zero."""
        least = self.whole.bound_usd or Decimal(0)
        return max(Decimal(0), least - self.divided.cost_usd)

    @property
    def routes(self) -> dict[RequestSize, dict[str, float]]:
        """For each request size: the share of its requests that each lane takes."""
        found: dict[RequestSize, dict[str, float]] = {}
        for size in self.service.traffic.mix:
            lengths = size.input_tokens, size.output_tokens
            taken: defaultdict[str, float] = defaultdict(float)
            for lane in self.lanes:
                for one in lane.sizes:
                    if (one.input_tokens, one.output_tokens) == lengths:
                        taken[lane.name] += lane.share * one.share
            whole = sum(taken.values())
            found[size] = {name: share / whole for name, share in taken.items()}
        return found


@dataclass(frozen=True, slots=True)
class Undivided:
    """A service with several request sizes that is not divided, and the reason."""

    service: str
    why: str


@dataclass(frozen=True, slots=True)
class Division:
    """The result for each service with several request sizes, in the order of the document."""

    divided: tuple[DividedService, ...]
    kept: tuple[Undivided, ...]


def lane_service(service: Serving, lane: Lane) -> Serving:
    """A lane as a service, with its share of the requests and of the penalty for not being placed."""
    out = service.unplaced_usd
    return replace(
        service,
        name=lane.name,
        traffic=lane_traffic(service.traffic, lane),
        unplaced_usd=None if out is None else to_cents(out * Decimal(lane.share)),
    )


def lane_traffic(traffic: Traffic, lane: Lane) -> Traffic:
    """The traffic of a lane. With a single size it has no mix."""
    tokens_in, tokens_out = mean_tokens(lane.sizes)
    return replace(
        traffic.times(lane.share),
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        mix=lane.sizes if len(lane.sizes) > 1 else (),
    )
