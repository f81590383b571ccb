"""Plans as the API keeps them: where each stands, and the plan once there is one."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, Field

from api.schemas.base.parts import Money
from api.schemas.base.times import Instant, format_time
from api.schemas.finance.finance import DecisionForm, decision_to_document
from api.schemas.plans.plan import PlanForm
from api.schemas.plans.plan_writer import plan_to_document
from broker.domain.planning.plan import PlanStatus
from broker.domain.spend.approvals import ApprovalState
from broker.ports.planning import PlanRecord, PlanState, Standing, Whereabouts

_NOT_IN_LISTS = frozenset({"placements", "spend", "workloads"})


class AcceptedPlanForm(BaseModel):
    """A plan that was asked for; ``Location`` says where it will be."""

    plan_id: str
    status: PlanState


class StandingForm(BaseModel):
    """Where a plan stands: being made (``state``), to its team (``standing``, null until it is made), and
    before finance. ``intended``: it counts in projected spend before it is reserved. ``position``: which of
    those that wait starts it, 1 the next; ``phase``: what the planner is at."""

    state: PlanState
    position: Annotated[int, Field(ge=1)] | None = None
    phase: str | None = None
    standing: Standing | None
    intended: bool
    problem: str | None
    needs_approval: bool
    approval_reason: str | None
    approved_by: str | None
    approved_at: Instant | None
    approval: ApprovalState | None
    decisions: list[DecisionForm]
    supersedes: str | None


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


class PlanRecordForm(StandingForm, PlanForm):
    """A plan that is made, where it stands, and the workloads document that asked for it."""

    workloads: dict[str, Any] = Field(default_factory=dict)


def record_to_document(
    record: PlanRecord, standing: Standing | None = None, whereabouts: Whereabouts | None = None
) -> dict[str, Any]:
    """A plan as the API shows it: the whole plan once there is one, else where it stands."""
    place = whereabouts or Whereabouts()
    body: dict[str, Any] = {"plan_id": record.plan_id, "status": str(record.state)}
    if record.plan is not None:
        body = plan_to_document(record.plan)
    return {
        **body,
        "team": record.team,
        "created_at": format_time(record.created_at),
        "state": str(record.state),
        "position": place.position,
        "phase": place.phase,
        "standing": None if standing is None else str(standing),
        "intended": record.is_intended,
        "problem": record.problem,
        "needs_approval": record.needs_approval,
        "approval_reason": record.approval_reason,
        "approved_by": record.approved_by,
        "approved_at": format_time(record.approved_at) if record.approved_at else None,
        "approval": None if record.approval is None else str(record.approval),
        "decisions": [decision_to_document(decision) for decision in record.decisions],
        "supersedes": record.supersedes,
        "workloads": json.loads(record.document),
    }


def record_to_summary(
    record: PlanRecord, standing: Standing | None = None, whereabouts: Whereabouts | None = None
) -> dict[str, Any]:
    """A plan as a list shows it: without placements, spend lines and the document that asked for it."""
    whole = record_to_document(record, standing, whereabouts)
    return {name: value for name, value in whole.items() if name not in _NOT_IN_LISTS}
