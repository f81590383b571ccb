"""Tries one workload under a changed request while all others keep what they hold.

A trial builds the candidates of the workload and its followers, subtracts the others' nodes and quotas, and
finds the cheapest columns, whatever they cost: the caller judges the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from broker.domain.planning.effective_rules import assumed_nodes
from broker.domain.planning.workload import FleetLimits, PlanRequest, Policy, Serving, Training, Workload
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.fleet_pool import remaining_nodes
from optimizer.placement.columns.run_pool import RunPool, bare_pools
from optimizer.placement.fleets.bound import FleetBound
from optimizer.placement.fleets.cases import build_fleet_case
from optimizer.placement.fleets.model import earliest_end, model_fleets
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.estimates import Estimates, build_estimates
from optimizer.placement.problem.gpu_pools import build_pools
from optimizer.placement.problem.problem import Floats, OfferTable, Problem, own_stock, under_quotas
from optimizer.placement.problem.quotas import QUOTA_ROWS
from optimizer.placement.problem.transfers import placed_after
from optimizer.placement.runs.builder import build_run_candidates
from optimizer.placement.runs.candidates import RunCandidates
from optimizer.placement.runs.columns import build_run_column
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.moves import (
    DependencyGroup,
    FleetMaker,
    RemainingCapacity,
    cheaper_way,
    cheapest_fleet,
    fitting_runs,
    remaining_capacity,
)
from optimizer.placement.workers.worker_pool import WorkerPool

RunKey = Callable[[Problem, RunCandidates], Floats]


@dataclass(frozen=True, slots=True)
class Way:
    """The columns of a workload and its followers; ``lead`` is its own column."""

    lead: Column
    columns: tuple[Column, ...]

    @property
    def cost_cents(self) -> int:
        """What counts against the budget."""
        return sum(column.counted_cents for column in self.columns)

    @property
    def total_cents(self) -> int:
        """Cost and lateness."""
        return sum(column.total_cents for column in self.columns)


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """The candidates of one workload under a changed request, and the capacity that others leave."""

    candidates: Candidates
    group: DependencyGroup
    room: RemainingCapacity
    after: Column | None
    make: FleetMaker

    def cheapest(self) -> Way | None:
        """The cheapest columns; None if there are none."""
        name = self.group.lead
        if self.candidates.log(name).obstacle is not None:
            return None
        if name in self.candidates.fleets:
            column = cheapest_fleet(self.candidates, name, self.room, self.after, inf, self.make)
            return None if column is None else Way(column, (column,))
        pools = bare_pools(self.candidates)
        found = cheaper_way(self.candidates, pools, self.group, self.room, inf, self.make)
        return None if found is None else Way(found[name], tuple(found.values()))

    def nearest(self, key: RunKey, below_cents: float) -> Column | None:
        """The column of a run with the least ``key`` that costs less than a limit."""
        pool = bare_pools(self.candidates).get(self.group.lead)
        if pool is None or not len(pool.found):
            return None
        return next(self._by(pool, key, below_cents), None)

    def earliest(self, below_cents: float) -> Column | None:
        """The column of a run that ends first, started at once or when another holding ends."""
        pool = bare_pools(self.candidates).get(self.group.lead)
        if pool is None:
            return None
        at_once = next(self._by(pool, lambda _, found: found.end_s, below_cents), None)
        waiting = fitting_runs(self.candidates, pool, self.room, below_cents)
        return min(
            [*([] if at_once is None else [at_once]), *waiting],
            key=lambda column: (column.end_s, column.total_cents),
            default=None,
        )

    def _by(self, pool: RunPool, key: RunKey, below_cents: float) -> Iterator[Column]:
        problem, found = self.candidates.problem, pool.found
        cheap = np.flatnonzero(found.total_usd * 100 < below_cents)
        order = cheap[np.lexsort((found.total_usd[cheap], key(problem, found)[cheap]))]
        for index in order[: TUNING.explain.most_trial_columns]:
            column = build_run_column(problem, self.candidates.estimates, found, int(index))
            if column is not None and column.total_cents < below_cents and self.room.allows(column):
                yield column


@dataclass(slots=True)
class Trials:
    """Trials of workloads of a plan's candidates, given the columns ``chosen``.

    After ``most`` trials every further one fails; so does one after the first few once ``most_s`` seconds of
    work have been counted. ``make`` builds fleets.
    """

    candidates: Candidates
    chosen: Mapping[str, Column]
    most: int
    most_s: float = inf
    make: FleetMaker = model_fleets
    tried: int = 0
    spent_s: float = 0.0
    _found: list[tuple[PlanRequest, str, tuple[Way, ...], Way]] = field(default_factory=list)

    def open(self, request: PlanRequest, name: str, others: Sequence[Way] = ()) -> Trial | None:
        """A trial of one workload under ``request``, given also the columns ``others``; None if no more
        trials are allowed.
        """
        if self.tried >= self.most or (
            self.tried >= TUNING.explain.least_trials and self.spent_s >= self.most_s
        ):
            return None
        self.tried += 1
        workload = request.workload(name)
        followers = tuple(service.name for service in request.followers(name))
        group = DependencyGroup(name, followers)
        problem = self._problem(request, workload, group)
        estimates = self._estimates(problem, workload)
        runs, fleets = {}, {}
        for one in problem.request.workloads:
            if one.name not in group.names:
                continue
            if isinstance(one, Serving):
                fleets[one.name] = build_fleet_case(problem, estimates, one)
            else:
                runs[one.name] = build_run_candidates(
                    problem, estimates, one, TUNING.explain.most_trial_candidates, bounded=False
                )
        self.spent_s += TUNING.explain.unit_hour_s * sum(
            len(case.units) * len(case.demand) for case in fleets.values()
        )
        self.spent_s += TUNING.explain.run_s * sum(len(found) for found in runs.values())
        bounds = dict.fromkeys(fleets, FleetBound.nothing())
        made = Candidates(problem, estimates, runs, fleets, bounds, WorkerPool(problem))
        taken = {**self.chosen, **{column.workload: column for way in others for column in way.columns}}
        kept = {other: column for other, column in taken.items() if other not in group.names}
        room = replace(remaining_capacity(made, kept, ()), budget_cents=None)
        after = workload.starts_after if isinstance(workload, Serving) else None
        return Trial(made, group, room, None if after is None else self.chosen.get(after), self.make)

    def cheapest(self, request: PlanRequest, name: str, others: Sequence[Way] = ()) -> Way | None:
        """The cheapest columns of one workload under ``request``; None if there are none.

        A way that was found before is returned again without another trial.
        """
        asked = request, name, tuple(others)
        for *known, found in self._found:
            if tuple(known) == asked:
                return found
        trial = self.open(request, name, others)
        way = None if trial is None else trial.cheapest()
        if way is not None:
            self._found.append((*asked, way))
        return way

    def _problem(self, request: PlanRequest, workload: Workload, group: DependencyGroup) -> Problem:
        """The problem of only the dependency group and the run that it follows."""
        problem = self.candidates.problem
        old, table, of_market = problem.request, problem.table, problem.kept_of_market
        assumed = assumed_nodes(request)
        if _quotas(request) != _quotas(old) or assumed != assumed_nodes(old):
            key = "market under", _quotas(request), assumed
            table, of_market = problem.once(key, lambda: (_market_under(request, table, assumed), {}))
        needed = {*group.names, workload.starts_after if isinstance(workload, Serving) else None}
        kept = {key: made for key, made in problem.kept.items() if key != QUOTA_ROWS}
        if table is not problem.table or request.horizon != old.horizon:
            known = [earliest_end(name) for name in needed if name is not None]
            kept = {key: kept[key] for key in known if key in kept}
        return replace(
            problem,
            request=replace(request, workloads=tuple(w for w in request.workloads if w.name in needed)),
            end_s=int((request.horizon.end - problem.origin).total_seconds()),
            table=table,
            kept=kept,
            kept_of_market=of_market,
        )

    def _estimates(self, problem: Problem, workload: Workload) -> Estimates:
        """The known estimates, if the workload's physical properties are unchanged; else new ones."""
        known = self.candidates.estimates
        if _physics(workload) == _physics(self.candidates.problem.request.workload(workload.name)):
            return known
        return build_estimates(problem, known.estimator)


