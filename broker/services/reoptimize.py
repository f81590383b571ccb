"""Re-optimization: a new look at current plans when the market moved."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.access import require_scope, team_filter
from broker.domain.account import AuditEntry, Caller, Scope
from broker.domain.errors import BrokerError
from broker.domain.freshness import fresh_offers
from broker.domain.identity import ENTROPY_BYTES, make_id
from broker.domain.launches import REMEMBERED, LaunchBook
from broker.domain.market import OfferChange
from broker.domain.money import format_usd
from broker.domain.offer import Offer
from broker.domain.plan import Plan
from broker.domain.reoptimization import ProposalState, Reoptimization
from broker.domain.reoptimizing import (
    Thresholds,
    find_moves,
    find_under_way,
    is_touched,
    judge,
    remaining_plan_cost_usd,
    remaining_request,
)
from broker.domain.reservation import Reservation
from broker.domain.window import Window
from broker.domain.workload import PlanRequest
from broker.ports import (
    Clock,
    Executor,
    Notifier,
    Page,
    PlanCall,
    PlanRecord,
    PlanState,
    RequestReader,
    UnitOfWorkFactory,
)

log = logging.getLogger(__name__)

ACTOR = "reoptimizer"
RECENT = 100


@dataclass(frozen=True, slots=True)
class ReoptimizeRules:
    """``thresholds`` of a proposal; the rest as for plans that somebody asks for."""

    thresholds: Thresholds = field(default_factory=Thresholds)
    approval_limit_usd: Decimal | None = None
    max_offer_age: timedelta = timedelta(minutes=10)
    price_lists: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Look:
    """What one pass over one plan sees."""

    record: PlanRecord
    plan: Plan
    offers: tuple[Offer, ...]
    reservations: tuple[Reservation, ...]
    prices_then: dict[str, Decimal]
    now: datetime

    @property
    def held(self) -> tuple[str, ...]:
        """Workloads that hold capacity or wait for it."""
        return tuple(r.workload for r in self.reservations if r.workload is not None)


class ReoptimizeService:
    """Use cases of re-optimization. ``plan_call`` and ``executor`` as for planning."""

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        plan_call: PlanCall,
        executor: Executor,
        clock: Clock,
        notifier: Notifier,
        *,
        read_request: RequestReader,
        rules: ReoptimizeRules | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._uow_factory = uow_factory
        self._plan_call = plan_call
        self._executor = executor
        self._clock = clock
        self._notifier = notifier
        self._read_request = read_request
        self._rules = rules or ReoptimizeRules()
        self._random_bytes = random_bytes
        self._looking = asyncio.Lock()

    async def run_for(self, caller: Caller, team: str | None = None) -> tuple[Reoptimization, ...]:
        """A new look that somebody asks for, at the plans that they see."""
        require_scope(caller, Scope.PLANS_WRITE)
        return await self.run(f"asked by {caller.key_id}", team_filter(caller, team))

    async def run(self, trigger: str, team: str | None = None) -> tuple[Reoptimization, ...]:
        """A new look at every current plan of ``team`` (None: all). ``trigger`` says why."""
        return await self._run(await self._current(team), trigger)

    async def run_if_touched(self, changes: Iterable[OfferChange]) -> tuple[Reoptimization, ...]:
        """A new look at the plans that ``changes`` of the market call for."""
        moved = tuple(changes)
        if not moved:
            return ()
        records = [r for r in await self._current(None) if r.plan is not None and is_touched(r.plan, moved)]
        first = moved[0]
        more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
        return await self._run(records, f"market: {first.kind} of {first.offer_id}{more}")

    async def find_reoptimizations(
        self, caller: Caller, limit: int = 50, cursor: str | None = None, *, team: str | None = None
    ) -> Page[Reoptimization]:
        """What was proposed, applied or rejected, and why; newest first."""
        async with self._uow_factory() as uow:
            return await uow.reoptimizations.find_page(team_filter(caller, team), limit, cursor)

    async def _current(self, team: str | None) -> tuple[PlanRecord, ...]:
        async with self._uow_factory() as uow:
            return await uow.plans.find_current(team)

    async def _run(self, records: Iterable[PlanRecord], trigger: str) -> tuple[Reoptimization, ...]:
        async with self._looking:
            looks = [await self._look_at(record, trigger) for record in records]
        return tuple(look for look in looks if look is not None)

    async def _look_at(self, record: PlanRecord, trigger: str) -> Reoptimization | None:
        """One plan; None when its horizon is over."""
        now = self._clock.now()
        blank = Reoptimization(
            reoptimization_id=make_id("reopt", now, self._random_bytes(ENTROPY_BYTES)),
            team=record.team,
            plan_id=record.plan_id,
            trigger=trigger,
            started_at=now,
            state=ProposalState.UNCHANGED,
        )
        try:
            request = self._read_request(record.document)
            if record.plan is None or request.horizon.end <= now:
                return None
            look = await self._gather(record, record.plan, now)
            result, new = await self._weigh(look, request, blank)
        except BrokerError as error:
            result, new = replace(blank, state=ProposalState.FAILED, reason=str(error)), None
        except Exception as error:  # one plan's fault must not stop the others' look
            log.exception("re-optimization of %s failed unexpectedly", record.plan_id)
            reason = f"unexpected {type(error).__name__}: {error}"
            result, new = replace(blank, state=ProposalState.FAILED, reason=reason), None
        return await self._store(result, record, new)

    async def _gather(self, record: PlanRecord, plan: Plan, now: datetime) -> _Look:
        async with self._uow_factory() as uow:
            offers = await uow.offers.find_current()
            feeds = await uow.offers.find_feeds()
            reservations = await uow.reservations.find_open()
            launches = await uow.launches.find_since(now - REMEMBERED)
            prices: dict[str, Decimal] = {}
            for offer in offers:
                prices[offer.offer_id] = offer.price_usd_per_node_hour
            if plan.as_of < now:
                for offer_id in {placement.offer_id for placement in plan.placements}:
                    for point in (await uow.offers.find_prices(offer_id, Window(plan.as_of, now)))[:1]:
                        prices[offer_id] = point.price_usd_per_node_hour
        fresh = fresh_offers(offers, feeds, now, self._rules.max_offer_age, self._rules.price_lists)
        return _Look(
            record=record,
            plan=plan,
            offers=LaunchBook(launches, now).told(fresh),
            reservations=tuple(r for r in reservations if r.plan_id == record.plan_id),
            prices_then=prices,
            now=now,
        )

    async def _weigh(
        self, look: _Look, request: PlanRequest, blank: Reoptimization
    ) -> tuple[Reoptimization, Plan | None]:
        """Plans what may still move, and judges the answer against the old plan at today's prices."""
        rest = remaining_request(request, look.plan, find_under_way(look.plan, look.reservations, look.now))
        if not rest.workloads:
            return replace(blank, reason="everything is under way"), None
        future = self._executor.submit(self._plan_call, rest, look.offers, look.now, look.record.options)
        new: Plan = await asyncio.wrap_future(future)
        offers = {offer.offer_id: offer for offer in look.offers}
        names = [workload.name for workload in rest.workloads]
        cost = remaining_plan_cost_usd(look.plan, names, offers, look.now, look.held)
        before = None if cost is None else cost + look.plan.penalty_usd
        after = new.cost_usd + new.penalty_usd
        moves = find_moves(look.plan, new, offers, look.prices_then, look.now, look.held)
        state, reason = judge(look.plan, new, before, after, moves, self._rules.thresholds)
        result = replace(blank, state=state, before_usd=before, after_usd=after, reason=reason)
        if state is ProposalState.UNCHANGED:
            return result, None
        return replace(result, moves=moves), new if state is ProposalState.PROPOSED else None

    async def _store(self, result: Reoptimization, record: PlanRecord, new: Plan | None) -> Reoptimization:
        async with self._uow_factory() as uow:
            if new is not None:
                recent = await uow.reoptimizations.find_page(record.team, RECENT, None)
                known = _same_proposal(recent.items, result)
                plan_id = known or make_id("plan", result.started_at, self._random_bytes(ENTROPY_BYTES))
                if known is None:
                    await uow.plans.add(self._proposal(record, replace(new, plan_id=plan_id), result))
                result = replace(result, new_plan_id=plan_id)
            await uow.reoptimizations.add(result)
            await uow.accounts.add_audit(_entry(result))
            await uow.commit()
        if result.state is ProposalState.PROPOSED:
            await self._notifier.notify("plan.proposed", record.team, _body(result))
        return result

    def _proposal(self, record: PlanRecord, plan: Plan, result: Reoptimization) -> PlanRecord:
        limit = self._rules.approval_limit_usd
        return PlanRecord(
            plan_id=plan.plan_id,
            team=record.team,
            state=PlanState.PROPOSED,
            document=record.document,
            options=record.options,
            created_at=result.started_at,
            requested_by=ACTOR,
            plan=replace(plan, created_at=result.started_at, team=record.team),
            needs_approval=limit is not None and plan.cost_usd > limit,
        )


def _same_proposal(recent: Iterable[Reoptimization], result: Reoptimization) -> str | None:
    """The plan that already says the same, so that a market at rest gives no new ones."""
    for look in recent:
        if look.plan_id == result.plan_id and look.state is ProposalState.PROPOSED:
            same = (look.after_usd, look.moves) == (result.after_usd, result.moves)
            return look.new_plan_id if same else None
    return None


def _entry(result: Reoptimization) -> AuditEntry:
    return AuditEntry(
        at=result.started_at,
        actor=ACTOR,
        action=f"reoptimization.{result.state}",
        object_kind="plan",
        object_id=result.plan_id,
        team=result.team,
        detail=f"{result.trigger}: {result.reason}",
    )


def _body(result: Reoptimization) -> dict[str, object]:
    saving = result.saving_usd
    return {
        "plan_id": result.plan_id,
        "new_plan_id": result.new_plan_id,
        "saving_usd": None if saving is None else format_usd(saving),
        "reason": result.reason,
        "moves": [move.why for move in result.moves],
    }
