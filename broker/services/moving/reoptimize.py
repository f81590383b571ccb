"""Re-optimization of plans in force as the market changes."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.access import EVERY_TEAM, TeamScope, require_scope, scope_of
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.errors import BrokerError
from broker.domain.basics.identity import ENTROPY_BYTES, make_id
from broker.domain.basics.page import Page
from broker.domain.basics.window import Window
from broker.domain.holding.cost_of_keeping import held_of, waits_after_refusal, without_refused
from broker.domain.holding.quotas import held_beside
from broker.domain.holding.reservation import Reservation
from broker.domain.market.market import OfferChange
from broker.domain.market.offer import Offer
from broker.domain.market.price_gate import Quarantined
from broker.domain.moving.kept_parts import (
    NO_SHORTAGES,
    Shortages,
    find_shortages,
    on_held_offers,
)
from broker.domain.moving.merging import merged
from broker.domain.moving.move_cost_benefit import MoveContext, leaving_usd
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.moving.remaining import remaining
from broker.domain.moving.reoptimization import MOVED, ProposalState, Reoptimization
from broker.domain.moving.reoptimization_result import (
    GuardRules,
    cut_off,
    found,
    guard_after,
    less_saved,
    past_moves,
    retry_at,
    rules_by_workload,
)
from broker.domain.moving.reoptimizing import MOST_PLANS, Decision, decide_beside, is_touched
from broker.domain.moving.spot_fallback import behind_on_spot
from broker.domain.planning.notes import quarantine_note
from broker.domain.planning.plan import Plan
from broker.domain.planning.plan_turns import Turn, TurnClass, class_by_size
from broker.domain.planning.workload import PlanRequest
from broker.domain.reconciling.held_offers import less_others, less_refused, with_held
from broker.domain.reconciling.shortfalls import refused_workloads
from broker.domain.spend.approvals import ApprovalState
from broker.domain.workloads.reoptimize_policy import MoveRules, ReoptimizeMode
from broker.ports.planning import (
    BudgetWatch,
    InForce,
    LimitClock,
    PlannedAgain,
    PlanRecord,
    ReplanCall,
    RequestReader,
)
from broker.ports.unit_of_work import Clock, Notifier, UnitOfWorkFactory
from broker.services.market.price_forecasts import PlanPriceForecasts
from broker.services.market.usable_offers import OfferRules, usable_offers
from broker.services.moving.run_store import RunStore
from broker.services.planning.plan_queue import PlanQueue

log = logging.getLogger(__name__)

LONGEST_COOLDOWN = timedelta(days=90)
LATER = timedelta(microseconds=1)
"""Time between two plans of one re-optimization, so that their order follows from their times."""
THOROUGH = (1.0,) * MOST_PLANS
QUICK = (0.5, 0.25, 0.25)
"""Shares of the time limit for each search in turn; later searches start from earlier results."""


@dataclass(frozen=True, slots=True)
class ReoptimizeRules:
    """Limits of re-optimizations.

    ``moves``: rules for workloads without a policy. ``frozen``: what starts within this time stays.
    ``time_limit_s``: counted work, in seconds, that one scheduled search may do after its first repair; for a
    market change, which has to be quick, it is the limit of all searches together. ``guard``: maximum time of
    one search on the clock.
    """

    moves: MoveRules = field(default_factory=MoveRules)
    terms: MovingTerms = field(default_factory=MovingTerms)
    approval_limit_usd: Decimal | None = None
    offers: OfferRules = field(default_factory=OfferRules)
    frozen: timedelta = timedelta(minutes=30)
    time_limit_s: float = 8.0
    guard: GuardRules = field(default_factory=GuardRules)


@dataclass(frozen=True, slots=True)
class _Market:
    """Inputs that all plans of one pass share.

    These are usable offers, open reservations, past moves, quarantined offers, and unfinished
    re-optimizations by plan.
    """

    now: datetime
    offers: tuple[Offer, ...]
    reservations: tuple[Reservation, ...]
    moved: tuple[Reoptimization, ...]
    doubted: tuple[Quarantined, ...]
    unfinished: Mapping[str, Reoptimization]


@dataclass(frozen=True, slots=True)
class _Look:
    """The re-optimization of one plan: what may change, and the rules.

    ``shares`` of the time limit for each search in turn, none longer than ``guard_s``. ``quarantine_note``: a
    text on a cheaper offer that was excluded by quarantine.
    """

    record: PlanRecord
    request: PlanRequest
    situation: MoveContext
    rules: dict[str, MoveRules]
    shares: Sequence[float]
    quarantine_note: str
    guard_s: float
    short: Shortages = NO_SHORTAGES

    @property
    def names(self) -> frozenset[str]:
        return frozenset(w.name for w in self.situation.request.workloads)

    @property
    def auto(self) -> frozenset[str]:
        """Workloads that may move without a decision."""
        return self._with(ReoptimizeMode.AUTO)

    @property
    def proposable(self) -> frozenset[str]:
        """Workloads that may move after a decision."""
        return self._with(ReoptimizeMode.PROPOSE)

    def _with(self, mode: ReoptimizeMode) -> frozenset[str]:
        return frozenset(name for name in self.names if self.rules[name].mode is mode)


@dataclass(frozen=True, slots=True)
class _Found:
    """The result: its record, the proposed plan, and a text on the part that was not finished."""

    result: Reoptimization
    new: Plan | None = None
    unfinished: str = ""


class ReoptimizeService:
    """Re-optimizes plans and stores the results. ``replan_call`` and ``queue``: see ``PlanningService``."""

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        replan_call: ReplanCall,
        queue: PlanQueue,
        clock: Clock,
        notifier: Notifier,
        *,
        read_request: RequestReader,
        rules: ReoptimizeRules | None = None,
        price_forecasts: PlanPriceForecasts | None = None,
        budgets: BudgetWatch | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._uow_factory = uow_factory
        self._replan_call = replan_call
        self._queue = queue
        self._clock = clock
        self._read_request = read_request
        self._rules = rules or ReoptimizeRules()
        self._random_bytes = random_bytes
        limit = self._rules.approval_limit_usd
        self._book = RunStore(uow_factory, notifier, limit, random_bytes, price_forecasts, budgets)
        self._looking = asyncio.Lock()

    async def run_for(self, caller: Caller, team: str | None = None) -> tuple[Reoptimization, ...]:
        """Re-optimizes the plans that the caller sees, at their request."""
        require_scope(caller, Scope.PLANS_WRITE)
        return await self.run(f"requested by {caller.key_id}", scope_of(caller, team))

    async def run(self, trigger: str, scope: TeamScope = EVERY_TEAM) -> tuple[Reoptimization, ...]:
        """Re-optimizes all plans in force of ``scope``, first those that hold capacity."""
        return await self._run(await self._current(scope), trigger, THOROUGH)

    async def run_if_touched(self, changes: Iterable[OfferChange]) -> tuple[Reoptimization, ...]:
        """Re-optimizes quickly the plans that ``changes`` of the market touch."""
        moved = tuple(changes)
        if not moved:
            return ()
        records = [
            r for r in await self._current(EVERY_TEAM) if r.plan is not None and is_touched(r.plan, moved)
        ]
        first = moved[0]
        more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
        return await self._run(records, f"market: {first.kind} of {first.offer_id}{more}", QUICK)

    async def run_unfinished(self) -> tuple[Reoptimization, ...]:
        """Repeats unfinished re-optimizations, with more time, after a pause.

        Those of plans that are not in force any more are ended instead.
        """
        waiting = await self.find_unfinished()
        if not waiting:
            return ()
        now = self._clock.now()
        current = {record.plan_id: record for record in await self._current(EVERY_TEAM)}
        gone = [look for look in waiting if look.plan_id not in current]
        if gone:
            await self._book.let_go(gone, "its plan is not in force any more", now)
        due = {look.plan_id for look in waiting if (at := retry_at(look)) is not None and at <= now}
        return await self._run(
            [record for plan_id, record in current.items() if plan_id in due],
            "the previous re-optimization was not finished",
            THOROUGH,
        )

    async def find_unfinished(self, scope: TeamScope = EVERY_TEAM) -> tuple[Reoptimization, ...]:
        """Unfinished re-optimizations that wait for another try, newest first."""
        async with self._uow_factory(scope) as uow:
            return await uow.reoptimizations.find_in({ProposalState.UNFINISHED})

    async def find_unfinished_of(self, caller: Caller, plan_id: str) -> Reoptimization | None:
        """The unfinished re-optimization of a plan that waits for another try; None if there is none."""
        waiting = await self.find_unfinished(scope_of(caller))
        return next((look for look in waiting if look.plan_id == plan_id), None)

    async def find_proposed(self, caller: Caller) -> tuple[Reoptimization, ...]:
        """Proposals that wait for a decision, newest first."""
        async with self._uow_factory(scope_of(caller)) as uow:
            return await uow.reoptimizations.find_in({ProposalState.PROPOSED})

    async def has_plans(self) -> bool:
        """Whether any plan is in force."""
        return bool(await self._current(EVERY_TEAM))

    async def find_reoptimizations(
        self, caller: Caller, limit: int = 50, cursor: str | None = None, *, team: str | None = None
    ) -> Page[Reoptimization]:
        """Re-optimizations with their results, newest first."""
        async with self._uow_factory(scope_of(caller, team)) as uow:
            return await uow.reoptimizations.find_page(None, limit, cursor)

    async def find_one(self, caller: Caller, reoptimization_id: str) -> Reoptimization:
        """One re-optimization. Raises NotFound, also for one of another team."""
        async with self._uow_factory(scope_of(caller)) as uow:
            return await uow.reoptimizations.find(reoptimization_id)

    async def _current(self, scope: TeamScope) -> tuple[PlanRecord, ...]:
        async with self._uow_factory(scope) as uow:
            return await uow.plans.find_current()

    async def _run(
        self, records: Iterable[PlanRecord], trigger: str, shares: Sequence[float]
    ) -> tuple[Reoptimization, ...]:
        wanted = tuple(records)
        if not wanted:
            return ()
        async with self._looking:
            market = await self._market()
            holding = {row.plan_id for row in market.reservations}
            first = sorted(wanted, key=lambda r: holding.isdisjoint((r.plan_id, r.supersedes)))
            looks = [await self._look_at(record, market, trigger, shares) for record in first]
        return tuple(one for found_of_one in looks for one in found_of_one)

    async def _market(self) -> _Market:
        now = self._clock.now()
        async with self._uow_factory(EVERY_TEAM) as uow:
            offers = await usable_offers(uow, now, self._rules.offers)
            reservations = await uow.reservations.find_open()
            moved = await uow.reoptimizations.find_in(MOVED, now - LONGEST_COOLDOWN)
            doubted = await uow.quarantine.find(None)
            unfinished = await uow.reoptimizations.find_in({ProposalState.UNFINISHED})
        waiting = {look.plan_id: look for look in reversed(unfinished)}
        return _Market(now, offers, reservations, moved, doubted, waiting)

    async def _look_at(
        self, record: PlanRecord, market: _Market, trigger: str, shares: Sequence[float]
    ) -> tuple[Reoptimization, ...]:
        """Re-optimizes one plan; does nothing after its horizon, and while its moves are in progress."""
        blank = self._blank(record, market.now, trigger)
        moving = (o for o in market.moved if o.state is ProposalState.ACCEPTED)
        if any(record.plan_id in (look.plan_id, look.new_plan_id) for look in moving):
            return ()
        look: _Look | None = None
        try:
            request = self._read_request(record.document)
            if record.plan is None or request.horizon.end <= market.now:
                await self._let_go_of(record, market)
                return ()
            look = await self._gather(record, record.plan, request, market, shares)
            seen = await self._weigh(look, blank)
        except BrokerError as error:
            seen = _Found(replace(blank, state=ProposalState.FAILED, reason=str(error)))
        except Exception as error:  # a failure of one plan must not stop the others
            log.exception("re-optimization of %s failed unexpectedly", record.plan_id)
            reason = f"unexpected {type(error).__name__}: {error}"
            seen = _Found(replace(blank, state=ProposalState.FAILED, reason=reason))
        if look is None:
            failed, _ = await self._book.keep(seen.result, record, None)
            return (failed,)
        kept, proposal = await self._keep(look, seen)
        return (*kept, *await self._look_beside(look, kept[0], proposal))

    async def _let_go_of(self, record: PlanRecord, market: _Market) -> None:
        unfinished = market.unfinished.get(record.plan_id)
        if unfinished is not None:
            await self._book.let_go([unfinished], "its horizon is over", market.now)

    async def _keep(self, look: _Look, seen: _Found) -> tuple[tuple[Reoptimization, ...], PlanRecord | None]:
        """Stores a result and the proposed plan.

        An unfinished result is stored in addition to a proposal, because more may be found, and instead of
        any other result, which may be wrong.
        """
        result = seen.result
        if not seen.unfinished:
            kept, proposal = await self._book.keep(result, look.record, seen.new)
            return (kept,), proposal
        if result.state is not ProposalState.PROPOSED:
            kept, _ = await self._book.keep(cut_off(result, seen.unfinished, look.guard_s), look.record, None)
            return (kept,), None
        kept, proposal = await self._book.keep(result, look.record, seen.new)
        blank = self._blank(look.record, result.started_at + LATER, result.trigger)
        rest, _ = await self._book.keep(cut_off(blank, seen.unfinished, look.guard_s), look.record, None)
        return (kept, rest), proposal

    async def _look_beside(
        self, look: _Look, first: Reoptimization, proposal: PlanRecord | None
    ) -> tuple[Reoptimization, ...]:
        """If moves begin without a decision: further proposals, starting from the plan after these moves."""
        if proposal is None or proposal.plan is None or first.mode is not ReoptimizeMode.AUTO:
            return ()
        if proposal.approval is ApprovalState.WAITING or not look.proposable:
            return ()
        started_from = look.short.lacking(proposal.plan)
        after = replace(
            look, record=proposal, situation=replace(look.situation, plan=started_from, prices_then={})
        )
        try:
            blank = self._blank(proposal, first.started_at + 2 * LATER, first.trigger)
            seen = await self._found(after, blank, (look.proposable,))
        except BrokerError as error:
            log.warning("no further proposals after %s: %s", first.reoptimization_id, error)
            return ()
        if seen.new is None and not seen.unfinished:
            return ()
        kept, _ = await self._keep(after, replace(seen, result=less_saved(seen.result, first)))
        return kept

    def _blank(self, record: PlanRecord, now: datetime, trigger: str) -> Reoptimization:
        return Reoptimization(
            reoptimization_id=make_id("reopt", now, self._random_bytes(ENTROPY_BYTES)),
            team=record.team,
            plan_id=record.plan_id,
            trigger=trigger,
            started_at=now,
            state=ProposalState.UNCHANGED,
        )

    async def _gather(
        self,
        record: PlanRecord,
        plan: Plan,
        whole: PlanRequest,
        market: _Market,
        shares: Sequence[float],
    ) -> _Look:
        now, terms, request = market.now, self._rules.terms, whole
        async with self._uow_factory(EVERY_TEAM) as uow:
            plan_ids = await uow.plans.find_lineage(record.plan_id)
        mine = [row for row in market.reservations if row.plan_id in plan_ids]
        others = [row for row in market.reservations if row.plan_id not in plan_ids]
        held = tuple(one for row in mine if (one := held_of(row)) is not None)
        short = find_shortages(request, plan, held, now)
        off_spot = behind_on_spot(request, short.working(plan), held, now, terms)
        short = short.without(off_spot)
        ids = {one.reservation_id for one in short.rows}
        kept = [replace(without_refused(r), workload=None) for r in mine if r.reservation_id in ids]
        loose, refused = short.loose(held), refused_workloads(mine, now)
        request, started_from = short.rest_of(request), on_held_offers(short.lacking(plan), loose, refused)
        left = remaining(request, started_from, loose, now, terms, frozenset(off_spot))
        empty = frozenset(row.offer.offer_id for row in market.reservations if waits_after_refusal(row))
        free = less_others(market.offers, [*others, *kept], Window(now, request.horizon.end))
        offers = less_refused(with_held(free, loose), loose, empty)
        beside = [*others, *kept, *(row for row in mine if row.reservation_id not in ids)]
        situation = MoveContext(
            request=replace(left.request, held=held_beside(left.request, beside)),
            plan=started_from,
            held=loose,
            offers={offer.offer_id: offer for offer in offers},
            prices_then={},
            now=now,
            past=past_moves(market.moved, record.team),
            must_leave=short.reasons | refused | off_spot,
            short=frozenset(refused).difference(off_spot),
            kept=short.kept_ids,
        )
        rules = rules_by_workload(request, self._rules.moves)
        doubt = quarantine_note(plan, offers, market.doubted)
        guard_s = guard_after(market.unfinished.get(record.plan_id), self._rules.guard)
        return _Look(record, whole, situation, rules, shares, doubt, guard_s, short)

    async def _weigh(self, look: _Look, blank: Reoptimization) -> _Found:
        """Tries moves that need no decision first; if none pays, all moves that may be proposed."""
        if not look.names:
            return _Found(replace(blank, reason="none of its workloads can still change"))
        if not look.auto | look.proposable:
            return _Found(replace(blank, reason="its policies allow no moves"))
        every = look.auto | look.proposable
        return await self._found(
            look, blank, (look.auto, every) if look.auto and look.proposable else (every,)
        )

    async def _found(self, look: _Look, blank: Reoptimization, turns: Sequence[frozenset[str]]) -> _Found:
        """The result of the first of ``turns`` (movable workloads) in which a move pays, else of the last."""
        unfinished = ""
        for movable in turns:
            decision, new = await self._decide(look, look.names - movable)
            unfinished = unfinished or new.unfinished
            if decision.moves:
                break
        result = found(blank, decision, look.rules, look.quarantine_note)
        if result.state is not ProposalState.PROPOSED:
            return _Found(result, None, unfinished)
        assert look.record.plan is not None
        plan = merged(look.record.plan, new.plan, decision.moved, look.request, look.short)
        return _Found(result, plan, unfinished)

    async def _decide(self, look: _Look, frozen: frozenset[str]) -> tuple[Decision, PlannedAgain]:
        """A plan whose moves all pay: workloads whose move does not pay are frozen, and planned again.

        It is unfinished if any of the searches was, because each starts from the plan in force.
        """
        situation, unfinished = look.situation, ""
        for share in look.shares:
            made = await self._plan(look, frozen, share)
            new, unfinished = made.plan, unfinished or made.unfinished
            seen = replace(situation, prices_then=await self._prices_then(look, new))
            decision, more = decide_beside(seen, new, look.rules, self._rules.terms, frozen)
            if more is None:
                break
            frozen = more
        return decision, PlannedAgain(new, unfinished)

    async def _plan(self, look: _Look, frozen: frozenset[str], share: float) -> PlannedAgain:
        """A search that is limited by counted work, so that a busy machine finds the same result later."""
        situation, rules = look.situation, self._rules
        options = look.record.options
        limit_s = share * min(options.time_limit_s, rules.time_limit_s)
        in_force = InForce(
            plan=situation.plan,
            leaving_usd=leaving_usd(situation, rules.terms),
            frozen=frozen,
            frozen_before=situation.now + rules.frozen,
        )
        size = len(situation.request.workloads)
        return await self._queue.run(
            Turn(look.record.team, class_by_size(TurnClass.REOPTIMIZATION, size)),
            self._replan_call,
            situation.request,
            tuple(situation.offers.values()),
            situation.now,
            replace(
                options,
                time_limit_s=limit_s,
                limit_clock=LimitClock.WORK,
                guard_s=look.guard_s,
                baselines=False,
                label="",
            ),
            in_force,
        )

    async def _prices_then(self, look: _Look, new: Plan) -> dict[str, Decimal]:
        """Prices at the time of planning for the offers of both plans; today's price if it is unknown."""
        situation = look.situation
        plan, now = situation.plan, situation.now
        used = {p.offer_id for p in (*plan.placements, *new.placements)}
        prices = {
            key: offer.price_usd_per_node_hour for key, offer in situation.offers.items() if key in used
        }
        if plan.as_of < now:
            async with self._uow_factory(EVERY_TEAM) as uow:
                for offer_id in sorted(used):
                    for point in (await uow.offers.find_prices(offer_id, Window(plan.as_of, now)))[:1]:
                        prices[offer_id] = point.price_usd_per_node_hour
        return prices
