"""Plans as the API keeps them: where each stands, and the plan once there is one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, create_model

from api.schemas.base.forms import From, write
from api.schemas.base.parts import Money
from api.schemas.base.times import Instant, format_time
from api.schemas.finance.finance import DecisionForm
from api.schemas.plans.plan import PLAN
from broker.domain.planning.plan import PlanStatus
from broker.domain.spend.approvals import ApprovalState
from broker.ports.planning import BusinessStatus, PlanRecord, PlanState, Whereabouts

_NOT_IN_LISTS = frozenset({"placements", "spend", "workloads"})


class AcceptedPlanForm(BaseModel):
    """A plan that was asked for; ``Location`` says where it will be."""

    plan_id: str
    status: PlanState


class StandingForm(BaseModel):
    """Where a plan stands: being made (``state``), to its team (``standing``, null until it is made), and
    before finance. ``intended``: it counts in projected spend before it is reserved. ``position``: which of
    those that wait starts it, 1 the next; ``phase``: what the planner is at. A variant says which plan it is
    ``based_on``, its ``change`` and its comparison."""

    state: Annotated[PlanState, From("record.state")]
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
    based_on: Annotated[str | None, From("record.variant?.based_on")] = None
    change: Annotated[str | None, From("record.variant?.name")] = None
    comparison_id: Annotated[str | None, From("record.variant?.comparison_id")] = None


class IntentionForm(BaseModel):
    """Whether a draft counts in projected spend."""

    intended: bool = True


class PlanSummaryForm(StandingForm):
    """A plan as a list shows it: all fields but placements and spend lines. ``status``: the plan's, or until
    there is one its state."""

    plan_id: str
    status: PlanStatus | PlanState
    team: str
    created_at: Instant
    cost_usd: Money | None = None


class UnmadePlanForm(PlanSummaryForm):
    """A plan that is on its way, failed or cancelled, with the document that asked for it."""

    workloads: dict[str, Any]


PlanRecordForm: type[BaseModel] = create_model(
    "PlanRecordForm",
    __base__=(StandingForm, PLAN.model),
    __doc__="A plan that is made, where it stands, and the workloads document that asked for it.",
    workloads=(dict[str, Any], Field(default_factory=dict)),
)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is told of where a plan stands."""

    record: PlanRecord
    standing: BusinessStatus | None
    place: Whereabouts


def record_to_document(
    record: PlanRecord, standing: BusinessStatus | None = None, whereabouts: Whereabouts | None = None
) -> dict[str, Any]:
    """A plan as the API shows it: the whole plan once there is one, else where it stands."""
    body: dict[str, Any] = {"plan_id": record.plan_id, "status": str(record.state)}
    if record.plan is not None:
        body = PLAN.write(record.plan)
    return {
        **body,
        "team": record.team,
        "created_at": format_time(record.created_at),
        **write(StandingForm, _Shown(record, standing, whereabouts or Whereabouts())),
        "workloads": json.loads(record.document),
    }


def record_to_summary(
    record: PlanRecord, standing: BusinessStatus | None = None, whereabouts: Whereabouts | None = None
) -> dict[str, Any]:
    """A plan as a list shows it: without placements, spend lines and the document that asked for it."""
    whole = record_to_document(record, standing, whereabouts)
    return {name: value for name, value in whole.items() if name not in _NOT_IN_LISTS}
