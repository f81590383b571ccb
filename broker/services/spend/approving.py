"""Checks that a plan is approved, and withdrawal of approvals that no longer hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import AuditEntry
from broker.domain.basics.errors import ApprovalLapsed, ApprovalRequired, FieldProblem, PlanRejected
from broker.domain.basics.money import usd_words
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan
from broker.domain.spend.approvals import Decision, Verdict, cost_now_usd, lapse
from broker.ports.planning import PlanRecord
from broker.ports.unit_of_work import Clock, UnitOfWorkFactory

ACTOR = "reserving"


def require_approved(record: PlanRecord, plan: Plan) -> None:
    """Raises PlanRejected, or ApprovalRequired if the plan needs an approval and has none."""
    said = record.decision
    if said is not None and said.verdict is Verdict.REJECTED:
        why = f": {said.comment}" if said.comment else ""
        raise PlanRejected(f"plan {record.plan_id} was rejected by {said.by_name or said.by}{why}")
    if record.needs_approval and record.approved_by is None:
        way = f"POST /v1/plans/{record.plan_id}/approve with a key that has spend:approve"
        why = record.approval_reason or f"it costs {usd_words(plan.cost_usd)}, over the limit"
        raise ApprovalRequired(f"plan {record.plan_id} waits for approval, because {why}").naming(
            FieldProblem("/approved_by", "nobody", way)
        )


def require_as_approved(record: PlanRecord, plan: Plan, offers: Mapping[str, Offer]) -> None:
    """Raises ApprovalLapsed if the plan or its price differs from what was approved."""
    said = record.decision
    if not record.needs_approval or said is None:
        return
    now_usd: Decimal | None = cost_now_usd(plan, offers)
    why = lapse(plan, said.seen, now_usd)
    if why is not None:
        raise ApprovalLapsed(record.plan_id, why)


def was_within_budgets(record: PlanRecord) -> bool:
    """Whether the approver of a plan saw that it exceeds no budget."""
    said = record.decision
    if said is None or said.seen is None:
        return False
    return said.seen.budget_left_usd is None or said.seen.budget_left_usd >= 0


class Approving:
    """Requires and withdraws approvals."""

    def __init__(self, uow_factory: UnitOfWorkFactory, clock: Clock) -> None:
        self._uow_factory = uow_factory
        self._clock = clock

    async def require_for(self, plan_id: str, why: str) -> None:
        """Stores that a plan needs approval, with the reason."""
        now = self._clock.now()
        async with self._uow_factory(EVERY_TEAM) as uow:
            record = await uow.plans.find(plan_id)
            await uow.plans.update(replace(record, needs_approval=True, approval_reason=why))
            await uow.accounts.add_audit(
                AuditEntry(now, ACTOR, "plan.approval_needed", "plan", plan_id, record.team, why)
            )
            await uow.commit()

    async def take_back(self, plan_id: str, why: str) -> None:
        """Withdraws the approval of a plan, with the reason. Doing so twice is no error."""
        now = self._clock.now()
        async with self._uow_factory(EVERY_TEAM) as uow:
            record = await uow.plans.find(plan_id)
            if record.approved_by is None:
                return
            lapsed = record.decided(Decision(Verdict.LAPSED, ACTOR, now, why))
            await uow.plans.update(lapsed)
            await uow.accounts.add_audit(
                AuditEntry(now, ACTOR, "plan.approval_lapsed", "plan", plan_id, record.team, why)
            )
            await uow.commit()
