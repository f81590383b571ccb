"""Approvals of plans by finance."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from broker.domain.basics.access import require_scope, scope_of
from broker.domain.basics.account import AuditEntry, Caller, Scope
from broker.domain.basics.errors import Conflict, NotPermitted
from broker.domain.basics.money import usd_words
from broker.domain.basics.page import Page
from broker.domain.basics.person import is_same_actor
from broker.domain.moving.reoptimization import ProposalState
from broker.domain.planning.plan import Plan
from broker.domain.spend.approvals import (
    ApprovalState,
    Decision,
    Purchase,
    SeenFigures,
    Verdict,
    cost_now_usd,
    lapse,
    plan_sha256,
    purchases_of,
)
from broker.domain.spend.budget_effects import BudgetEffect, told_to_team
from broker.domain.spend.budgets import Reach
from broker.ports.planning import BusinessStatus, OtherPlans, PlanRecord, PlanState
from broker.ports.unit_of_work import Clock, Notifier, UnitOfWork, UnitOfWorkFactory
from broker.services.spend.budget_gate import BudgetBooks, ends_of, find_books, find_plan_effects
from broker.services.spend.spend_futures import SpendFutures
from broker.services.spend.summaries import Summaries

DECIDED = frozenset({ApprovalState.APPROVED, ApprovalState.REJECTED})


@dataclass(frozen=True, slots=True)
class Approval:
    """The state of a plan's approval, and its current figures.

    ``is_current``: no other plan replaced it, and its proposal still stands; only then is there something to
    decide. ``may_decide``: the caller may approve or reject it. ``requested_by_name`` is the name of the key.
    ``purchases`` are what it buys, ``effects`` what it does now to the budgets that cover its team, the worst
    first; see ``told_to_team`` for what a caller of one team is told.
    ``replaced_by`` is the plan that took its place. ``beside`` is a plan of the same workloads that holds
    capacity already: this one buys them a second time. ``replaces`` is the plan whose place it would take.
    """

    record: PlanRecord
    state: ApprovalState
    figures: SeenFigures
    is_current: bool
    may_decide: bool
    requested_by_name: str = ""
    purchases: tuple[Purchase, ...] = ()
    effects: tuple[BudgetEffect, ...] = ()
    replaced_by: str | None = None
    beside: str | None = None
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class Looked:
    """What the caller saw when they decided; None: the request does not say."""

    plan_sha256: str | None = None
    cost_now_usd: Decimal | None = None


class ApprovalsService:
    """Use cases of approvals. ``four_eyes``: nobody may approve a plan that they requested."""

    def __init__(
        self,
        units: UnitOfWorkFactory,
        clock: Clock,
        notifier: Notifier,
        futures: SpendFutures,
        *,
        four_eyes: bool = False,
        summaries: Summaries | None = None,
    ) -> None:
        self._units = units
        self._clock = clock
        self._notifier = notifier
        self._futures = futures
        self._summaries = summaries or Summaries(units, clock)
        self._four_eyes = four_eyes

    async def find_approvals(
        self,
        caller: Caller,
        states: Collection[ApprovalState] = frozenset(ApprovalState),
        limit: int = 50,
        cursor: str | None = None,
        *,
        team: str | None = None,
    ) -> Page[Approval]:
        """Plans that wait for approval or were decided, newest first, with their current figures."""
        require_scope(caller, Scope.SPEND_READ)
        scope = scope_of(caller, team)
        async with self._units(scope) as uow:
            page = await uow.plans.find_by_approval(states, limit, cursor)
        books = await self._books(page.items)
        async with self._units(scope) as uow:
            around = await _around(uow, page.items)
            items = [await self._shown(uow, caller, record, books, around) for record in page.items]
        return Page(tuple(item for item in items if item is not None), page.next_cursor)

    async def find_approval(self, caller: Caller, plan_id: str) -> Approval | None:
        """The approval of a plan; None if it needs none. Raises NotFound, also for a plan of another team."""
        require_scope(caller, Scope.SPEND_READ)
        record = await self._seen(caller, plan_id)
        books = await self._books([record])
        async with self._units(scope_of(caller)) as uow:
            return await self._shown(uow, caller, record, books, await _around(uow, [record]))

    async def approve(
        self, caller: Caller, plan_id: str, comment: str = "", looked: Looked | None = None
    ) -> PlanRecord:
        """Approves exactly this plan at today's prices. Approving it twice is no error.

        Raises NotPermitted if ``four_eyes`` is set and the caller requested the plan, and Conflict if there
        is nothing to approve, another plan replaced it, or it is not the one that the caller ``looked`` at.
        """
        return await self._decide(caller, plan_id, Verdict.APPROVED, comment, looked or Looked())

    async def reject(
        self, caller: Caller, plan_id: str, comment: str, looked: Looked | None = None
    ) -> PlanRecord:
        """Rejects a plan: it cannot be reserved, and projected spend excludes it, until it is approved.

        Raises Conflict if the plan is already reserved, or not finished.
        """
        return await self._decide(caller, plan_id, Verdict.REJECTED, comment, looked or Looked())

    async def _decide(
        self, caller: Caller, plan_id: str, verdict: Verdict, comment: str, looked: Looked
    ) -> PlanRecord:
        require_scope(caller, Scope.SPEND_APPROVE)
        now = self._clock.now()
        asked = await self._seen(caller, plan_id)
        books = await self._books([asked])
        async with self._units(scope_of(caller)) as uow:
            record = await uow.plans.find(plan_id)
            plan = _plan_of(record)
            effects = await find_plan_effects(uow, record, plan, books)
            seen = await self._figures(uow, record, plan, told_to_team(effects, record.team, books.reach))
            _require_same(plan_id, looked, seen)
            if _says_so_already(record, plan, verdict, seen):
                return record
            if verdict is Verdict.APPROVED:
                _require_current(record, await _around(uow, [record]))
                self._require_four_eyes(caller, record)
            elif any(row.plan_id == plan_id for row in await uow.reservations.find_open()):
                raise Conflict(f"plan {plan_id} is already reserved; release its reservations first")
            stored = await uow.plans.update(
                record.decided(Decision(verdict, caller.key_id, now, comment, seen, caller.name))
            )
            action = "plan.approve" if verdict is Verdict.APPROVED else "plan.reject"
            detail = f"{comment}; {seen}" if comment else str(seen)
            await uow.accounts.add_audit(
                AuditEntry(now, caller.key_id, action, "plan", plan_id, record.team, detail)
            )
            await uow.commit()
        await self._notifier.notify(f"plan.{verdict}", record.team, {"plan_id": plan_id})
        return stored

    async def _books(self, records: Iterable[PlanRecord]) -> BudgetBooks:
        found = tuple(records)
        made = [(record.team, record.plan) for record in found if record.plan is not None]
        ends = ((team, end) for team, plan in made for end in ends_of((plan,)))
        reach = Reach.at(self._clock.now()).lasting(ends)
        return await find_books(self._units, self._summaries, {record.team for record in found}, reach)

    def _require_four_eyes(self, caller: Caller, record: PlanRecord) -> None:
        if self._four_eyes and is_same_actor(caller.key_id, record.requested_by):
            raise NotPermitted(
                f"key {caller.key_id} requested plan {record.plan_id}, so somebody else has to approve it"
            )

    async def _seen(self, caller: Caller, plan_id: str) -> PlanRecord:
        async with self._units(scope_of(caller)) as uow:
            return await uow.plans.find(plan_id)

    async def _shown(
        self,
        uow: UnitOfWork,
        caller: Caller,
        record: PlanRecord,
        books: BudgetBooks,
        around: _Around,
    ) -> Approval | None:
        state, plan = record.approval, record.plan
        if state is None or plan is None:
            return None
        effects = await find_plan_effects(uow, record, plan, books)
        told = told_to_team(effects, record.team, books.reach)
        own = self._four_eyes and is_same_actor(caller.key_id, record.requested_by)
        is_current, others = around.is_current(record), around.others[record.plan_id]
        proposed_for = around.proposed_for.get(record.plan_id)
        is_draft = is_current and record.reserved_at is None and proposed_for is None
        return Approval(
            record=around.with_names(record),
            state=state,
            figures=await self._figures(uow, record, plan, told),
            is_current=is_current,
            may_decide=is_current and caller.may(Scope.SPEND_APPROVE) and not own,
            requested_by_name=around.names.get(record.requested_by, ""),
            purchases=purchases_of(plan),
            effects=effects if caller.sees_every_team else told,
            replaced_by=None if is_current else others.replaced_by,
            beside=others.held if is_draft else None,
            replaces=others.draft if is_draft else proposed_for,
        )

    async def _figures(
        self, uow: UnitOfWork, record: PlanRecord, plan: Plan, told: Iterable[BudgetEffect]
    ) -> SeenFigures:
        ids = {placement.offer_id for placement in plan.placements}
        offers = {offer.offer_id: offer for offer in await uow.offers.find_many(ids)}
        return SeenFigures(
            cost_usd=plan.cost_usd,
            cost_now_usd=cost_now_usd(plan, offers),
            bound_usd=plan.bound_usd,
            gap=plan.gap,
            projected_p90_usd=await self._futures.plan_p90_usd(uow, plan, record.plan_id, self._clock.now()),
            budget_left_usd=min((one.left_usd for one in told), default=None),
            plan_sha256=plan_sha256(plan),
        )


@dataclass(frozen=True, slots=True)
class _Around:
    """What surrounds plans: their statuses, other plans of their workloads, the plans in whose place open
    proposals would put them, and the names of keys that acted on them."""

    statuses: Mapping[str, BusinessStatus]
    others: Mapping[str, OtherPlans]
    proposed_for: Mapping[str, str]
    names: Mapping[str, str]

    def is_current(self, record: PlanRecord) -> bool:
        """Whether there is something to decide about the plan, or was when it was decided."""
        if record.state is PlanState.PROPOSED:
            return record.plan_id in self.proposed_for
        return self.statuses.get(record.plan_id) is not BusinessStatus.SUPERSEDED

    def with_names(self, record: PlanRecord) -> PlanRecord:
        """The record whose decisions name who decided, as far as it is known."""
        said = record.decisions
        named = tuple(replace(one, by_name=one.by_name or self.names.get(one.by, "")) for one in said)
        return replace(record, decisions=named)


async def _around(uow: UnitOfWork, records: Collection[PlanRecord]) -> _Around:
    looks = await uow.reoptimizations.find_in({ProposalState.PROPOSED})
    actors = {record.requested_by for record in records}
    actors |= {decision.by for record in records for decision in record.decisions}
    return _Around(
        await uow.plans.find_business_statuses(records),
        await uow.plans.find_others(records),
        {look.new_plan_id: look.plan_id for look in looks if look.new_plan_id is not None},
        await uow.accounts.find_key_names(actors),
    )


def _require_current(record: PlanRecord, around: _Around) -> None:
    """Raises Conflict for a plan that another one replaced, and for that of a proposal that is over."""
    if around.is_current(record):
        return
    if record.state is PlanState.PROPOSED:
        raise Conflict(f"plan {record.plan_id} is of a proposal that does not stand any more")
    other = around.others[record.plan_id].replaced_by
    by = f"by plan {other}" if other is not None else "by another plan of the same workloads"
    raise Conflict(
        f"plan {record.plan_id} was replaced {by}, so there is nothing to decide; to buy it after all, its "
        f"team chooses it first (`broker plans {record.plan_id} --intend`)"
    )


def _plan_of(record: PlanRecord) -> Plan:
    if record.plan is None:
        raise Conflict(f"plan {record.plan_id} is {record.state}; only a finished plan can be decided")
    return record.plan


def _require_same(plan_id: str, looked: Looked, seen: SeenFigures) -> None:
    if looked.plan_sha256 is not None and looked.plan_sha256 != seen.plan_sha256:
        raise Conflict(f"plan {plan_id} changed since you looked at it: its hash is {seen.plan_sha256} now")
    shown, now_usd = looked.cost_now_usd, seen.cost_now_usd
    if shown is not None and now_usd is not None and now_usd > shown:
        raise Conflict(
            f"plan {plan_id} costs {usd_words(now_usd)} now, {usd_words(shown)} when it was looked at"
        )


def _says_so_already(record: PlanRecord, plan: Plan, verdict: Verdict, seen: SeenFigures) -> bool:
    """Whether the same decision with the same figures is stored already."""
    said = record.decision
    if verdict is Verdict.REJECTED:
        return said is not None and said.verdict is verdict
    if record.approved_by is None:
        return False
    return said is None or lapse(plan, said.seen, seen.cost_now_usd) is None
