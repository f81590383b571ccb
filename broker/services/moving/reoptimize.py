"""Re-optimization: a new look at what runs and what is planned, as the market moves."""

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
from broker.domain.holding.cost_of_keeping import held_of
from broker.domain.holding.quotas import held_beside
from broker.domain.holding.reservation import Reservation
from broker.domain.market.market import OfferChange
from broker.domain.market.offer import Offer
from broker.domain.market.price_gate import Quarantined
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
from broker.domain.planning.plan import Plan
from broker.domain.planning.plan_turns import Turn, TurnClass, class_by_size
from broker.domain.planning.quarantine_note import quarantine_note
from broker.domain.planning.reoptimize_policy import MoveRules, ReoptimizeMode
from broker.domain.planning.workload import PlanRequest
from broker.domain.reconciling.held_offers import less_others, less_refused, with_held
from broker.domain.reconciling.shortfalls import is_refused, refused_workloads
from broker.domain.spend.approvals import ApprovalState
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
from broker.services.market.price_forecasts import PlanOutlooks
from broker.services.market.usable_offers import OfferRules, usable_offers
from broker.services.moving.run_store import RunStore
from broker.services.planning.plan_queue import PlanQueue

log = logging.getLogger(__name__)

LONGEST_COOLDOWN = timedelta(days=90)
LATER = timedelta(microseconds=1)
"""Which of two plans of one look is the newer must be told from their instants."""
THOROUGH = (1.0,) * MOST_PLANS
QUICK = (0.5, 0.25, 0.25)
"""Shares of the time limit: a search that only places anew what the one before left needs less."""


@dataclass(frozen=True, slots=True)
class ReoptimizeRules:
    """``moves``: what counts where no policy says; ``frozen``: what starts within it stays.

    ``time_limit_s``: the most work, in seconds, that one search of the timetable may do after its first
    repair, and all searches together of a look at a change of the market, which has to be quick; the rest as
    for plans that somebody asks for. ``guard``: how long any one search may last, whatever it counted.
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
    """What all plans of one pass see: offers with what we learned, open reservations, moves of the past,
    offers whose prices are not believed, and looks that were cut off, by plan."""

    now: datetime
    offers: tuple[Offer, ...]
    reservations: tuple[Reservation, ...]
    moved: tuple[Reoptimization, ...]
    doubted: tuple[Quarantined, ...]
    unfinished: Mapping[str, Reoptimization]


@dataclass(frozen=True, slots=True)
class _Look:
    """One plan of a pass: what may change of it, and what counts.

    ``shares`` of the time limit: what each search in turn may take, none longer than ``guard_s``.
    ``quarantine_note``: the cheaper price that was left out, in words.
    """

    record: PlanRecord
    request: PlanRequest
    situation: MoveContext
    rules: dict[str, MoveRules]
    shares: Sequence[float]
    quarantine_note: str
    guard_s: float

    @property
    def names(self) -> frozenset[str]:
        return frozenset(w.name for w in self.situation.request.workloads)

    @property
    def auto(self) -> frozenset[str]:
        """What may move by itself."""
        return self._with(ReoptimizeMode.AUTO)

    @property
    def proposable(self) -> frozenset[str]:
        """What may move when somebody says so."""
        return self._with(ReoptimizeMode.PROPOSE)

    def _with(self, mode: ReoptimizeMode) -> frozenset[str]:
        return frozenset(name for name in self.names if self.rules[name].mode is mode)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a look found: its record, the plan that it proposes, and what of it was cut off, in words."""

    result: Reoptimization
    new: Plan | None = None
    unfinished: str = ""


