"""Planning: requests for plans, and their runs."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal

from broker.domain.basics.access import EVERY_TEAM, TeamScope, require_scope, scope_of
from broker.domain.basics.account import AuditEntry, Caller, Scope
from broker.domain.basics.errors import (
    BrokerError,
    ConcurrentChange,
    Conflict,
    FieldProblem,
    InputError,
    NotPermitted,
    StalePlan,
    TooManyPlans,
)
from broker.domain.basics.identity import ENTROPY_BYTES, make_id
from broker.domain.basics.money import format_usd
from broker.domain.basics.page import Page
from broker.domain.market.offer import Offer
from broker.domain.planning.comparison import AssumedPrices, Variant
from broker.domain.planning.plan import Plan
from broker.domain.planning.plan_turns import Turn, TurnClass, class_by_size
from broker.domain.planning.planned_market import is_same_time, market_sha256
from broker.domain.planning.planning_time import require_time
from broker.domain.planning.workload import PlanRequest
from broker.domain.spend.approvals import over_limit
from broker.ports.planning import (
    BudgetWatch,
    BusinessStatus,
    EventStream,
    InForce,
    OtherPlans,
    PlanCall,
    PlanOptions,
    PlanRecord,
    PlanState,
    ReplanCall,
    RequestReader,
    Whereabouts,
    why_not_continued,
)
from broker.ports.unit_of_work import Clock, Notifier, UnitOfWorkFactory
from broker.services.market.price_forecasts import PlanPriceForecasts
from broker.services.market.usable_offers import OfferRules
from broker.services.planning.market_beside_held import market_beside_held
from broker.services.planning.plan_queue import Place, PlanQueue

log = logging.getLogger(__name__)

MOST_TRIES = 5
"""Tries of a cancellation whose plan changes at the same time."""
PLANS_SETTING, WORKLOADS_SETTING = "BROKER_TEAM_PLANS_AT_ONCE", "BROKER_TEAM_WORKLOADS_AT_ONCE"
RETRY_AFTER_S = 10
"""Seconds after which a team at its limit may retry."""
UNTOLD_PHASE = "planning"
"""Phase of a running plan whose planner published no progress in this process."""


@dataclass(frozen=True, slots=True)
class Change:
    """One question: the changed document (JSON text), the same as a request, and assumed prices."""

    name: str
    document: str
    request: PlanRequest
    prices: AssumedPrices | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A plan, and the plans of its variants in the order of their changes."""

    comparison_id: str
    base: PlanRecord
    variants: tuple[PlanRecord, ...]


@dataclass(frozen=True, slots=True)
class PlanningRules:
    """Limits of planning. ``approval_limit_usd`` None: no plan needs approval because of its cost.

    ``plans_at_once`` and ``workloads_at_once`` limit a team's queued and running plans, and the workloads in
    them.
    """

    approval_limit_usd: Decimal | None = None
    offers: OfferRules = field(default_factory=OfferRules)
    plans_at_once: int = 50
    workloads_at_once: int = 100_000

    def over_limit(self, cost_usd: Decimal) -> tuple[str, ...]:
        """Why a plan of this cost needs approval; empty if it needs none."""
        return over_limit(cost_usd, self.approval_limit_usd)


