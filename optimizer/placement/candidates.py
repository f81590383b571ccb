"""All candidates of a problem: what the gates let through, and the least that each service can cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.plan import CandidateCounts, Obstacle
from broker.domain.workload import Serving
from optimizer.placement.columns import in_cents
from optimizer.placement.estimates import Estimates
from optimizer.placement.fleet_bound import FleetBound, bound_fleet
from optimizer.placement.fleet_columns import time_of
from optimizer.placement.gates import GateLog
from optimizer.placement.holding import due_s
from optimizer.placement.problem import Floats, Problem
from optimizer.placement.runs import RunCandidates, build_run_candidates
from optimizer.placement.units import FleetCase, build_fleet_case
from optimizer.placement.windows import build_window_rows

MOST_PLACEMENTS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Run candidates and fleet cases by workload name; ``bounds`` of each service."""

    problem: Problem
    estimates: Estimates
    runs: Mapping[str, RunCandidates]
    fleets: Mapping[str, FleetCase]
    bounds: Mapping[str, FleetBound]

    def log(self, name: str) -> GateLog:
        """What the gates did for a workload."""
        return self.runs[name].log if name in self.runs else self.fleets[name].log

    def counts(self) -> CandidateCounts:
        """Candidates over all workloads."""
        logs = [self.log(w.name) for w in self.problem.request.workloads]
        return CandidateCounts(sum(log.evaluated for log in logs), sum(log.kept for log in logs))

    def least_service_usd(self, service: Serving, after_s: float | None) -> float:
        """Least cost of a service that starts with the horizon, at its time, or after a run."""
        case, bound = self.fleets[service.name], self.bounds[service.name]
        time = time_of(self.problem, case, after_s)
        return bound.from_due(due_s(self.problem, time, after_s is not None, bound.longest_cold_s))

    def least_service_cents(self, service: Serving, after_s: float | None) -> int | None:
        """The same in cents, surely not above what a bill would say; None when nothing can serve."""
        usd = self.least_service_usd(service, after_s)
        if not np.isfinite(usd):
            return None
        if self.bounds[service.name].in_cents:
            return max(0, int(np.ceil(usd * 100 * (1 - 1e-9) - 1e-6)))
        offers = len(np.unique(self.fleets[service.name].units.offer))
        return floor_cents(usd, min(MOST_PLACEMENTS, offers))

    def least_followers_usd(self, run: str, ends_s: Floats) -> Floats:
        """Least that the services after ``run`` cost, placed or left out, for each end of it."""
        found = np.zeros(len(ends_s))
        for service in self.problem.followers(run):
            unique, inverse = np.unique(ends_s, return_inverse=True)
            least = np.array([self.least_service_usd(service, float(end)) for end in unique])
            if service.unplaced_usd is not None:
                least = np.minimum(least, float(service.unplaced_usd))
            found += np.where(np.isfinite(least), least, 0.0)[inverse]
        return found


def build_candidates(
    problem: Problem, estimates: Estimates, out_of_time: Callable[[], bool] | None = None
) -> Candidates:
    """Gates, candidates and service bounds of every workload.

    Bounds are made until ``out_of_time``; a service without one counts for nothing. Without
    ``out_of_time`` none is made.
    """
    windows = build_window_rows(problem)
    runs, fleets = {}, {}
    for run in problem.runs():
        runs[run.name] = build_run_candidates(problem, estimates, windows, run)
        if out_of_time is not None:
            out_of_time()
    for service in problem.services():
        fleets[service.name] = build_fleet_case(problem, estimates, service)
    bounds = dict.fromkeys(fleets, FleetBound.nothing())
    for name in bounds:
        if out_of_time is None or out_of_time():
            break
        bounds[name] = bound_fleet(problem, fleets[name])
        fleets[name] = _judged(fleets[name], bounds[name])
    return Candidates(problem, estimates, runs, fleets, bounds)


def _judged(case: FleetCase, bound: FleetBound) -> FleetCase:
    """The case with what its bound has shown."""
    if case.log.obstacle is None and not bound.feasible:
        spread = case.service.redundancy.zones > 1
        case.log.obstacle = Obstacle.REDUNDANCY if spread else Obstacle.STOCK
    return replace(case, spare_rates=bound.spare_rates, covers=bound.covers)


def floor_cents(usd: float, placements: int = 1) -> int:
    """Whole cents that are surely not above what ``placements`` amounts, each rounded, sum to."""
    return max(0, int(np.floor(usd * 100 * (1 - 1e-9) - 0.5 * placements)))


def unplaced_cents(problem: Problem, name: str) -> int | None:
    """What leaving a workload out costs; None when it must be placed."""
    usd = problem.request.workload(name).unplaced_usd
    return None if usd is None else in_cents(usd)
