"""Re-optimizations as JSON: looks, their moves, and what each saves and costs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from api.schemas.base.parts import Money, PageForm
from api.schemas.base.times import Instant
from broker.domain.moving.reoptimization import Move, MoveState, ProposalState, Reoptimization, RiskKind
from broker.domain.moving.unfinished import retry_at
from broker.domain.planning.reoptimize_policy import ReoptimizeMode


class PriceMoveForm(BaseModel):
    """An offer's price per node-hour when the plan was made and now; null: not on sale."""

    offer_id: str
    before_usd: Money | None
    after_usd: Money | None


class RiskForm(BaseModel):
    """What may go wrong."""

    kind: RiskKind
    text: str


class MovingCostForm(BaseModel):
    """What a move costs once: both places held, work done again, data that leaves; ``total_usd`` of it."""

    overlap_usd: Money
    rework_usd: Money
    egress_usd: Money
    total_usd: Money


class MoveForm(BaseModel):
    """One workload that goes elsewhere. ``stay_usd``: what staying costs from now on (null: it cannot);
    ``saving_usd``: that less the new place; ``net_usd``: less ``cost`` too."""

    workload: str
    from_offers: list[str]
    to_offers: list[str]
    stay_usd: Money | None
    saving_usd: Money
    cost: MovingCostForm
    net_usd: Money
    why: str
    prices: list[PriceMoveForm]
    risks: list[RiskForm]
    leaves: list[str]
    state: MoveState
    reason: str


class ReoptimizationForm(BaseModel):
    """One look at one plan. ``before_usd``: what it costs from now on; ``after_usd``: with the moves;
    ``moving_costs_usd``: what they cost once; ``net_usd``: what is saved in the end. Of one that is
    ``unfinished``, ``guard_s``: the seconds within which it was not; ``retry_at``: when it is tried again.
    """

    reoptimization_id: str
    team: str
    plan_id: str
    new_plan_id: str | None
    trigger: str
    started_at: Instant
    state: ProposalState
    mode: ReoptimizeMode
    reason: str
    before_usd: Money | None
    after_usd: Money | None
    saving_usd: Money | None
    moving_costs_usd: Money
    net_usd: Money | None
    lapses_at: Instant | None
    decided_at: Instant | None
    decided_by: str | None
    guard_s: float | None
    retry_at: Instant | None
    moves: list[MoveForm]


class RunningForm(BaseModel):
    """The answer to asking for a look."""

    status: Literal["running"]


ReoptimizationPage = PageForm[ReoptimizationForm]


def reoptimization_to_document(one: Reoptimization) -> dict[str, Any]:
    """The JSON form of a look."""
    return ReoptimizationForm(
        reoptimization_id=one.reoptimization_id,
        team=one.team,
        plan_id=one.plan_id,
        new_plan_id=one.new_plan_id,
        trigger=one.trigger,
        started_at=one.started_at,
        state=one.state,
        mode=one.mode,
        reason=one.reason,
        before_usd=one.before_usd,
        after_usd=one.after_usd,
        saving_usd=one.saving_usd,
        moving_costs_usd=one.cost_usd,
        net_usd=one.net_usd,
        lapses_at=one.lapses_at,
        decided_at=one.decided_at,
        decided_by=one.decided_by,
        guard_s=one.guard_s,
        retry_at=retry_at(one),
        moves=[_move(move) for move in one.moves],
    ).model_dump(mode="json")


def _move(move: Move) -> MoveForm:
    cost = move.cost
    return MoveForm(
        workload=move.workload,
        from_offers=list(move.from_offers),
        to_offers=list(move.to_offers),
        stay_usd=move.stay_usd,
        saving_usd=move.saving_usd,
        cost=MovingCostForm(
            overlap_usd=cost.overlap_usd,
            rework_usd=cost.rework_usd,
            egress_usd=cost.egress_usd,
            total_usd=cost.total_usd,
        ),
        net_usd=move.net_usd,
        why=move.why,
        prices=[
            PriceMoveForm(offer_id=p.offer_id, before_usd=p.before_usd, after_usd=p.after_usd)
            for p in move.prices
        ],
        risks=[RiskForm(kind=risk.kind, text=risk.text) for risk in move.risks],
        leaves=list(move.leaves),
        state=move.state,
        reason=move.reason,
    )
