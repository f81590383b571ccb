"""A service divided into lanes: each takes some of its requests, by their size, with a fleet of its own.

A gateway that knows how long requests are sends each size where one GPU serves it for least: short ones to
cards that are cheap, long ones to cards that are fast (Mélange, arXiv 2404.14527). A lane is then a service
like any other, planned, reserved and scaled for itself; every lane keeps the zones and spares of the whole.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from decimal import Decimal

from broker.domain.basics.money import to_cents
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest, RequestSize, Serving, Traffic, mean_tokens


@dataclass(frozen=True, slots=True)
class Lane:
    """``share`` of a service's requests, in (0, 1), in ``sizes`` whose shares of the lane sum to 1."""

    name: str
    share: float
    sizes: tuple[RequestSize, ...]


@dataclass(frozen=True, slots=True)
class DividedService:
    """A service that costs less in ``lanes``: plans of both ways, each with nothing else on the market."""

    service: Serving
    lanes: tuple[Lane, ...]
    whole: Plan
    divided: Plan

    @property
    def saves_usd(self) -> Decimal:
        """What the lanes cost less."""
        return self.whole.cost_usd - self.divided.cost_usd

    @property
    def surely_saves_usd(self) -> Decimal:
        """What they cost less than any fleet that serves all sizes in the same shares; not below zero."""
        least = self.whole.bound_usd or Decimal(0)
        return max(Decimal(0), least - self.divided.cost_usd)

    @property
    def routes(self) -> dict[RequestSize, dict[str, float]]:
        """For each size of the service which share of its requests each lane takes."""
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
    """A service with several sizes that stays whole, and why."""

    service: str
    why: str


@dataclass(frozen=True, slots=True)
class Division:
    """What became of each service with several sizes of request, in the request's order."""

    divided: tuple[DividedService, ...]
    kept: tuple[Undivided, ...]

    def apply(self, request: PlanRequest) -> PlanRequest:
        """The request with lanes in place of the services that are divided."""
        lanes = {one.service.name: one.lanes for one in self.divided}
        return replace(
            request,
            workloads=tuple(
                part
                for workload in request.workloads
                for part in (
                    [lane_service(workload, lane) for lane in lanes[workload.name]]
                    if isinstance(workload, Serving) and workload.name in lanes
                    else [workload]
                )
            ),
        )


def lane_service(service: Serving, lane: Lane) -> Serving:
    """A lane as a service: its part of the requests, and of the price of leaving out."""
    out = service.unplaced_usd
    return replace(
        service,
        name=lane.name,
        traffic=lane_traffic(service.traffic, lane),
        unplaced_usd=None if out is None else to_cents(out * Decimal(lane.share)),
    )


def lane_traffic(traffic: Traffic, lane: Lane) -> Traffic:
    """The requests of a lane; a single size is one without a mix."""
    tokens_in, tokens_out = mean_tokens(lane.sizes)
    return replace(
        traffic,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        peak_requests_per_s=traffic.peak_requests_per_s * lane.share,
        hourly_requests_per_s=tuple(rate * lane.share for rate in traffic.hourly_requests_per_s),
        mix=lane.sizes if len(lane.sizes) > 1 else (),
    )
