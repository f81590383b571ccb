"""Comparisons of plans as JSON: a base plan, other plans, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel

from api.figures import day_and_time, hours
from api.schemas.base.forms import Form, From
from broker.domain.basics.errors import InputError
from broker.domain.basics.money import ZERO
from broker.domain.planning.comparison import (
    AssumedPrices,
    Difference,
    Holding,
    WorkloadOutcome,
    differences_between,
    outcomes_of,
)
from broker.domain.planning.plan import Plan, PlanStatus
from broker.domain.planning.planned_market import SAME_TIME
from broker.domain.planning.workload import PlanRequest, WorkloadKind
from broker.ports.planning import PlanRecord, PlanState

BASE = "base"
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class ComparedPlan:
    """One plan of a comparison.

    ``name`` is the name of its change. ``status`` is the plan's, or the state of its planning until it is
    made; until then the costs and ``finishes_at``, when its last run or batch ends, are null. ``problem``
    says why planning failed. ``difference_usd`` is its cost minus that of the base, and ``moves`` are what
    differs, workload by workload. ``search_error_usd`` is how much cheaper it may still be, by its proven
    bound. With ``prices`` it assumes other prices and cannot be bought.
    """

    name: str
    plan_id: str
    status: PlanStatus | PlanState
    as_of: datetime | None = None
    cost_usd: Decimal | None = None
    difference_usd: Decimal | None = None
    bound_usd: Decimal | None = None
    search_error_usd: Decimal | None = None
    finishes_at: datetime | None = None
    moves: tuple[Difference, ...] = ()
    workloads: tuple[WorkloadOutcome, ...] = ()
    problem: str | None = None
    prices: AssumedPrices | None = None


@dataclass(frozen=True, slots=True)
class ComparisonDocument:
    """Plans beside a base plan. ``comparison_id`` is null for plans that were compared by hand."""

    comparison_id: str | None
    base: ComparedPlan
    plans: tuple[ComparedPlan, ...]

    @property
    def search_error_usd(self) -> Decimal | None:
        """How much cheaper than told one of the plans may still be, by its proven bound; None without bounds.

        A difference that is smaller may come from the search and not from the change.
        """
        errors = (p.search_error_usd for p in (self.base, *self.plans))
        return max((error for error in errors if error is not None), default=None)

    @property
    def prices_note(self) -> str:
        """That the base is of other prices than a plan beside it, in words; empty where it is not."""
        base = self.base.as_of
        times = [plan.as_of for plan in self.plans if plan.as_of is not None]
        if base is None or not times:
            return ""
        other = max(times, key=lambda at: abs(at - base))
        if abs(other - base) <= SAME_TIME:
            return ""
        first, then = (f"{day_and_time(at.astimezone(UTC))} UTC" for at in (base, other))
        return (
            f"The first plan was made at the prices of {first}, and another at those of {then}, "
            f"{hours(abs(other - base) / HOUR)} apart: a part of each difference may come from prices and "
            "stock that moved between. To see the change alone, plan the first document again, and ask of "
            "that plan."
        )

    @property
    def is_complete(self) -> bool:
        """Whether every plan is made, failed or cancelled."""
        plans = (self.base, *self.plans)
        return not any(isinstance(p.status, PlanState) and p.status.is_on_its_way for p in plans)


class AcceptedComparisonForm(BaseModel):
    """Variants that were asked for; ``Location`` says where their comparison will be."""

    comparison_id: str
    plan_ids: list[str]


Form(Holding, about="Capacity of one workload at one place: ``nodes`` at the peak, with ``gpus`` in all.")
Form(
    WorkloadOutcome,
    about="""What a plan does with one workload. ``margin``: hours before the deadline (runs and batches), or
    the share of the tightest latency objective that is left (services).""",
)
Form(
    Difference,
    about="What differs for one workload from the base, as text, and in cost.",
)
ASSUMED_PRICES = Form(
    AssumedPrices, about="Prices of ``factor`` times today's, of ``provider`` (null: of all)."
)
Form(ComparedPlan)
COMPARISON = Form(
    ComparisonDocument, name="ComparisonForm", adds={"prices_note": Annotated[str, From("prices_note")]}
)
ComparisonForm = Annotated[ComparisonDocument, COMPARISON]

ReadRequest = Callable[[str], PlanRequest]


def compare(
    base: PlanRecord,
    others: Sequence[PlanRecord],
    read_request: ReadRequest,
    *,
    comparison_id: str | None = None,
) -> ComparisonDocument:
    """``others`` beside ``base``, with what is left of each objective."""
    first = _outcomes(base, read_request)
    rows = [_of_record(other, base.plan, first, _outcomes(other, read_request)) for other in others]
    return ComparisonDocument(
        comparison_id, replace(_of_record(base, base.plan, first, first), name=BASE), tuple(rows)
    )


def compare_plans(plans: Sequence[tuple[str, Plan]]) -> ComparisonDocument:
    """Plans of files, each with its name, beside the first of them."""
    (_, base), *_ = plans
    first = outcomes_of(base)
    rows = [_of_plan(name, plan, base, first, outcomes_of(plan)) for name, plan in plans]
    return ComparisonDocument(None, rows[0], tuple(rows[1:]))


def _outcomes(record: PlanRecord, read_request: ReadRequest) -> tuple[WorkloadOutcome, ...]:
    """The outcomes of a record; without margins for a document that today's rules refuse."""
    if record.plan is None:
        return ()
    try:
        request = read_request(record.document)
    except InputError:
        request = None
    return outcomes_of(record.plan, request)


def _of_record(
    record: PlanRecord,
    base: Plan | None,
    before: tuple[WorkloadOutcome, ...],
    after: tuple[WorkloadOutcome, ...],
) -> ComparedPlan:
    variant = record.variant
    name = record.plan_id if variant is None else variant.name
    if record.plan is None:
        return ComparedPlan(name, record.plan_id, record.state, problem=record.problem)
    row = _of_plan(name, record.plan, base, before, after)
    return row if variant is None else replace(row, prices=variant.prices)


def _of_plan(
    name: str,
    plan: Plan,
    base: Plan | None,
    before: tuple[WorkloadOutcome, ...],
    after: tuple[WorkloadOutcome, ...],
) -> ComparedPlan:
    return ComparedPlan(
        name=name,
        plan_id=plan.plan_id,
        status=plan.status,
        as_of=plan.as_of,
        cost_usd=plan.cost_usd,
        difference_usd=None if base is None else plan.cost_usd - base.cost_usd,
        bound_usd=plan.bound_usd,
        search_error_usd=None if plan.bound_usd is None else max(ZERO, plan.objective_usd - plan.bound_usd),
        finishes_at=_finish(after),
        moves=() if base is None else differences_between(before, after),
        workloads=after,
    )


def _finish(outcomes: Sequence[WorkloadOutcome]) -> datetime | None:
    """When the last run or batch ends."""
    ends = (one.ends_at for one in outcomes if one.kind is not WorkloadKind.SERVING)
    return max((end for end in ends if end is not None), default=None)


def comparison_to_document(found: ComparisonDocument) -> Any:
    """The comparison as plain data."""
    return COMPARISON.write(found)
