"""The interface of the optimizer, which fulfils ``broker.ports.planning``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.confidence import MEDIAN
from broker.domain.basics.errors import PlanInvalid
from broker.domain.market.offer import Offer
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.cost_estimate import CostEstimate
from broker.domain.planning.lanes import Division
from broker.domain.planning.plan import ConfidencePrice, Plan
from broker.domain.planning.planning_time import require_time
from broker.domain.planning.simulation import Simulation
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanOptions, Progress, ProgressSink
from optimizer import plan_costs
from optimizer.confidence_prices import LEVELS, confidence_prices
from optimizer.memo_cache import MemoCache
from optimizer.performance.estimator import Estimator
from optimizer.placement.compile_ahead import compile_once
from optimizer.placement.first_estimate import estimate_costs
from optimizer.placement.fleets.dividing import divide
from optimizer.placement.pipeline import limit_clock, make_plan
from optimizer.placement.replan.replan import Replanned, replan
from optimizer.placement.replan.warm import WarmStart
from optimizer.placement.rules.case import Case
from optimizer.placement.rules.chances import with_chances
from optimizer.placement.rules.check import check_plan
from optimizer.placement.runtime.stopwatch import Stopwatch, clock_of
from optimizer.plan_costs import with_costs
from optimizer.quantile_budget import bounded_by, within_quantile
from optimizer.simulation import simulate

MOST_APART = timedelta(days=1)
"""The most time between a plan and the market that it is checked against, which may be of a later poll."""


class JointPlanner:
    """Places training, serving and batch workloads jointly on one market.

    ``terms``: prices of data transfer. Results are cached by all their inputs, so planning again over a
    market with few changes computes only what changed. ``wall``: the clock of guards, in seconds.
    """

    def __init__(
        self,
        estimator: Estimator,
        terms: MovingTerms | None = None,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._estimator = estimator
        self._wall = wall
        self._terms = terms or MovingTerms()
        self._memo = MemoCache()

    def plan(
        self,
        request: PlanRequest,
        offers: Sequence[Offer],
        as_of: datetime,
        options: PlanOptions,
        progress: ProgressSink | None = None,
    ) -> Plan:
        """A plan that passed the independent check.

        Raises InputError for a request without a meaning and for a time limit that is too short for the
        request's size, and PlanInvalid if the check finds an error of the planner.
        """
        require_time(len(request.workloads), options.time_limit_s)
        _compile(progress)

        def planned(asked: PlanRequest, limits: PlanOptions) -> Plan:
            made = make_plan(asked, offers, as_of, limits, self._estimator, self._terms, progress, self._memo)
            return self._checked(made, asked, offers)

        paid = self._paid(request, offers)
        plan, free = within_quantile(request, options, planned, lambda found: found, paid)
        return plan if free is None else self._checked(bounded_by(plan, free), request, offers)

    def estimate(self, request: PlanRequest, offers: Sequence[Offer], as_of: datetime) -> CostEstimate:
        """What each workload would cost alone, without a search: see ``CostEstimate``. Raises InputError."""
        return estimate_costs(request, offers, as_of, self._estimator, self._terms, self._memo)

    def replan(
        self,
        request: PlanRequest,
        offers: Sequence[Offer],
        as_of: datetime,
        options: PlanOptions,
        warm: WarmStart,
        progress: ProgressSink | None = None,
    ) -> Replanned:
        """A checked plan that starts from an existing one and counts the cost of leaving it; raises as
        ``plan``.
        """
        _compile(progress)

        def planned(asked: PlanRequest, limits: PlanOptions) -> Replanned:
            clock = clock_of(limit_clock(asked, limits), limits.guard_s, self._wall)
            whole = Stopwatch(limits.time_limit_s, clock)
            found = replan(
                asked, offers, as_of, limits, self._estimator, warm, self._terms, whole, progress, self._memo
            )
            return replace(found, plan=self._checked(found.plan, asked, offers, held))

        held = frozenset(warm.leaving_usd)
        paid = self._paid(request, offers)
        found, free = within_quantile(request, options, planned, lambda found: found.plan, paid)
        if free is None:
            return found
        return replace(found, plan=self._checked(bounded_by(found.plan, free), request, offers, held))

    def divide(
        self,
        request: PlanRequest,
        offers: Sequence[Offer],
        as_of: datetime,
        options: PlanOptions,
        least_saving: float,
    ) -> Division:
        """Lanes for services with several request sizes, where they save more than ``least_saving`` of the
        cost.

        ``options`` apply to each plan that judges a service, whole or divided. Raises as ``plan``.
        """

        def judged(asked: PlanRequest) -> Plan:
            return self.plan(asked, offers, as_of, replace(options, baselines=False))

        return divide(request, offers, as_of, self._estimator, self._terms, self._memo, judged, least_saving)

    def _checked(
        self,
        plan: Plan,
        request: PlanRequest,
        offers: Sequence[Offer],
        held: frozenset[str] = frozenset(),
    ) -> Plan:
        """The plan with the chances of its workloads and what is paid in the end; ``held`` ones had nodes
        before. Raises PlanInvalid.
        """
        case = self._case(plan, request, offers)
        plan = with_costs(with_chances(plan, case), case)
        violations = check_plan(plan, request, offers, self._estimator, self._terms, held)
        if violations:
            raise PlanInvalid(violations)
        return plan

    def check(self, plan: Plan, request: PlanRequest, offers: Sequence[Offer]) -> tuple[str, ...]:
        """Every violation in plain words, none for a valid plan; never calls the solver."""
        found = check_plan(plan, request, offers, self._estimator, self._terms)
        return found or tuple(plan_costs.violations(self._case(plan, request, offers)))

    def _paid(self, request: PlanRequest, offers: Sequence[Offer]) -> Callable[[Plan], Decimal]:
        """What is paid for a plan at most, with the chance with which the budget holds."""
        chance = request.budget_confidence or MEDIAN
        return lambda plan: plan_costs.paid_usd(self._case(plan, request, offers), chance)

    def _case(self, plan: Plan, request: PlanRequest, offers: Sequence[Offer]) -> Case:
        return Case.of(plan, request, offers, self._estimator, self._terms)

    def simulate(
        self, plan: Plan, request: PlanRequest, offers: Sequence[Offer], draws: int, seed: int
    ) -> Simulation:
        """What may happen to a valid plan, over ``draws`` draws. Raises PlanInvalid."""
        violations = self.check(plan, request, offers)
        if violations:
            raise PlanInvalid(violations)
        return simulate(plan, request, offers, self._estimator, self._terms, draws, seed)

    def price_confidence(
        self,
        plan: Plan,
        request: PlanRequest,
        offers: Sequence[Offer],
        as_of: datetime,
        options: PlanOptions,
        *,
        is_same_market: bool = True,
    ) -> tuple[ConfidencePrice, ...]:
        """What the document of ``plan`` costs at other confidences; see ``ConfidencePrice``.

        All searches together have the time limit of ``options``. ``is_same_market``: that of the plan, which
        then stands for its own confidence. Raises as ``plan``.
        """
        each = replace(
            options, time_limit_s=options.time_limit_s / len(LEVELS), baselines=False, label="", guard_s=None
        )

        def planned(asked: PlanRequest) -> Plan:
            pairs = zip(request.workloads, asked.workloads, strict=True)
            is_own = all(own.planned_confidence == one.planned_confidence for own, one in pairs)
            return plan if is_same_market and is_own else self.plan(asked, offers, as_of, each)

        return confidence_prices(request, {row.workload for row in plan.unplaced}, planned)

    def check_times(self, plan: Plan, prices_at: datetime) -> tuple[str, ...]:
        """Violations of the times that a plan states, beside the time of the market's prices."""
        return tuple(_untimely(plan, prices_at))


def _untimely(plan: Plan, prices_at: datetime) -> Iterator[str]:
    if abs(plan.as_of - prices_at) > MOST_APART:
        expected = f"at most {MOST_APART.days} day from the market that it is checked against"
        yield f"as_of is {plan.as_of.isoformat()}, expected {expected}, which is of {prices_at.isoformat()}"
    if plan.created_at < plan.as_of:
        yield f"created_at is {plan.created_at.isoformat()}, before as_of, {plan.as_of.isoformat()}"


def _compile(progress: ProgressSink | None) -> None:
    """Compiles the planner's loops if they are not compiled yet, outside of any time limit."""

    def tell() -> None:
        if progress is not None:
            progress(Progress(0.0, None, None, None, "compiling, once for this version"))

    compile_once(tell)