def _market_under(request: PlanRequest, table: OfferTable, assumed: int) -> OfferTable:
    """The market with other quotas, or with another number of assumed nodes."""
    stock, pools = own_stock(table.offers, assumed), build_pools(table.offers, assumed)
    return under_quotas(request, replace(table, stock_nodes=stock, pools=pools))


def _quotas(request: PlanRequest) -> tuple[object, ...]:
    return request.quotas, request.policy.quotas


def _physics(workload: Workload) -> tuple[object, ...]:
    """The properties that a fix may change and that the performance core uses."""
    if isinstance(workload, Training):
        return (workload.precision,)
    if isinstance(workload, Serving):
        return workload.precisions, workload.engine, workload.slo
    return workload.precisions, workload.engine


def fleets_under(
    trials: Trials,
    service: Serving,
    mine: Column,
    limits: FleetLimits,
    offers: Sequence[int] | None = None,
) -> list[Column]:
    """Fleets with the start of ``mine`` on some offers (None: on any) that fit in what other workloads
    leave.
    """
    trial = trials.open(_under(trials.candidates.problem.request, service, limits), service.name)
    if trial is None or trial.candidates.log(service.name).obstacle is not None:
        return []
    problem, case = trial.candidates.problem, trial.candidates.fleets[service.name]
    free = remaining_nodes(trial.candidates, case.service, trial.room.ledger, mine.after_s)
    if offers is not None:
        inside = np.zeros_like(free)
        inside[list(offers)] = free[list(offers)]
        free = inside
    made = trials.make(problem, case, free, [mine.after_s])
    linked = [placed_after(problem, column, mine.after_place) for column in made]
    return [column for column in linked if trial.room.allows(column)]


def _under(request: PlanRequest, service: Serving, limits: FleetLimits) -> PlanRequest:
    """The request with these limits on a service's fleet, overriding the policies."""

    def unlimited(policy: Policy) -> Policy:
        return replace(policy, fleet=FleetLimits())

    changed = replace(service, fleet=limits, policy=unlimited(service.policy))
    workloads = tuple(changed if w.name == service.name else w for w in request.workloads)
    return replace(request, policy=unlimited(request.policy), workloads=workloads)
