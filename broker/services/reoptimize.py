"""Re-optimization: a new look at what runs and what is planned, as the market moves."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.access import require_scope, require_sight, team_filter
from broker.domain.account import Caller, Scope
from broker.domain.errors import BrokerError
from broker.domain.finding import ACTOR, entry_of, found, is_same, past_moves, rules_by_workload
from broker.domain.freshness import fresh_offers
from broker.domain.identity import ENTROPY_BYTES, make_id
from broker.domain.launches import REMEMBERED, LaunchBook
from broker.domain.market import OfferChange
from broker.domain.merging import merged
from broker.domain.money import format_usd
from broker.domain.moving_costs import MovingTerms
from broker.domain.offer import Offer, Tier
from broker.domain.own_stock import less_others, with_own
from broker.domain.page import Page
from broker.domain.plan import Plan
from broker.domain.quotas import held_beside
from broker.domain.remaining import remaining
from broker.domain.reoptimization import MOVED, ProposalState, Reoptimization
from broker.domain.reoptimize_policy import MoveRules, ReoptimizeMode
from broker.domain.reoptimizing import MOST_PLANS, Decision, decide_beside, is_touched
from broker.domain.reservation import Reservation
from broker.domain.spot import SpotBook, SpotPrior, spot_time
from broker.domain.spot_fallback import behind_on_spot
from broker.domain.staying import held_of
from broker.domain.weighing import Situation, leaving_usd
from broker.domain.window import Window
from broker.domain.workload import PlanRequest
from broker.plan_ports import InForce, PlanRecord, PlanState, ReplanCall, RequestReader
from broker.ports import Clock, Executor, Notifier, UnitOfWork, UnitOfWorkFactory

log = logging.getLogger(__name__)

LONGEST_COOLDOWN = timedelta(days=90)
"""How often a look plans again when some of what it found does not pay."""


@dataclass(frozen=True, slots=True)
class ReoptimizeRules:
    """``moves``: what counts where no policy says; ``frozen``: what starts within it stays.

    ``time_limit_s``: the most that one search may take; the rest as for plans that somebody asks for.
    """

    moves: MoveRules = field(default_factory=MoveRules)
    terms: MovingTerms = field(default_factory=MovingTerms)
    spot: SpotPrior = field(default_factory=SpotPrior)
    approval_limit_usd: Decimal | None = None
    max_offer_age: timedelta = timedelta(minutes=10)
    price_lists: frozenset[str] = frozenset()
    frozen: timedelta = timedelta(minutes=30)
    time_limit_s: float = 8.0


@dataclass(frozen=True, slots=True)
class _Market:
    """What all plans of one pass see: offers with what we learned, open reservations, moves of the past."""

    now: datetime
    offers: tuple[Offer, ...]
    reservations: tuple[Reservation, ...]
    moved: tuple[Reoptimization, ...]


@dataclass(frozen=True, slots=True)
class _Look:
    """One plan of a pass: what may change of it, and what counts."""

    record: PlanRecord
    request: PlanRequest
    situation: Situation
    rules: dict[str, MoveRules]


class ReoptimizeService:
    """Looks again, and stores what it finds. ``replan_call`` and ``executor`` as for planning."""

    def __init__(
        self,
        uow_factory: UnitOfWorkFactory,
        replan_call: ReplanCall,
        executor: Executor,
        clock: Clock,
        notifier: Notifier,
        *,
        read_request: RequestReader,
        rules: ReoptimizeRules | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._uow_factory = uow_factory
        self._replan_call = replan_call
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
        """A new look at every current plan of ``team`` (None: all), those that hold something first."""
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

    async def find_one(self, caller: Caller, reoptimization_id: str) -> Reoptimization:
        """One; NotFound for another team's."""
        async with self._uow_factory() as uow:
            look = await uow.reoptimizations.find(reoptimization_id)
        require_sight(caller, look.team, "re-optimization", reoptimization_id)
        return look

    async def _current(self, team: str | None) -> tuple[PlanRecord, ...]:
        async with self._uow_factory() as uow:
            return await uow.plans.find_current(team)

    async def _run(self, records: Iterable[PlanRecord], trigger: str) -> tuple[Reoptimization, ...]:
        wanted = tuple(records)
        if not wanted:
            return ()
        async with self._looking:
            market = await self._market()
            holding = {row.plan_id for row in market.reservations}
            first = sorted(wanted, key=lambda r: holding.isdisjoint((r.plan_id, r.supersedes)))
            looks = [await self._look_at(record, market, trigger) for record in first]
        return tuple(look for look in looks if look is not None)

    async def _market(self) -> _Market:
        now, rules = self._clock.now(), self._rules
        async with self._uow_factory() as uow:
            offers, feeds = await uow.offers.find_current(), await uow.offers.find_feeds()
            launches = await uow.launches.find_since(now - REMEMBERED)
            reservations = await uow.reservations.find_open()
            moved = await uow.reoptimizations.find_in(MOVED, now - LONGEST_COOLDOWN)
            rows: tuple[Reservation, ...] = ()
            if any(offer.tier is Tier.SPOT for offer in offers):
                rows = await uow.reservations.find_overlapping(Window(now - REMEMBERED, now))
        fresh = fresh_offers(offers, feeds, now, rules.max_offer_age, rules.price_lists)
        times = [time for row in rows if (time := spot_time(row, now)) is not None]
        told = SpotBook(times, rules.spot).told(LaunchBook(launches, now).told(fresh))
        return _Market(now, told, reservations, moved)

    async def _look_at(self, record: PlanRecord, market: _Market, trigger: str) -> Reoptimization | None:
        """One plan; None when its horizon is over, or while its moves are under way."""
        blank = Reoptimization(
            reoptimization_id=make_id("reopt", market.now, self._random_bytes(ENTROPY_BYTES)),
            team=record.team,
            plan_id=record.plan_id,
            trigger=trigger,
            started_at=market.now,
            state=ProposalState.UNCHANGED,
        )
        moving = (o for o in market.moved if o.state is ProposalState.ACCEPTED)
        if any(record.plan_id in (look.plan_id, look.new_plan_id) for look in moving):
            return None
        new: Plan | None = None
        try:
            request = self._read_request(record.document)
            if record.plan is None or request.horizon.end <= market.now:
                return None
            result, new = await self._weigh(await self._gather(record, record.plan, request, market), blank)
        except BrokerError as error:
            result = replace(blank, state=ProposalState.FAILED, reason=str(error))
        except Exception as error:  # one plan's fault must not stop the others' look
            log.exception("re-optimization of %s failed unexpectedly", record.plan_id)
            reason = f"unexpected {type(error).__name__}: {error}"
            result = replace(blank, state=ProposalState.FAILED, reason=reason)
        return await self._store(result, record, new)

    async def _gather(self, record: PlanRecord, plan: Plan, request: PlanRequest, market: _Market) -> _Look:
        now, terms = market.now, self._rules.terms
        async with self._uow_factory() as uow:
            plan_ids = await uow.plans.find_lineage(record.plan_id)
        mine = [row for row in market.reservations if row.plan_id in plan_ids]
        others = [row for row in market.reservations if row.plan_id not in plan_ids]
        held = tuple(one for row in mine if (one := held_of(row)) is not None)
        must_leave = behind_on_spot(request, plan, held, now, terms)
        left = remaining(request, plan, held, now, terms, frozenset(must_leave))
        offers = with_own(less_others(market.offers, others, now), held)
        situation = Situation(
            request=replace(left.request, held=held_beside(left.request, market.reservations)),
            plan=plan,
            held=held,
            offers={offer.offer_id: offer for offer in offers},
            prices_then={},
            now=now,
            past=past_moves(market.moved, record.team),
            must_leave=must_leave,
        )
        return _Look(record, request, situation, rules_by_workload(request, self._rules.moves))

    async def _weigh(self, look: _Look, blank: Reoptimization) -> tuple[Reoptimization, Plan | None]:
        """What may move by itself first; only when nothing of that pays, all that may be proposed."""
        names = {w.name for w in look.situation.request.workloads}
        if not names:
            return replace(blank, reason="everything is under way"), None
        may = {name for name in names if look.rules[name].mode is not ReoptimizeMode.NEVER}
        auto = {name for name in may if look.rules[name].mode is ReoptimizeMode.AUTO}
        for movable in (auto, may) if auto and auto != may else (may,):
            decision, new = await self._decide(look, frozenset(names - movable))
            if decision.moves:
                break
        result = found(blank, decision, look.rules)
        if result.state is not ProposalState.PROPOSED:
            return result, None
        return result, merged(look.situation.plan, new, decision.moved, look.request)

    async def _decide(self, look: _Look, frozen: frozenset[str]) -> tuple[Decision, Plan]:
        """A plan and which moves to it pay; again with what does not pay frozen, until all of it does."""
        situation = look.situation
        for _ in range(MOST_PLANS):
            new = await self._plan(look, frozen)
            seen = replace(situation, prices_then=await self._prices_then(look, new))
            decision, more = decide_beside(seen, new, look.rules, self._rules.terms, frozen)
            if more is None:
                break
            frozen = more
        return decision, new

    async def _plan(self, look: _Look, frozen: frozenset[str]) -> Plan:
        situation, rules = look.situation, self._rules
        options = look.record.options
        limit_s = min(options.time_limit_s, rules.time_limit_s)
        in_force = InForce(
            plan=situation.plan,
            leaving_usd=leaving_usd(situation, rules.terms),
            frozen=frozen,
            frozen_before=situation.now + rules.frozen,
        )
        future = self._executor.submit(
            self._replan_call,
            situation.request,
            tuple(situation.offers.values()),
            situation.now,
            replace(options, time_limit_s=limit_s, baselines=False, label=""),
            in_force,
        )
        new: Plan = await asyncio.wrap_future(future)
        return new

    async def _prices_then(self, look: _Look, new: Plan) -> dict[str, Decimal]:
        """Prices when the plan was made, of all that it and ``new`` use; today's where nothing is known."""
        situation = look.situation
        plan, now = situation.plan, situation.now
        used = {p.offer_id for p in (*plan.placements, *new.placements)}
        prices = {
            key: offer.price_usd_per_node_hour for key, offer in situation.offers.items() if key in used
        }
        if plan.as_of < now:
            async with self._uow_factory() as uow:
                for offer_id in sorted(used):
                    for point in (await uow.offers.find_prices(offer_id, Window(plan.as_of, now)))[:1]:
                        prices[offer_id] = point.price_usd_per_node_hour
        return prices

    async def _store(self, result: Reoptimization, record: PlanRecord, new: Plan | None) -> Reoptimization:
        """Stores a look; a proposal that stands is renewed by the same moves, and lapses for other ones."""
        async with self._uow_factory() as uow:
            standing = [
                look
                for look in await uow.reoptimizations.find_in({ProposalState.PROPOSED})
                if look.plan_id == record.plan_id
            ]
            same = next((look for look in standing if new is not None and is_same(look, result)), None)
            if same is not None and new is not None and same.new_plan_id is not None:
                result = await self._renew(uow, same, result, record, new)
            else:
                if result.state is not ProposalState.FAILED:
                    await _lapse(uow, standing, result)
                if new is not None:
                    plan_id = make_id("plan", result.started_at, self._random_bytes(ENTROPY_BYTES))
                    await uow.plans.add(self._proposal(record, replace(new, plan_id=plan_id), result))
                    result = replace(result, new_plan_id=plan_id)
                await uow.reoptimizations.add(result)
                await uow.accounts.add_audit(entry_of(result, result.started_at))
            await uow.commit()
        if result.state is ProposalState.PROPOSED and same is None:
            await self._notifier.notify("plan.proposed", record.team, _body(result))
        return result

    async def _renew(
        self, uow: UnitOfWork, same: Reoptimization, result: Reoptimization, record: PlanRecord, new: Plan
    ) -> Reoptimization:
        """The proposal that stands, with today's amounts; a dearer plan needs finance's word again."""
        assert same.new_plan_id is not None
        stored = await uow.plans.find(same.new_plan_id)
        proposal = self._proposal(record, replace(new, plan_id=stored.plan_id), result)
        dearer = stored.plan is None or new.cost_usd > stored.plan.cost_usd
        kept = replace(stored, plan=proposal.plan, needs_approval=proposal.needs_approval)
        await uow.plans.update(replace(kept, approved_by=None, approved_at=None) if dearer else kept)
        renewed = replace(
            same,
            before_usd=result.before_usd,
            after_usd=result.after_usd,
            moves=result.moves,
            mode=result.mode,
            reason=result.reason,
        )
        return await uow.reoptimizations.update(renewed)

    def _proposal(self, record: PlanRecord, plan: Plan, result: Reoptimization) -> PlanRecord:
        limit, old = self._rules.approval_limit_usd, record.plan
        agreed = record.approved_by is not None and old is not None and plan.cost_usd <= old.cost_usd
        return PlanRecord(
            plan_id=plan.plan_id,
            team=record.team,
            state=PlanState.PROPOSED,
            document=record.document,
            options=record.options,
            created_at=result.started_at,
            requested_by=ACTOR,
            plan=replace(plan, created_at=result.started_at, team=record.team),
            needs_approval=limit is not None and plan.cost_usd > limit and not agreed,
        )


async def _lapse(uow: UnitOfWork, standing: Iterable[Reoptimization], result: Reoptimization) -> None:
    for look in standing:
        lapsed = replace(
            look,
            state=ProposalState.LAPSED,
            decided_at=result.started_at,
            decided_by=ACTOR,
            reason=f"{look.reason}; the market moved on: {result.reason}",
        )
        await uow.reoptimizations.update(lapsed)
        await uow.accounts.add_audit(entry_of(lapsed, result.started_at))


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
