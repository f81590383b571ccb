"""Stored plans as JSON: their state, and the plan once it is made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from api.schemas.base.forms import From, write
from api.schemas.base.parts import Money
from api.schemas.base.times import Instant, format_time
from api.schemas.finance.finance import DecisionForm
from api.schemas.plans.comparison import ASSUMED_PRICES
from api.schemas.plans.plan import PLAN
from broker.domain.holding.plan_holding import PlanHolding
from broker.domain.planning.comparison import AssumedPrices
from broker.domain.planning.plan import PlanStatus
from broker.domain.spend.approvals import ApprovalState
from broker.ports.planning import BusinessStatus, PlanRecord, PlanState, Whereabouts

_NOT_IN_LISTS = frozenset({"placements", "spend", "workloads"})


STATE = Field(
    description="How the making of the plan goes. `status` alone tells where a plan is",
    json_schema_extra={"deprecated": True},
)


def workloads_of(record: PlanRecord) -> tuple[str, ...]:
    """The names of the workloads in the document of a plan."""
    return tuple(str(row.get("name", "")) for row in json.loads(record.document).get("workloads", ()))


class AcceptedPlanForm(BaseModel):
    """The answer to a request for a plan; the header ``Location`` has its address."""

    plan_id: str
    status: PlanStatus | PlanState


class NodesHeldForm(BaseModel):
    """Of the nodes that a workload of a reserved plan is planned on, those that are held, are still to be
    bought, and are missing.
    """

    workload: str
    planned: int
    held: int
    waiting: int
    missing: int


class PlanHoldingForm(BaseModel):
    """What is held of a reserved plan: at the time from now on at which most is missing, else now or at its
    start. ``missing`` nodes were refused, or taken away and not bought again.
    """

    planned: int
    held: int
    waiting: int
    missing: int
    text: str
    workloads: list[NodesHeldForm]


class StandingForm(BaseModel):
    """The status of a plan: whether it is in force (``standing``, null until it is made), and its approval.

    ``intended``: it counts in projected spend before it is reserved. ``position``: its place in the queue, 1
    is next. ``phase``: the current step of the planner. A variant says which plan it is ``based_on``, its
    ``change``, its comparison, and prices that it assumes. ``continues``: the plan whose search it continues;
    ``continued_by``: the latest plan that continues its own. ``holding``: what is held of it; null unless it
    is reserved. ``stale_because``: why it cannot be reserved as planned; plan its document again.
    """

    workload_names: Annotated[list[str], From(lambda shown: list(workloads_of(shown.record)))] = []
    state: Annotated[PlanState, From("record.state"), STATE]
    position: Annotated[int | None, Field(ge=1), From("place.position")] = None
    phase: Annotated[str | None, From("place.phase")] = None
    standing: BusinessStatus | None
    intended: Annotated[bool, From("record.is_intended")]
    problem: Annotated[str | None, From("record.problem")]
    needs_approval: Annotated[bool, From("record.needs_approval")]
    approval_reason: Annotated[str | None, From("record.approval_reason")]
    approved_by: Annotated[str | None, From("record.approved_by")]
    approved_at: Annotated[Instant | None, From("record.approved_at")]
    approval: Annotated[ApprovalState | None, From("record.approval")]
    decisions: Annotated[list[DecisionForm], From("record.decisions")]
    supersedes: Annotated[str | None, From("record.supersedes")]
    continues: Annotated[str | None, From("record.continues")] = None
    continued_by: Annotated[str | None, From("record.continued_by")] = None
    based_on: Annotated[str | None, From("record.variant?.based_on")] = None
    change: Annotated[str | None, From("record.variant?.name")] = None
    comparison_id: Annotated[str | None, From("record.variant?.comparison_id")] = None
    assumed_prices: Annotated[
        Annotated[AssumedPrices, ASSUMED_PRICES] | None, From("record.variant?.prices")
    ] = None
    holding: PlanHoldingForm | None = None
    stale_because: list[str] = []


class IntentionForm(BaseModel):
    """Whether a draft counts in projected spend."""

    model_config = ConfigDict(extra="forbid")

    intended: bool = True


class PlanSummaryForm(StandingForm):
    """A plan in a list: all fields but placements and spend lines. ``status`` is the plan's, or its state
    until it is made.
    """

    plan_id: str
    status: PlanStatus | PlanState
    team: str
    created_at: Instant
    cost_usd: Money | None = None


class UnmadePlanForm(PlanSummaryForm):
    """A plan that is being made, failed or was cancelled, with its workloads document."""

    workloads: dict[str, Any]


PlanRecordForm: type[BaseModel] = create_model(
    "PlanRecordForm",
    __base__=(StandingForm, PLAN.model),
    __doc__="A plan that is made, its status, and its workloads document.",
    workloads=(dict[str, Any], Field(default_factory=dict)),
)


@dataclass(frozen=True, slots=True)
class _Shown:
    """The source of a plan's status."""

    record: PlanRecord
    standing: BusinessStatus | None
    place: Whereabouts
    holding: PlanHolding | None
    stale_because: Sequence[str]


def status_of(record: PlanRecord) -> str:
    """Where a plan is: the solver's word once it is made, its state before that."""
    return str(record.state if record.plan is None else record.plan.status)


def record_to_document(
    record: PlanRecord,
    standing: BusinessStatus | None = None,
    whereabouts: Whereabouts | None = None,
    holding: PlanHolding | None = None,
    stale: Sequence[str] = (),
) -> dict[str, Any]:
    """A plan as the API shows it: the whole plan once it is made, before that its status."""
    body: dict[str, Any] = {"plan_id": record.plan_id, "status": status_of(record)}
    if record.plan is not None:
        body = PLAN.write(record.plan)
    return {
        **body,
        "team": record.team,
        "created_at": format_time(record.created_at),
        **write(StandingForm, _Shown(record, standing, whereabouts or Whereabouts(), holding, stale)),
        "workloads": json.loads(record.document),
    }


def record_to_summary(
    record: PlanRecord,
    standing: BusinessStatus | None = None,
    whereabouts: Whereabouts | None = None,
    holding: PlanHolding | None = None,
    stale: Sequence[str] = (),
) -> dict[str, Any]:
    """A plan in a list: without placements, spend lines and workloads document."""
    whole = record_to_document(record, standing, whereabouts, holding, stale)
    return {name: value for name, value in whole.items() if name not in _NOT_IN_LISTS}
