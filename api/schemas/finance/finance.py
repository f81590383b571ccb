"""Budgets and approvals as JSON."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.base.forms import Form, From, PageForm, form_of, rounded, write
from api.schemas.base.parts import Cents, Money
from api.schemas.base.times import Instant, ToldInstant
from broker.domain.basics.money import ZERO
from broker.domain.spend.approvals import ApprovalState, Decision, Purchase, SeenFigures
from broker.domain.spend.budgets import DEFAULT_THRESHOLDS, BudgetPeriod, BudgetStatus, ThresholdStatus
from broker.services.spend.approvals import Approval

LONGEST_COMMENT = 2000
Comment = Annotated[str, Field(max_length=LONGEST_COMMENT)]


class NewBudget(BaseModel):
    """A budget to set. ``from`` and ``to`` are given only with the period ``horizon``."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    limit_usd: Money
    thresholds: list[Annotated[int, Field(strict=True)]] = list(DEFAULT_THRESHOLDS)
    start: Annotated[ToldInstant | None, Field(alias="from")] = None
    end: Annotated[ToldInstant | None, Field(alias="to")] = None
    confidence: float | None = None


class Word(BaseModel):
    """A decision with a comment, and the state that it is based on; it is refused if that has changed."""

    model_config = ConfigDict(extra="forbid")

    comment: Comment = ""
    plan_sha256: Annotated[str | None, Field(max_length=64)] = None
    cost_now_usd: Money | None = None


Form(
    ThresholdStatus,
    name="ThresholdForm",
    about="``reached_on``: the day by what is owed; ``expected_on``: by what is owed and expected.",
    types={"usd": Cents},
)


class LaterPeriodForm(BaseModel):
    """A later period of a budget in which something costs money."""

    start: Annotated[Instant, Field(alias="from"), From("window.start")]
    end: Annotated[Instant, Field(alias="to"), From("window.end")]
    owed_usd: Cents
    reserved_usd: Cents
    planned_usd: Cents
    until_released_usd: Cents
    expected_usd: Cents
    left_usd: Cents
    expected_share: Annotated[float, rounded(6)]


class BudgetForm(BaseModel):
    """A budget, and its use in its period."""

    team: Annotated[str, From("budget.team")]
    period: Annotated[BudgetPeriod, From("budget.period")]
    limit_usd: Annotated[Cents, From("budget.limit_usd")]
    start: Annotated[Instant, Field(alias="from"), From("window.start")]
    end: Annotated[Instant, Field(alias="to"), From("window.end")]
    owed_usd: Cents
    reserved_usd: Cents
    planned_usd: Cents
    until_released_usd: Cents = ZERO
    expected_usd: Cents
    left_usd: Cents
    used_share: Annotated[float, rounded(6)]
    expected_share: Annotated[float, rounded(6)]
    runs_out_on: Instant | None
    thresholds: list[Annotated[ThresholdStatus, form_of(ThresholdStatus)]]
    later: list[LaterPeriodForm] = []
    set_by: Annotated[str, From("budget.set_by")]
    set_at: Annotated[Instant, From("budget.set_at")]
    confidence: Annotated[float | None, From("budget.confidence")] = None


class BudgetEffectForm(BaseModel):
    """What a plan does to a budget: ``limit_usd`` − ``counted_usd`` − ``added_usd`` = ``left_usd``.

    A key of one team is told of a budget of all teams only where it would be exceeded, and by how much.
    """

    team: str
    period: BudgetPeriod
    start: Annotated[Instant, Field(alias="from"), From("window.start")]
    end: Annotated[Instant, Field(alias="to"), From("window.end")]
    limit_usd: Cents | None
    counted_usd: Cents | None
    added_usd: Cents
    left_usd: Cents
    says: Annotated[str, From(str)]


BudgetPage = PageForm[BudgetForm]
PURCHASE = Form(
    Purchase,
    name="PurchaseForm",
    about="What a plan buys of one seller for one workload: one GPU in one tier, the most GPUs at once.",
    types={"usd": Cents, "gpu_hours": Annotated[float, rounded(3)]},
)
FIGURES = Form(SeenFigures, name="FiguresForm", about="The figures on which finance decides.")
DecisionForm = Annotated[Decision, Form(Decision, about="One decision on a plan.", optional={"by_name": ""})]


class ApprovalForm(BaseModel):
    """The approval of a plan by finance."""

    plan_id: Annotated[str, From("record.plan_id")]
    team: Annotated[str, From("record.team")]
    state: ApprovalState
    requested_by: Annotated[str, From("record.requested_by")]
    requested_by_name: str = ""
    created_at: Annotated[Instant, From("record.created_at")]
    reason: Annotated[str | None, From("record.approval_reason")] = None
    is_current: bool
    may_decide: bool
    replaced_by: str | None = None
    beside: str | None = None
    replaces: str | None = None
    purchases: list[Annotated[Purchase, PURCHASE]] = []
    effects: list[BudgetEffectForm] = []
    figures: Annotated[SeenFigures, FIGURES]
    decisions: Annotated[list[DecisionForm], From("record.decisions")]


ApprovalPage = PageForm[ApprovalForm]


def budget_to_document(found: BudgetStatus) -> dict[str, Any]:
    """The JSON form of a budget and its use."""
    return write(BudgetForm, found)


def approval_to_document(found: Approval) -> dict[str, Any]:
    """The JSON form of the approval of a plan."""
    return write(ApprovalForm, found)