class ReoptimizeService:
    """Looks again, and stores what it finds. ``replan_call`` and ``queue`` as for planning."""

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
        outlooks: PlanOutlooks | None = None,
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
        self._book = RunStore(uow_factory, notifier, limit, random_bytes, outlooks, budgets)
        self._looking = asyncio.Lock()

    async def run_for(self, caller: Caller, team: str | None = None) -> tuple[Reoptimization, ...]:
        """A new look that somebody asks for, at the plans that they see."""
        require_scope(caller, Scope.PLANS_WRITE)
        return await self.run(f"asked by {caller.key_id}", scope_of(caller, team))

    async def run(self, trigger: str, scope: TeamScope = EVERY_TEAM) -> tuple[Reoptimization, ...]:
        """A new look at every current plan of ``scope``, those that hold something first."""
        return await self._run(await self._current(scope), trigger, THOROUGH)

    async def run_if_touched(self, changes: Iterable[OfferChange]) -> tuple[Reoptimization, ...]:
        """A new, quick look at the plans that ``changes`` of the market call for."""
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
        """A new look, with more time, at each plan whose last one was cut off and whose pause is over.

        Plans that are not in force any more are not looked at again.
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
            "the look before was cut off",
            THOROUGH,
        )

    async def find_unfinished(self, scope: TeamScope = EVERY_TEAM) -> tuple[Reoptimization, ...]:
        """Looks that were cut off and wait for another try, newest first."""
        async with self._uow_factory(scope) as uow:
            return await uow.reoptimizations.find_in({ProposalState.UNFINISHED})

    async def find_unfinished_of(self, caller: Caller, plan_id: str) -> Reoptimization | None:
        """The look at a plan of the caller's that was cut off and waits for another try."""
        waiting = await self.find_unfinished(scope_of(caller))
        return next((look for look in waiting if look.plan_id == plan_id), None)

    async def has_plans(self) -> bool:
        """Whether a plan is in force that a change of the market may call to look at."""
        return bool(await self._current(EVERY_TEAM))

    async def find_reoptimizations(
        self, caller: Caller, limit: int = 50, cursor: str | None = None, *, team: str | None = None
    ) -> Page[Reoptimization]:
        """What was proposed, applied or rejected, and why; newest first."""
        async with self._uow_factory(scope_of(caller, team)) as uow:
            return await uow.reoptimizations.find_page(None, limit, cursor)

    async def find_one(self, caller: Caller, reoptimization_id: str) -> Reoptimization:
        """One; NotFound for another team's."""
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
        """One plan; nothing when its horizon is over, or while its moves are under way."""
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
        except Exception as error:  # one plan's fault must not stop the others' look
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
        """Stores what a look found, and the plan that it proposes.

        What was cut off is kept beside a proposal, as more may be found, and in place of any other finding,
        which may be wrong.
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
        """Where moves begin by themselves: what else may be proposed, over the plan that they lead to."""
        if proposal is None or proposal.plan is None or first.mode is not ReoptimizeMode.AUTO:
            return ()
        if proposal.approval is ApprovalState.WAITING or not look.proposable:
            return ()
        after = replace(
            look, record=proposal, situation=replace(look.situation, plan=proposal.plan, prices_then={})
        )
        try:
            blank = self._blank(proposal, first.started_at + 2 * LATER, first.trigger)
            seen = await self._found(after, blank, (look.proposable,))
        except BrokerError as error:
            log.warning("beside %s: %s", first.reoptimization_id, error)
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
        request: PlanRequest,
        market: _Market,
        shares: Sequence[float],
    ) -> _Look:
        now, terms = market.now, self._rules.terms
        async with self._uow_factory(EVERY_TEAM) as uow:
            plan_ids = await uow.plans.find_lineage(record.plan_id)
        mine = [row for row in market.reservations if row.plan_id in plan_ids]
        others = [row for row in market.reservations if row.plan_id not in plan_ids]
        held = tuple(one for row in mine if (one := held_of(row)) is not None)
        off_spot = behind_on_spot(request, plan, held, now, terms)
        left = remaining(request, plan, held, now, terms, frozenset(off_spot))
        empty = frozenset(row.offer.offer_id for row in market.reservations if is_refused(row))
        offers = less_refused(with_held(less_others(market.offers, others, now), held), held, empty)
        situation = MoveContext(
            request=replace(left.request, held=held_beside(left.request, market.reservations)),
            plan=plan,
            held=held,
            offers={offer.offer_id: offer for offer in offers},
            prices_then={},
            now=now,
            past=past_moves(market.moved, record.team),
            must_leave=refused_workloads(mine, now) | off_spot,
        )
        rules = rules_by_workload(request, self._rules.moves)
        doubt = quarantine_note(plan, offers, market.doubted)
        guard_s = guard_after(market.unfinished.get(record.plan_id), self._rules.guard)
        return _Look(record, request, situation, rules, shares, doubt, guard_s)

    async def _weigh(self, look: _Look, blank: Reoptimization) -> _Found:
        """What may move by itself first; only when nothing of that pays, all that may be proposed."""
        if not look.names:
            return _Found(replace(blank, reason="everything is under way"))
        if not look.auto | look.proposable:
            return _Found(replace(blank, reason="the policy is never to move anything of it"))
        every = look.auto | look.proposable
        return await self._found(
            look, blank, (look.auto, every) if look.auto and look.proposable else (every,)
        )

    async def _found(self, look: _Look, blank: Reoptimization, turns: Sequence[frozenset[str]]) -> _Found:
        """The first of ``turns``, each of what may move in it, in which something pays; else the last."""
        unfinished = ""
        for movable in turns:
            decision, new = await self._decide(look, look.names - movable)
            unfinished = unfinished or new.unfinished
            if decision.moves:
                break
        result = found(blank, decision, look.rules, look.quarantine_note)
        if result.state is not ProposalState.PROPOSED:
            return _Found(result, None, unfinished)
        plan = merged(look.situation.plan, new.plan, decision.moved, look.request)
        return _Found(result, plan, unfinished)

    async def _decide(self, look: _Look, frozen: frozenset[str]) -> tuple[Decision, PlannedAgain]:
        """A plan and which moves to it pay; again with what does not pay frozen, until all of it does.

        It is unfinished if any of its searches was: a later one starts from what is in force, not from it.
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
        """A search whose limit counts work: on a busy machine it finds the same, later."""
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
        """Prices when the plan was made, of all that it and ``new`` use; today's where nothing is known."""
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