class PlanningService:
    """Use cases of plans.

    ``plan_call`` and ``replan_call``, which continues a plan, are module-level functions, because the
    executor of ``queue`` may run them in another process.
    ``read_request`` reads a stored document, also for plans that a crash interrupted.
    """

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        plan_call: PlanCall,
        queue: PlanQueue,
        clock: Clock,
        notifier: Notifier,
        events: EventStream,
        *,
        read_request: RequestReader,
        replan_call: ReplanCall,
        rules: PlanningRules | None = None,
        price_forecasts: PlanPriceForecasts | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
        budgets: BudgetWatch | None = None,
    ) -> None:
        self._uow_factory = uow_factory
        self._budgets = budgets
        self._plan_call, self._replan_call = plan_call, replan_call
        self._queue = queue
        self._clock = clock
        self._notifier = notifier
        self._events = events
        self._read_request = read_request
        self._rules = rules or PlanningRules()
        self._price_forecasts = price_forecasts
        self._random_bytes = random_bytes
        self._under_way: dict[str, asyncio.Event] = {}
        """Plans that this process makes; the event says that a plan was cancelled."""

    async def request_plan(
        self,
        caller: Caller,
        document: str,
        request: PlanRequest,
        options: PlanOptions,
        *,
        intended: bool = False,
    ) -> PlanRecord:
        """Stores a request for a plan as ``queued``; ``run`` makes the plan.

        ``intended``: the finished plan counts in projected spend, and replaces older drafts of the same
        workloads. Raises TooManyPlans if the team is at its limit of unfinished plans.
        """
        record = self._queued(caller, document, request, options)
        record = replace(record, intended_by=caller.key_id if intended else None)
        await self._store_queued(caller, [record], len(request.workloads))
        return record

    async def request_continuation(
        self, caller: Caller, plan_id: str, time_limit_s: float | None = None
    ) -> PlanRecord:
        """Stores a queued plan that continues the search of a plan; ``run`` makes it.

        It has the document, the team and the options of that plan; ``time_limit_s`` None: its time limit too.
        Raises NotFound, Conflict if that plan cannot be continued, and as ``request_plan``.
        """
        old = await self.find_plan(caller, plan_id)
        why = why_not_continued(old, (await self.find_business_statuses([old])).get(plan_id))
        if why is not None:
            raise Conflict(f"plan {plan_id} cannot be continued: {why}")
        request = await asyncio.to_thread(self._read_request, old.document)
        options = replace(old.options, time_limit_s=time_limit_s or old.options.time_limit_s)
        record = self._queued(caller, old.document, request, options)
        intended_by = None if old.intended_by is None else caller.key_id
        record = replace(record, continues=plan_id, intended_by=intended_by)
        await self._store_queued(caller, [record], len(request.workloads), continued=old)
        return record

    async def request_comparison(
        self, caller: Caller, base_id: str, changes: Sequence[Change], options: PlanOptions
    ) -> Comparison:
        """Stores a queued plan for each change of the base's document; ``run`` makes each of them.

        All are stored or none. They are explorations: they take no other plan's place, need no approval and
        count in no projected spend until one is chosen with ``set_intended``. Raises as ``request_plan``.
        """
        base = await self.find_plan(caller, base_id)
        at = self._clock.now()
        comparison_id = make_id("compare", at, self._random_bytes(ENTROPY_BYTES))
        variants = [
            replace(
                self._queued(caller, change.document, change.request, options),
                variant=Variant(comparison_id, base_id, change.name, position, change.prices),
            )
            for position, change in enumerate(changes)
        ]
        await self._store_queued(caller, variants, sum(len(change.request.workloads) for change in changes))
        return Comparison(comparison_id, base, tuple(variants))

    async def find_comparison(self, caller: Caller, comparison_id: str) -> Comparison:
        """One comparison; NotFound for another team's."""
        async with self._uow_factory(scope_of(caller)) as uow:
            variants = await uow.plans.find_comparison(comparison_id)
            based_on = next(record.variant.based_on for record in variants if record.variant is not None)
            return Comparison(comparison_id, await uow.plans.find(based_on), variants)

    def _queued(
        self, caller: Caller, document: str, request: PlanRequest, options: PlanOptions
    ) -> PlanRecord:
        require_scope(caller, Scope.PLANS_WRITE)
        require_time(len(request.workloads), options.time_limit_s)
        if not caller.sees(request.team):
            raise NotPermitted(f"key {caller.key_id} of team {caller.team} cannot plan for {request.team}")
        now = self._clock.now()
        return PlanRecord(
            plan_id=make_id("plan", now, self._random_bytes(ENTROPY_BYTES)),
            team=request.team,
            state=PlanState.QUEUED,
            document=document,
            options=options,
            created_at=now,
            requested_by=caller.key_id,
        )

    async def _store_queued(
        self,
        caller: Caller,
        records: Sequence[PlanRecord],
        workloads: int,
        *,
        continued: PlanRecord | None = None,
    ) -> None:
        async with self._uow_factory(scope_of(caller)) as uow:
            for record in records:
                await uow.plans.add(record)
                if continued is not None:
                    await uow.plans.update(replace(continued, continued_by=record.plan_id))
                await uow.accounts.add_audit(self._entry(record, "plan.request", caller.key_id))
            for team in sorted({record.team for record in records}):
                self._require_room(team, workloads, *await uow.plans.count_on_their_way(team))
            await uow.accounts.bind(caller.claim, [record.plan_id for record in records])
            await uow.commit()
        for record in records:
            self._under_way[record.plan_id] = asyncio.Event()
            self._events.publish(record.plan_id, {"state": PlanState.QUEUED.value})

    def _require_room(self, team: str, asked: int, plans: int, workloads: int) -> None:
        """Checks a team's limits. ``plans`` and ``workloads`` are its unfinished ones with the ``asked``."""
        rules = self._rules
        if asked > rules.workloads_at_once:
            expected = f"at most {rules.workloads_at_once:,} ({WORKLOADS_SETTING})"
            raise InputError("request", (FieldProblem("/workloads", f"{asked:,} workloads", expected),))
        for unit, found, allowed, setting in (
            ("plans", plans, rules.plans_at_once, PLANS_SETTING),
            ("workloads", workloads, rules.workloads_at_once, WORKLOADS_SETTING),
        ):
            if found > allowed:
                raise TooManyPlans(team, unit, found, allowed, setting, RETRY_AFTER_S)

    async def run(self, plan_id: str) -> PlanRecord:
        """Waits for its turn, makes the plan, and stores it or the problem.

        A plan that is finished already, or is cancelled meanwhile, does not change.
        """
        is_cancelled = self._under_way.setdefault(plan_id, asyncio.Event())
        making = asyncio.create_task(self._run(plan_id, self._queue.draw_number()))
        watching = asyncio.create_task(is_cancelled.wait())
        try:
            await asyncio.wait((making, watching), return_when=asyncio.FIRST_COMPLETED)
            if making.done():
                return making.result()
        finally:
            self._under_way.pop(plan_id, None)
            for task in (making, watching):
                task.cancel()
            await asyncio.gather(making, watching, return_exceptions=True)
        return await self._find(plan_id)

    async def _run(self, plan_id: str, number: int) -> PlanRecord:
        try:
            return await self._run_unless_taken(plan_id, number)
        except ConcurrentChange:
            log.info("plan %s was cancelled, or is made by another process", plan_id)
            return await self._find(plan_id)

    async def _run_unless_taken(self, plan_id: str, number: int) -> PlanRecord:
        record = await self._find(plan_id)
        if not record.state.is_on_its_way:
            return record
        kind = class_by_size(TurnClass.INTERACTIVE, record.workload_count)
        turn = Turn(record.team, kind, plan_id, number)
        async with self._queue.place(turn) as place:
            record = await self._store(EVERY_TEAM, replace(record, state=PlanState.RUNNING), "plan.run")
            self._events.publish(plan_id, {"state": PlanState.RUNNING.value})
            made = await self._attempt(record, place)
        if isinstance(made, str):
            record = replace(record, state=PlanState.FAILED, problem=made)
        else:
            plan, record = made
            plan = replace(plan, plan_id=plan_id, created_at=record.created_at, team=record.team)
            record = replace(record, state=PlanState.DONE, plan=plan)
            if not record.is_exploration:
                record = await self._with_approval(record, plan)
        record = await self._store(EVERY_TEAM, record, f"plan.{record.state}")
        await self._tell(record)
        return record

    async def cancel(self, caller: Caller, plan_id: str) -> PlanRecord:
        """Cancels a queued or running plan, in this or another process. Cancelling it twice is no error.

        Raises Conflict for a finished or failed plan.
        """
        require_scope(caller, Scope.PLANS_WRITE)
        for _ in range(MOST_TRIES):
            record = await self.find_plan(caller, plan_id)
            if record.state is PlanState.CANCELLED:
                return record
            if not record.state.is_on_its_way:
                expected = f"{PlanState.QUEUED} or {PlanState.RUNNING}"
                raise Conflict(
                    f"plan {plan_id} is {record.state}: only one that is {expected} can be cancelled"
                )
            with suppress(ConcurrentChange):
                cancelled = replace(record, state=PlanState.CANCELLED)
                cancelled = await self._store(scope_of(caller), cancelled, "plan.cancelled", caller.key_id)
                self._end(plan_id)
                await self._tell(cancelled)
                return cancelled
        raise ConcurrentChange(
            f"plan {plan_id} changed during each of {MOST_TRIES} tries to cancel it; try again"
        )

    async def end_cancelled(self) -> None:
        """Stops plans of this process that were cancelled in another one."""
        if self._under_way:
            async with self._uow_factory(EVERY_TEAM) as uow:
                for plan_id in await uow.plans.find_cancelled(tuple(self._under_way)):
                    self._end(plan_id)

    def _end(self, plan_id: str) -> None:
        if plan_id in self._under_way:
            self._under_way[plan_id].set()

    async def _find(self, plan_id: str) -> PlanRecord:
        async with self._uow_factory(EVERY_TEAM) as uow:
            return await uow.plans.find(plan_id)

    async def _with_approval(self, record: PlanRecord, plan: Plan) -> PlanRecord:
        """The record with the reasons for which finance must approve its plan."""
        why = (*self._rules.over_limit(plan.cost_usd), *await self._overruns(record, plan))
        return replace(record, needs_approval=bool(why), approval_reason="; ".join(why) or None)

    async def _overruns(self, record: PlanRecord, plan: Plan) -> tuple[str, ...]:
        return () if self._budgets is None else await self._budgets.find_overruns(record, plan)

    async def _attempt(self, record: PlanRecord, place: Place) -> tuple[Plan, PlanRecord] | str:
        """The plan and the record of what it was made from, or the problem."""
        try:
            # In a thread, because a large document takes seconds, which would block the event loop.
            request = await asyncio.to_thread(self._read_request, record.document)
            if request.horizon.end <= self._clock.now():
                raise StalePlan(
                    f"the horizon of {record.plan_id} ended at {request.horizon.end:%Y-%m-%d %H:%M} UTC"
                )
            base = None if record.variant is None else record.variant.based_on
            request, market = await market_beside_held(
                self._uow_factory, request, self._clock.now(), self._rules.offers, base
            )
            offers = market.offers
            if record.variant is not None and record.variant.prices is not None:
                offers = record.variant.prices.applied(offers)
            sha256 = await asyncio.to_thread(market_sha256, request, offers)
            record = replace(record, market_sha256=sha256)
            plan = await self._made(record, request, offers, place)
            if market.refusal_note and market.refusal_note not in plan.notes:
                plan = replace(plan, notes=(*plan.notes, market.refusal_note))
            if self._price_forecasts is not None:
                plan = replace(plan, price_forecasts=await self._price_forecasts.of(plan))
            return plan, record
        except BrokerError as error:
            return str(error)
        except Exception as error:  # a fault of the planner; the record must not stay "running"
            log.exception("plan %s failed unexpectedly", record.plan_id)
            return f"unexpected {type(error).__name__}: {error}"

    async def _made(
        self, record: PlanRecord, request: PlanRequest, offers: tuple[Offer, ...], place: Place
    ) -> Plan:
        """The plan, or the continued one.

        If the market is still that of the plan that it continues, it is made for the time of that plan, whose
        bound then holds.
        """
        now, options = self._clock.now(), replace(record.options, label=record.plan_id)
        if record.continues is None:
            return await place.run(self._plan_call, request, offers, now, options)
        old = await self._find(record.continues)
        assert old.plan is not None
        is_same = old.market_sha256 == record.market_sha256 and is_same_time(request, old.plan.as_of, now)
        as_of = old.plan.as_of if is_same else now
        going_on = InForce(old.plan, is_continued=True, same_market=is_same)
        found = await place.run(self._replan_call, request, offers, as_of, options, going_on)
        return found.plan

    async def _tell(self, record: PlanRecord) -> None:
        event: dict[str, object] = {"state": record.state.value}
        if record.plan is not None:
            event |= {"status": record.plan.status.value, "cost_usd": format_usd(record.plan.cost_usd)}
        if record.problem is not None:
            event["problem"] = record.problem
        self._events.publish(record.plan_id, event)
        await self._notifier.notify(f"plan.{record.state}", record.team, {"plan_id": record.plan_id, **event})

    async def claim_left_over(self) -> tuple[str, ...]:
        """Claims plans for ``run`` that a crash left queued or running, oldest first."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            unfinished = await uow.plans.claim_unfinished()
            left_over = [record for record in unfinished if record.plan_id not in self._under_way]
            for record in left_over:
                if record.state is PlanState.RUNNING:
                    await uow.plans.update(replace(record, state=PlanState.QUEUED))
                    await uow.accounts.add_audit(self._entry(record, "plan.queue", "planner"))
            await uow.commit()
        self._under_way.update((record.plan_id, asyncio.Event()) for record in left_over)
        return tuple(record.plan_id for record in left_over)

    async def find_plan(self, caller: Caller, plan_id: str) -> PlanRecord:
        """One plan. Raises NotFound, also for one of another team."""
        async with self._uow_factory(scope_of(caller)) as uow:
            return await uow.plans.find(plan_id)

    async def find_plans(
        self, caller: Caller, limit: int = 50, cursor: str | None = None, *, team: str | None = None
    ) -> Page[PlanRecord]:
        """Plans, newest first; other teams' only for administrators."""
        async with self._uow_factory(scope_of(caller, team)) as uow:
            return await uow.plans.find_page(limit, cursor)

    async def find_current_plans(self, caller: Caller, *, team: str | None = None) -> tuple[PlanRecord, ...]:
        """The plans in force; see ``find_current`` of the store."""
        async with self._uow_factory(scope_of(caller, team)) as uow:
            return await uow.plans.find_current()

    async def find_whereabouts(self, records: Iterable[PlanRecord]) -> Mapping[str, Whereabouts]:
        """Position or phase of each unfinished plan in ``records``, by id."""
        return {r.plan_id: await self._whereabouts(r) for r in records if r.state.is_on_its_way}

    async def _whereabouts(self, record: PlanRecord) -> Whereabouts:
        if record.state is PlanState.RUNNING:
            return Whereabouts(phase=str(self._events.last(record.plan_id).get("stage", UNTOLD_PHASE)))
        position = self._queue.position(record.plan_id)
        if position is None:
            async with self._uow_factory(EVERY_TEAM) as uow:
                position = 1 + await uow.plans.count_older_queued(record)
        return Whereabouts(position)

    async def find_business_statuses(self, records: Collection[PlanRecord]) -> Mapping[str, BusinessStatus]:
        """The business status of each finished plan in ``records``, by id."""
        async with self._uow_factory(EVERY_TEAM) as uow:
            return await uow.plans.find_business_statuses(records)

    async def find_others(self, caller: Caller, record: PlanRecord) -> OtherPlans:
        """The other plans of the workloads of ``record``."""
        async with self._uow_factory(scope_of(caller)) as uow:
            return (await uow.plans.find_others([record]))[record.plan_id]

    async def set_intended(self, caller: Caller, plan_id: str, *, intended: bool) -> PlanRecord:
        """Sets whether a draft counts in projected spend. Repeating it is no error.

        At most one draft of the same workloads is intended. Raises Conflict if the plan is not a draft, and
        if an approved draft is to be excluded.
        """
        require_scope(caller, Scope.PLANS_WRITE)
        record = await self.find_plan(caller, plan_id)
        if intended and record.is_exploration and record.plan is not None:
            _require_real_prices(record)
            record = await self._with_approval(record, record.plan)
        async with self._uow_factory(scope_of(caller)) as uow:
            standing = (await uow.plans.find_business_statuses([record])).get(plan_id)
            _require_draft(record, standing, intended=intended)
            if (record.intended_by is not None) == intended:
                return record
            if intended:
                await uow.plans.withdraw_intentions(record)
            who = caller.key_id if intended else None
            stored = await uow.plans.update(replace(record, intended_by=who))
            if intended and plan_id not in {one.plan_id for one in await uow.plans.find_current(record.team)}:
                raise Conflict(f"plan {plan_id} was replaced by another plan of the same workloads")
            action = "plan.intend" if intended else "plan.not_intended"
            await uow.accounts.add_audit(self._entry(stored, action, caller.key_id))
            await uow.commit()
        return stored

    async def _store(
        self, scope: TeamScope, record: PlanRecord, action: str, actor: str = "planner", detail: str = ""
    ) -> PlanRecord:
        async with self._uow_factory(scope) as uow:
            stored = await uow.plans.update(record)
            if stored.state is PlanState.DONE and stored.is_intended:
                await uow.plans.withdraw_intentions(stored)
            await uow.accounts.add_audit(self._entry(stored, action, actor, detail or record.problem or ""))
            await uow.commit()
        return stored

    def _entry(self, record: PlanRecord, action: str, actor: str, detail: str = "") -> AuditEntry:
        return AuditEntry(
            at=self._clock.now(),
            actor=actor,
            action=action,
            object_kind="plan",
            object_id=record.plan_id,
            team=record.team,
            detail=detail,
        )


def _require_real_prices(record: PlanRecord) -> None:
    if record.variant is not None and record.variant.prices is not None:
        raise Conflict(
            f"plan {record.plan_id} assumes prices {record.variant.prices.factor} times today's, so it can "
            "only be compared: plan the same document at today's prices to buy it"
        )


def _require_draft(record: PlanRecord, standing: BusinessStatus | None, *, intended: bool) -> None:
    """Raises Conflict unless the plan is a draft, possibly one that a newer draft superseded."""
    is_older = standing is BusinessStatus.SUPERSEDED and record.reserved_at is None
    if standing not in (BusinessStatus.DRAFT, BusinessStatus.WAITING) and not is_older:
        word = record.state if standing is None else standing
        raise Conflict(f"plan {record.plan_id} is {word}; only a draft can be intended")
    if not intended and record.approved_by is not None:
        raise Conflict(
            f"plan {record.plan_id} is approved, so it counts as spend; to exclude it, finance must reject it"
        )
