"""All candidates of a problem: what passed the gates, and a lower bound on the cost of each service."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_FLOOR, Decimal
from types import MappingProxyType

import numpy as np

from broker.domain.basics.money import MICRO, ZERO
from broker.domain.planning.delay_cost import WORTH
from broker.domain.planning.plan import CandidateCounts, Obstacle
from broker.domain.planning.workload import Serving
from optimizer.placement.fleets.bound import FleetBound, hourly_bound
from optimizer.placement.fleets.cases import build_fleet_case
from optimizer.placement.fleets.columns import due_s, time_of
from optimizer.placement.fleets.model import earliest_end, is_small
from optimizer.placement.fleets.pools import pool_numbers
from optimizer.placement.fleets.rules import fleet_rules
from optimizer.placement.problem.columns import in_cents
from optimizer.placement.problem.delays import DelayPrice, delays_usd, keep_price, price_of
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.gates import GateLog
from optimizer.placement.problem.problem import Floats, Problem
from optimizer.placement.problem.units import HOUR_S, FleetCase
from optimizer.placement.runs.builder import build_run_candidates, most_each
from optimizer.placement.runs.candidates import RunCandidates, last_second
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.workers.asks import BoundAsk
from optimizer.placement.workers.worker_pool import Task, WorkerPool, nothing

MOST_PLACEMENTS = 32
NO_PRICES: Mapping[str, Decimal] = MappingProxyType({})
MOST_AMOUNTS = MOST_PLACEMENTS + 1
"""Amounts, each rounded to cents, of a service that follows a run: its placements and its delay."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Run candidates and fleet cases by workload name; ``bounds`` of each service are computed on request.

    ``bounded``: services whose bound was computed for today's market. ``workers`` evaluate the services.
    """

    problem: Problem
    estimates: Estimates
    runs: Mapping[str, RunCandidates]
    fleets: dict[str, FleetCase]
    bounds: dict[str, FleetBound]
    workers: WorkerPool
    bounded: set[str] = field(default_factory=set)

    @property
    def is_small(self) -> bool:
        """Whether the problem is so small that every service's exact model is solved before there is a
        plan.
        """
        return is_small(self.problem)

    def bound_services(
        self,
        out_of_time: Callable[[], bool],
        *,
        waiting: bool = False,
        known_usd: Mapping[str, float] | None = None,
    ) -> None:
        """Bounds services that have no bound yet until ``out_of_time``, those with the most expensive known
        column first.

        ``waiting``: only services that follow a run. A service without a bound contributes nothing to the
        total.
        """
        known = known_usd or {}

        def tasks() -> Iterator[Task]:
            for service in sorted(self.problem.services(), key=lambda s: -known.get(s.name, 0.0)):
                if service.name in self.bounded or (waiting and service.starts_after is None):
                    continue
                if out_of_time():
                    return
                yield self.bound_task(service.name)

        self.workers.run(tasks(), out_of_time)

    def bound_task(self, name: str, then: Callable[[], None] = nothing) -> Task:
        """The task that computes one service's bound."""

        def take(bound: FleetBound) -> None:
            if name not in self.bounded:
                self._take(name, bound)
            then()

        with_terms = None if self.is_small else False
        alone = not self.is_small and self.fleets[name].service.starts_after is None
        ask = BoundAsk(self.fleets[name], self._earliest_s(name), with_terms, np.inf if alone else None)
        return Task(("bound", name), ask, take)

    def bound_with_terms(
        self, out_of_time: Callable[[], bool], known_usd: Mapping[str, float], most_work: int | None = None
    ) -> None:
        """Tightens the bounds of bounded services by including minimum terms, until ``out_of_time``. The
        services with the largest gap between known cost and bound, for each unit that a search looks at, come
        first. ``most_work``: how many levels each search may try.
        """
        open_usd = {name: known_usd.get(name, 0.0) - self.bounds[name].from_due(0.0) for name in self.bounded}
        worth = {name: usd / max(1, len(self.fleets[name].units)) for name, usd in open_usd.items()}

        def tasks() -> Iterator[Task]:
            for name in sorted(worth, key=lambda n: (-worth[n], n)):
                if out_of_time():
                    return
                if open_usd[name] > TUNING.columns.closed_share * known_usd.get(name, 0.0):
                    yield self._terms_task(name, known_usd.get(name, np.inf), most_work)

        self.workers.run(tasks(), out_of_time)

    def _terms_task(self, name: str, known_usd: float, most_work: int | None) -> Task:
        """The task that computes one service's bound with its minimum terms, beside a known fleet."""

        def take(bound: FleetBound) -> None:
            self.bounds[name] = bound.with_starts_of(self.bounds[name])

        alone = self.fleets[name].service.starts_after is None
        incumbent_usd = known_usd if alone else None
        ask = BoundAsk(self.fleets[name], self._earliest_s(name), True, incumbent_usd, most_work)
        return Task(("bound with terms", name, most_work), ask, take)

    def _earliest_s(self, name: str) -> float | None:
        """The earliest end of the run that a service follows."""
        run = self.fleets[name].service.starts_after
        earliest = self.problem.kept.get(earliest_end(run or ""))
        return earliest if isinstance(earliest, float) else None

    def bound_ends(self, most_usd: Mapping[str, float], out_of_time: Callable[[], bool]) -> None:
        """Bounds the services that follow runs, for several ends of each run.

        It stops for a run as soon as the run and its services are proven to cost ``most_usd`` for every
        possible end.
        """
        for name, found in self.runs.items():
            followers = [s.name for s in self.problem.followers(name) if s.name in self.bounded]
            for _ in range(TUNING.columns.most_ends if followers and len(found) else 0):
                end = self._open_end_s(found, followers, most_usd.get(name, np.inf))
                tasks = [
                    self._end_task(service, end) for service in followers if not self._knows(service, end)
                ]
                if not tasks or out_of_time():
                    break
                self.workers.run(iter(tasks), out_of_time)

    def _end_task(self, name: str, end_s: float) -> Task:
        """The task that computes the bound of one service that starts when its run ends at ``end_s``."""

        def take(bound: FleetBound) -> None:
            self.bounds[name] = self.bounds[name].with_starts_of(bound)

        return Task(("bound", name, end_s), BoundAsk(self.fleets[name], end_s), take)

    def _knows(self, name: str, end_s: float) -> bool:
        """Whether the service has a bound computed for exactly this end of its run."""
        return self.bounds[name].next_known_s(self._due_s(name, end_s)) == 0.0

    def _due_s(self, name: str, end_s: float) -> float:
        time = time_of(self.problem, self.fleets[name], end_s)
        return due_s(time, self.bounds[name].longest_cold_s)

    def _open_end_s(self, found: RunCandidates, followers: Sequence[str], most_usd: float) -> float:
        """The end of a run for which the services are bounded next.

        Let e be the end at which the run and its followers may cost least. The chosen end lies after e, so
        that the answer is valid for many ends, but no more than halfway to the next end that was already
        evaluated.
        """
        name = found.run.name
        starts, hours = self._hours_of_ends(found)
        ends = np.concatenate((found.end_s, hours))
        total = np.concatenate(
            (
                found.total_usd + self.least_followers_usd(name, found.end_s),
                found.rest_usd + self._least_between_usd(name, starts, hours),
            )
        )
        first = float(ends[np.argmin(total)])
        known_s = max(self.bounds[service].next_known_s(self._due_s(service, first)) for service in followers)
        asked = (
            (total < most_usd) & (ends >= first) & (ends <= first + min(TUNING.columns.reach_s, known_s / 2))
        )
        return float(ends[asked].max(initial=first))

    def carry(self, name: str, bound: FleetBound, *, same: bool) -> None:
        """Adopts a bound of an earlier search; ``same``: nothing in the market has moved since."""
        self.bounds[name] = bound
        if same:
            self._take(name, bound)

    def _take(self, name: str, bound: FleetBound) -> None:
        self.bounded.add(name)
        self.bounds[name] = bound.with_starts_of(self.bounds[name])
        case = self.fleets[name]
        if case.log.obstacle is None and not bound.met:
            spread = case.service.redundancy.zones > 1
            case.log.obstacle = Obstacle.REDUNDANCY if spread else Obstacle.STOCK

    def log(self, name: str) -> GateLog:
        """The gates' record for a workload."""
        return self.runs[name].log if name in self.runs else self.fleets[name].log

    def without(self, names: frozenset[str]) -> Candidates:
        """The same candidates of a request without some services."""
        if not names:
            return self
        request = self.problem.request
        kept = tuple(w for w in request.workloads if w.name not in names)
        return replace(
            self,
            problem=replace(self.problem, request=replace(request, workloads=kept)),
            fleets={name: case for name, case in self.fleets.items() if name not in names},
            bounds={name: bound for name, bound in self.bounds.items() if name not in names},
            bounded=self.bounded - names,
        )

    def impossible_followers(self) -> frozenset[str]:
        """Services that must be placed after a run that must be placed, and that no offer can serve.

        No plan places everything then. They are left out before the search, so that their runs are placed:
        a service whose run is left out needs nothing, and leaving out the run would seem cheaper.
        """
        request = self.problem.request
        waiting = [
            s for s in self.problem.services() if s.starts_after is not None and s.unplaced_usd is None
        ]
        return frozenset(
            service.name
            for service in waiting
            if request.workload(service.starts_after or "").unplaced_usd is None
            and self.fleets[service.name].log.obstacle is not None
        )

    def counts(self) -> CandidateCounts:
        """Numbers of candidates, summed over all workloads."""
        logs = [self.log(w.name) for w in self.problem.request.workloads]
        return CandidateCounts(sum(log.evaluated for log in logs), sum(log.kept for log in logs))

    def least_service_usd(self, service: Serving, after_s: float | None) -> float:
        """Lower bound on a service's cost if it starts at its own time, or after a run that ends at
        ``after_s``.

        It is inf if there is traffic and nothing can serve it.
        """
        case, bound = self.fleets[service.name], self.bounds[service.name]
        time = time_of(self.problem, case, after_s)
        if not len(case.units) and case.demand[time.first_hour :].any():
            return np.inf
        return bound.from_due(due_s(time, bound.longest_cold_s))

    def least_service_cents(self, service: Serving, after_s: float | None) -> int | None:
        """``least_service_usd`` in cents, rounded so that it never exceeds the bill; None if nothing can
        serve.
        """
        usd = self.least_service_usd(service, after_s)
        if not np.isfinite(usd):
            return None
        if self.bounds[service.name].in_cents:
            return max(0, int(np.ceil(usd * 100 * (1 - 1e-9) - 1e-6)))
        case = self.fleets[service.name]
        most = self.problem.once(
            ("most placements", service.name), lambda: most_placements(self.problem, case)
        )
        return floor_cents(usd, most)

    def least_followers_usd(self, run: str, ends_s: Floats) -> Floats:
        """Lower bound, for each end of ``run``, on what its followers cost with their delay, placed or left
        out.
        """
        unique, inverse = np.unique(ends_s, return_inverse=True)
        least: Floats = self._least_between_usd(run, unique, unique)[inverse]
        return least

    def _least_between_usd(self, run: str, starts_s: Floats, ends_s: Floats) -> Floats:
        """Lower bound on what the followers of ``run`` cost with their delay if it ends between two
        instants.
        """
        found = np.zeros(len(ends_s))
        for service in self.problem.followers(run):
            least = np.array([self.least_service_usd(service, float(end)) for end in ends_s])
            least += delays_usd(self.problem, service.name, starts_s)
            if service.unplaced_usd is not None:
                least = np.minimum(least, float(service.unplaced_usd))
            found += np.where(np.isfinite(least), least, 0.0)
        return found

    def beyond_usd(self, found: RunCandidates) -> float:
        """Lower bound on a run and its followers, for ways of the run that are not among ``found``.

        The end of such a candidate is unknown, so the followers count with the minimum over all hours in
        which the run may end.
        """
        rest_usd = min(found.rest_usd, found.other_usd)
        if not np.isfinite(rest_usd):
            return rest_usd
        return rest_usd + float(self._least_between_usd(found.run.name, *self._hours_of_ends(found)).min())

    def _hours_of_ends(self, found: RunCandidates) -> tuple[Floats, Floats]:
        """First and last instant [H] of each hour in which a run may end."""
        latest = last_second(self.problem, found.run)
        ends = np.append(np.arange(float(self.problem.t0_s), latest, HOUR_S), latest)
        return np.append(ends[:1], ends[:-1]), ends

    def price_delays(self, known_usd_per_hour: Mapping[str, Decimal] = NO_PRICES) -> None:
        """Fixes each waiting service's price for an hour of delay, before any column of it is built.

        The price is the document's, else the one in ``known_usd_per_hour``, else ``WORTH`` times the
        service's lower bound from its earliest start divided by the remaining hours.
        """
        for service in self.problem.services():
            found = self.runs.get(service.starts_after or "")
            if found is None or not len(found) or price_of(self.problem, service.name) is not None:
                continue
            first_s = max(float(found.end_s.min()), float(self.problem.t0_s))
            earliest = self.problem.start_of(service, first_s)
            rate = service.delay_usd_per_hour
            if rate is None:
                rate = known_usd_per_hour.get(service.name)
            if rate is None:
                rate = self._least_usd_per_hour(service, earliest)
            latest = min(last_second(self.problem, found.run), float(self.problem.end_of(service)))
            keep_price(self.problem, service.name, DelayPrice(rate, earliest, latest))

    def _least_usd_per_hour(self, service: Serving, earliest_s: float) -> Decimal:
        hours = (self.problem.end_of(service) - earliest_s) / HOUR_S
        usd = self.least_service_usd(service, earliest_s)
        if hours <= 0 or not np.isfinite(usd):
            return ZERO
        return Decimal(WORTH * usd / hours).quantize(MICRO, rounding=ROUND_FLOOR)


