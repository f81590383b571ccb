"""Budgets and approvals as JSON."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.base.parts import Money, PageForm
from api.schemas.base.times import Instant, ToldInstant, format_time
from broker.domain.basics.money import ZERO, format_usd, to_cents
from broker.domain.spend.approvals import ApprovalState, Decision, SeenFigures, Verdict
from broker.domain.spend.budgets import DEFAULT_THRESHOLDS, BudgetPeriod, BudgetStanding
from broker.services.spend.approvals import Approval

LONGEST_COMMENT = 2000
Comment = Annotated[str, Field(max_length=LONGEST_COMMENT)]


class NewBudget(BaseModel):
    """``from`` and ``to`` only with the period ``horizon``."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    limit_usd: Money
    thresholds: list[Annotated[int, Field(strict=True)]] = list(DEFAULT_THRESHOLDS)
    start: Annotated[ToldInstant | None, Field(alias="from")] = None
    end: Annotated[ToldInstant | None, Field(alias="to")] = None


class Word(BaseModel):
    """A decision's comment, and what was looked at: refused where that is not what there is any more."""

    model_config = ConfigDict(extra="forbid")

    comment: Comment = ""
    plan_sha256: Annotated[str | None, Field(max_length=64)] = None
    cost_now_usd: Money | None = None


class ThresholdForm(BaseModel):
    """``reached_on``: by what is owed; ``expected_on``: by what is owed and expected."""

    percent: int
    usd: Money
    reached_on: Instant | None
    expected_on: Instant | None


class BudgetForm(BaseModel):
    """A budget, and where it stands in its period."""

    team: str
    period: BudgetPeriod
    limit_usd: Money
    start: Annotated[Instant, Field(alias="from")]
    end: Annotated[Instant, Field(alias="to")]
    owed_usd: Money
    reserved_usd: Money
    planned_usd: Money
    until_released_usd: Money = ZERO
    expected_usd: Money
    left_usd: Money
    used_share: float
    expected_share: float
    runs_out_on: Instant | None
    thresholds: list[ThresholdForm]
    set_by: str
    set_at: Instant


BudgetPage = PageForm[BudgetForm]


class FiguresForm(BaseModel):
    """What stands before the one who decides."""

    cost_usd: Money
    cost_now_usd: Money | None
    bound_usd: Money | None
    gap: float | None
    projected_p90_usd: Money | None
    budget_left_usd: Money | None
    plan_sha256: str


class DecisionForm(BaseModel):
    """One word on a plan."""

    verdict: Verdict
    by: str
    at: Instant
    comment: str
    seen: FiguresForm | None


class ApprovalForm(BaseModel):
    """A plan before finance."""

    plan_id: str
    team: str
    state: ApprovalState
    requested_by: str
    created_at: Instant
    is_current: bool
    may_decide: bool
    figures: FiguresForm
    decisions: list[DecisionForm]


ApprovalPage = PageForm[ApprovalForm]


def budget_to_document(found: BudgetStanding) -> dict[str, Any]:
    """The JSON form of a budget in its period."""
    budget = found.budget
    return {
        "team": budget.team,
        "period": budget.period.value,
        "limit_usd": format_usd(to_cents(budget.limit_usd)),
        "from": format_time(found.window.start),
        "to": format_time(found.window.end),
        "owed_usd": format_usd(to_cents(found.owed_usd)),
        "reserved_usd": format_usd(to_cents(found.reserved_usd)),
        "planned_usd": format_usd(to_cents(found.planned_usd)),
        "until_released_usd": format_usd(to_cents(found.until_released_usd)),
        "expected_usd": format_usd(to_cents(found.expected_usd)),
        "left_usd": format_usd(to_cents(found.left_usd)),
        "used_share": round(found.used_share, 6),
        "expected_share": round(found.expected_share, 6),
        "runs_out_on": _time(found.runs_out_on),
        "thresholds": [
            {
                "percent": one.percent,
                "usd": format_usd(to_cents(one.usd)),
                "reached_on": _time(one.reached_on),
                "expected_on": _time(one.expected_on),
            }
            for one in found.thresholds
        ],
        "set_by": budget.set_by,
        "set_at": format_time(budget.set_at),
    }


def approval_to_document(found: Approval) -> dict[str, Any]:
    """The JSON form of a plan before finance."""
    record = found.record
    return {
        "plan_id": record.plan_id,
        "team": record.team,
        "state": found.state.value,
        "requested_by": record.requested_by,
        "created_at": format_time(record.created_at),
        "is_current": found.is_current,
        "may_decide": found.may_decide,
        "figures": figures_to_document(found.figures),
        "decisions": [decision_to_document(one) for one in record.decisions],
    }


def decision_to_document(decision: Decision) -> dict[str, Any]:
    """The JSON form of one word on a plan."""
    return {
        "verdict": decision.verdict.value,
        "by": decision.by,
        "at": format_time(decision.at),
        "comment": decision.comment,
        "seen": None if decision.seen is None else figures_to_document(decision.seen),
    }


def figures_to_document(figures: SeenFigures) -> dict[str, Any]:
    """The JSON form of what was seen."""
    return {
        "cost_usd": format_usd(figures.cost_usd),
        "cost_now_usd": _money(figures.cost_now_usd),
        "bound_usd": _money(figures.bound_usd),
        "gap": figures.gap,
        "projected_p90_usd": _money(figures.projected_p90_usd),
        "budget_left_usd": _money(figures.budget_left_usd),
        "plan_sha256": figures.plan_sha256,
    }


def _money(usd: Decimal | None) -> str | None:
    return None if usd is None else format_usd(usd)


def _time(instant: datetime | None) -> str | None:
    return None if instant is None else format_time(instant)
