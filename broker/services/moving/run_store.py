"""Storing re-optimizations: as a new proposal, as the renewal of an open one, or without a proposal."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.identity import ENTROPY_BYTES, make_id
from broker.domain.basics.money import format_usd
from broker.domain.moving.reoptimization import ProposalState, Reoptimization
from broker.domain.moving.reoptimization_result import ACTOR, entry_of, is_same
from broker.domain.planning.plan import Plan
from broker.domain.spend.approvals import ApprovalState, over_limit
from broker.ports.planning import BudgetWatch, PlanRecord, PlanState
from broker.ports.unit_of_work import Notifier, UnitOfWork, UnitOfWorkFactory
from broker.services.market.price_forecasts import PlanPriceForecasts

_STANDING = frozenset({ProposalState.PROPOSED, ProposalState.UNFINISHED})


@dataclass(frozen=True, slots=True)
class RunStore:
    """Stores re-optimizations.

    Plans that cost more than ``approval_limit_usd`` (None: no limit), or whose moves would exceed a budget
    according to ``budgets``, need approval.
    """

    uow_factory: UnitOfWorkFactory
    notifier: Notifier
    approval_limit_usd: Decimal | None = None
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    price_forecasts: PlanPriceForecasts | None = None
    budgets: BudgetWatch | None = None

    async def keep(
        self, result: Reoptimization, record: PlanRecord, new: Plan | None
    ) -> tuple[Reoptimization, PlanRecord | None]:
        """Stores a result and the proposed plan, and notifies of what is new.

        An open proposal is renewed if the moves are the same, and lapses otherwise. An unfinished result
        leaves it open.
        """
        proposal: PlanRecord | None = None
        if new is not None and self.price_forecasts is not None:
            new = replace(new, price_forecasts=await self.price_forecasts.of(new))
        passed: tuple[str, ...] = ()
        if new is not None and self.budgets is not None:
            passed = await self.budgets.find_overruns_of_moves(result, new)
        if passed:
            result = replace(result, reason="; ".join((result.reason, *passed, "finance has to approve")))
        async with self.uow_factory(EVERY_TEAM) as uow:
            standing = [
                look
                for look in await uow.reoptimizations.find_in(_STANDING)
                if look.plan_id == record.plan_id
            ]
            proposed = [look for look in standing if look.state is ProposalState.PROPOSED]
            same = next((look for look in proposed if new is not None and is_same(look, result)), None)
            await _lapse(uow, [look for look in standing if look not in proposed], result)
            if same is not None and new is not None and same.new_plan_id is not None:
                result, proposal = await self._renew(uow, same, result, record, new, passed)
            else:
                if result.state is not ProposalState.UNFINISHED:
                    await _lapse(uow, proposed, result)
                if new is not None:
                    plan_id = make_id("plan", result.started_at, self.random_bytes(ENTROPY_BYTES))
                    proposal = self._proposal(record, replace(new, plan_id=plan_id), result, passed)
                    await uow.plans.add(proposal)
                    result = replace(result, new_plan_id=plan_id)
                await uow.reoptimizations.add(result)
                await uow.accounts.add_audit(entry_of(result, result.started_at))
            await uow.commit()
        if result.state is ProposalState.PROPOSED and same is None:
            await self.notifier.notify("plan.proposed", record.team, _body(result))
        return result, proposal

    async def let_go(self, looks: Iterable[Reoptimization], why: str, at: datetime) -> None:
        """Ends unfinished re-optimizations that need not be repeated."""
        async with self.uow_factory(EVERY_TEAM) as uow:
            for look in looks:
                await _end(uow, look, why, at)
            await uow.commit()

    async def _renew(
        self,
        uow: UnitOfWork,
        same: Reoptimization,
        result: Reoptimization,
        record: PlanRecord,
        new: Plan,
        passed: tuple[str, ...],
    ) -> tuple[Reoptimization, PlanRecord]:
        """The open proposal with current amounts; a plan that became dearer needs approval again."""
        assert same.new_plan_id is not None
        stored = await uow.plans.find(same.new_plan_id)
        proposal = self._proposal(record, replace(new, plan_id=stored.plan_id), result, passed)
        dearer = stored.plan is None or new.cost_usd > stored.plan.cost_usd
        kept = replace(
            stored,
            plan=proposal.plan,
            needs_approval=proposal.needs_approval,
            approval_reason=proposal.approval_reason,
        )
        kept = await uow.plans.update(replace(kept, approved_by=None, approved_at=None) if dearer else kept)
        renewed = replace(
            same,
            before_usd=result.before_usd,
            after_usd=result.after_usd,
            moves=result.moves,
            mode=result.mode,
            reason=result.reason,
        )
        return await uow.reoptimizations.update(renewed), kept

    def _proposal(
        self, record: PlanRecord, plan: Plan, result: Reoptimization, passed: tuple[str, ...]
    ) -> PlanRecord:
        old = record.plan
        agreed = record.approved_by is not None and old is not None and plan.cost_usd <= old.cost_usd
        why = passed if agreed else (*over_limit(plan.cost_usd, self.approval_limit_usd), *passed)
        if not why and record.approval is ApprovalState.WAITING:
            why = (record.approval_reason or f"plan {record.plan_id}, which it replaces, waits for approval",)
        return PlanRecord(
            plan_id=plan.plan_id,
            team=record.team,
            state=PlanState.PROPOSED,
            document=record.document,
            options=record.options,
            created_at=result.started_at,
            requested_by=ACTOR,
            plan=replace(plan, created_at=result.started_at, team=record.team),
            needs_approval=bool(why),
            approval_reason="; ".join(why) or None,
        )


async def _lapse(uow: UnitOfWork, standing: Iterable[Reoptimization], result: Reoptimization) -> None:
    """Ends ``standing`` unless the re-optimization failed, because then its result is unknown."""
    if result.state is ProposalState.FAILED:
        return
    for look in standing:
        was_cut_off = look.state is ProposalState.UNFINISHED
        why = "it was repeated" if was_cut_off else "the market changed"
        await _end(uow, look, f"{why}: {result.reason}", result.started_at)


async def _end(uow: UnitOfWork, look: Reoptimization, why: str, at: datetime) -> None:
    lapsed = replace(
        look,
        state=ProposalState.LAPSED,
        decided_at=at,
        decided_by=ACTOR,
        reason=f"{look.reason}; {why}",
    )
    await uow.reoptimizations.update(lapsed)
    await uow.accounts.add_audit(entry_of(lapsed, at))


def _body(result: Reoptimization) -> dict[str, object]:
    saving, net = result.saving_usd, result.net_usd
    return {
        "reoptimization_id": result.reoptimization_id,
        "plan_id": result.plan_id,
        "new_plan_id": result.new_plan_id,
        "saving_usd": None if saving is None else format_usd(saving),
        "moving_costs_usd": format_usd(result.cost_usd),
        "net_usd": None if net is None else format_usd(net),
        "reason": result.reason,
        "moves": [move.why for move in result.moves],
    }