def build_candidates(
    problem: Problem,
    estimates: Estimates,
    out_of_time: Callable[[], bool] | None = None,
    workers: WorkerPool | None = None,
) -> Candidates:
    """Applies the gates and builds the candidates of every workload; with ``out_of_time``, also bounds
    services.
    """
    runs = {}
    most = most_each(len(problem.runs()))
    for run in problem.runs():
        runs[run.name] = build_run_candidates(problem, estimates, run, most)
        if len(runs[run.name].end_s):
            problem.kept[earliest_end(run.name)] = float(runs[run.name].end_s.min())
        if out_of_time is not None:
            out_of_time()
    fleets = {s.name: build_fleet_case(problem, estimates, s) for s in problem.services()}
    bounds = {name: hourly_bound(problem, case) for name, case in fleets.items()}
    found = Candidates(problem, estimates, runs, fleets, bounds, workers or WorkerPool(problem))
    if out_of_time is not None:
        found.bound_services(out_of_time)
    return found


def most_placements(problem: Problem, case: FleetCase) -> int:
    """The most placements of a fleet of a service, each of which is rounded to a cent: the offers of as many
    pools as it may use.
    """
    offers, pools = case.units.offer, pool_numbers(problem, case.units)
    each = np.unique(np.stack((pools, offers)), axis=1)[0]
    most = np.sort(np.bincount(each))[::-1][: fleet_rules(problem, case.service).pools]
    return min(MOST_PLACEMENTS, int(most.sum()))


def floor_cents(usd: float, placements: int = 1) -> int:
    """Whole cents that never exceed the sum of ``placements`` amounts, each of which is rounded to cents."""
    return max(0, int(np.floor(usd * 100 * (1 - 1e-9) - 0.5 * placements)))


def unplaced_cents(problem: Problem, name: str) -> int | None:
    """Penalty for leaving a workload out, in cents; None if it must be placed."""
    usd = problem.request.workload(name).unplaced_usd
    return None if usd is None else in_cents(usd)
