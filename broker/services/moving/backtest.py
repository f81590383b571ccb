"""Backtest: replays a recorded market, and makes, keeps and changes plans over it.

The planner, the move cost-benefit and the bill are those of the running broker, but every launch succeeds
after its usual time. Orders keep their price, and spot prices float (``replay_ledger``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from broker.domain.basics.errors import BrokerError
from broker.domain.basics.money import ZERO
from broker.domain.holding.holding_orders import Intent, intents_of
from broker.domain.market.market import OfferChange
from broker.domain.market.market_history import MarketHistory, MarketReplay
from broker.domain.market.offer import Offer
from broker.domain.moving.merging import merged
from broker.domain.moving.move_cost_benefit import MoveContext, PastMove, leaving_usd
from broker.domain.moving.moving import find_change
from broker.domain.moving.moving_costs import MovingTerms, usable_at
from broker.domain.moving.remaining import remaining
from broker.domain.moving.reoptimization import Move
from broker.domain.moving.reoptimization_result import rules_by_workload
from broker.domain.moving.reoptimizing import MOST_PLANS, Decision, decide_beside, is_touched
from broker.domain.moving.replay_ledger import Ledger
from broker.domain.moving.spot_fallback import behind_on_spot
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.domain.reconciling.held_offers import with_held
from broker.domain.workloads.reoptimize_policy import MoveRules, ReoptimizeMode
from broker.ports.planning import InForce, PlanCall, PlanOptions, ReplanCall

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
PATIENCE = timedelta(hours=1)
FROZEN = timedelta(minutes=30)
TAKEN_AWAY = "its provider took it away"
SOLD_OUT = "it is not on sale when it is to be bought"


class LookPolicy(StrEnum):
    """When a plan in force is re-optimized. ``never``: only if some capacity is no longer available."""

    NEVER = "never"
    ON_CHANGE = "on-change"
    HOURLY = "hourly"
    DAILY = "daily"


@dataclass(frozen=True, slots=True)
class BacktestRules:
    """Rules as in ``ReoptimizeRules``. ``options`` of all plans; ``replan_s``: limit of a re-optimization."""

    options: PlanOptions = field(default_factory=lambda: PlanOptions(time_limit_s=10, baselines=False))
    replan_s: float = 2.0
    moves: MoveRules = field(default_factory=lambda: MoveRules(mode=ReoptimizeMode.AUTO))
    terms: MovingTerms = field(default_factory=MovingTerms)


@dataclass
class Outcome:
    """Costs of a policy over one horizon, in USD.

    ``spend_usd`` is everything paid except ``egress_usd``; it includes ``overlap_usd`` and ``rework_usd``,
    the costs of moves. ``penalty_usd`` is for lateness and unplaced workloads. ``forced``: number of moves of
    capacity that could not stay. ``failed``: number of re-optimizations without a plan.
    """

    policy: LookPolicy
    spend_usd: Decimal = ZERO
    egress_usd: Decimal = ZERO
    penalty_usd: Decimal = ZERO
    overlap_usd: Decimal = ZERO
    rework_usd: Decimal = ZERO
    looks: int = 0
    moves: int = 0
    forced: int = 0
    failed: int = 0
    unplaced: tuple[str, ...] = ()

    @property
    def total_usd(self) -> Decimal:
        """Total cost of the policy in USD."""
        return self.spend_usd + self.egress_usd + self.penalty_usd

    @property
    def switching_usd(self) -> Decimal:
        """One-time costs of moves in USD."""
        return self.overlap_usd + self.rework_usd + self.egress_usd


def replay(
    request: PlanRequest,
    history: MarketHistory,
    policy: LookPolicy,
    calls: tuple[PlanCall, ReplanCall],
    rules: BacktestRules,
) -> Outcome:
    """The outcome of ``policy`` over the horizon of ``request``, with which ``history`` begins."""
    played = MarketReplay(history)
    broker: _Broker | None = None
    for at, changes in played.steps():
        if broker is None:
            broker = _Broker(request, played.market, at, policy, calls, rules)
            continue
        broker.buy_due(at)
        broker.see(changes, at)
    assert broker is not None
    broker.buy_due(request.horizon.end)
    return broker.close()


class _Broker:
    """One plan in force, its held capacity, and its re-optimizations. The caller changes ``market``."""

    def __init__(
        self,
        request: PlanRequest,
        market: Mapping[str, Offer],
        now: datetime,
        policy: LookPolicy,
        calls: tuple[PlanCall, ReplanCall],
        rules: BacktestRules,
    ) -> None:
        self._request, self._market, self._rules = request, market, rules
        self._replan = calls[1]
        self._policy, self._outcome = policy, Outcome(policy)
        self._moves = rules_by_workload(request, rules.moves)
        self._plan = calls[0](request, tuple(market.values()), now, rules.options)
        self._prices = {key: offer.price_usd_per_node_hour for key, offer in market.items()}
        self._past: list[PastMove] = []
        self._ledger = Ledger()
        self._ledger.take(intents_of(self._plan, market, now, PATIENCE), now)
        self._unseen: list[OfferChange] = []
        self._looked_at = now

    def buy_due(self, until: datetime) -> None:
        """Buys what is planned before ``until``, at its time; what is not on sale then is planned again."""
        while due := self._ledger.due(until):
            number, intent = due[0]
            offer = self._market.get(intent.offer.offer_id)
            if offer is not None and self._has(offer, intent):
                del self._ledger.pending[number]
                self._ledger.buy(intent, offer.in_size_of(intent.offer), intent.start)
                continue
            self._look(intent.start, frozenset({intent.workload or ""}), {intent.workload or "": SOLD_OUT})
            self._ledger.pending.pop(number, None)

    def see(self, changes: tuple[OfferChange, ...], now: datetime) -> None:
        """Applies market changes, and re-optimizes if the policy says so or capacity was taken away."""
        self._unseen.extend(changes)
        lost = self._ledger.float_to(self._market, now)
        homeless = {held.workload: TAKEN_AWAY for held in lost.values()}
        if self._is_due(now):
            self._outcome.looks += 1
            self._look(now, frozenset(workload.name for workload in self._request.workloads), homeless)
            self._unseen.clear()
            self._looked_at = now
        elif lost:
            self._look(now, frozenset(homeless), homeless)
        for number in lost:
            self._ledger.leave(number, now)

    def close(self) -> Outcome:
        """The outcome at the end of the horizon."""
        self._outcome.spend_usd = self._ledger.total_usd()
        self._outcome.penalty_usd = self._plan.penalty_usd
        self._outcome.unplaced = tuple(sorted(one.workload for one in self._plan.unplaced))
        return self._outcome

    def _is_due(self, now: datetime) -> bool:
        """Whether the policy re-optimizes now; without changes since the last time nothing would change."""
        if not self._unseen or self._policy is LookPolicy.NEVER:
            return False
        if self._policy is LookPolicy.ON_CHANGE:
            return is_touched(self._plan, self._unseen)
        return now - self._looked_at >= (HOUR if self._policy is LookPolicy.HOURLY else DAY)

    def _look(self, now: datetime, movable: frozenset[str], must_leave: Mapping[str, str]) -> None:
        """Re-optimizes at ``now``; only ``movable`` may move, and ``must_leave`` cannot stay."""
        terms, held = self._rules.terms, self._ledger.held(now, self._market)
        leave = {**behind_on_spot(self._request, self._plan, held, now, terms), **must_leave}
        left = remaining(
            self._request, self._plan, held, now, terms, frozenset(leave) - frozenset(must_leave)
        )
        names = frozenset(workload.name for workload in left.request.workloads)
        if now >= self._request.horizon.end or not names & movable:
            return
        ours = [one for one in held if one.workload not in must_leave]
        offers = {offer.offer_id: offer for offer in with_held((), ours)} | dict(self._market)
        situation = MoveContext(
            request=left.request,
            plan=self._plan,
            held=held,
            offers=offers,
            prices_then=self._prices,
            now=now,
            past=tuple(self._past),
            must_leave={name: why for name, why in leave.items() if name in names & movable},
        )
        try:
            decision, new = self._decide(situation, names - movable)
        except BrokerError:
            self._outcome.failed += 1
            return
        if decision.moves and not decision.left_out:
            self._adopt(situation, decision, new)

    def _decide(self, situation: MoveContext, frozen: frozenset[str]) -> tuple[Decision, Plan]:
        """A plan whose moves all pay: workloads whose move does not pay are frozen, and planned again."""
        for _ in range(MOST_PLANS):
            new = self._replan(
                situation.request,
                tuple(situation.offers.values()),
                situation.now,
                replace(self._rules.options, time_limit_s=self._rules.replan_s, baselines=False),
                InForce(
                    plan=situation.plan,
                    leaving_usd=leaving_usd(situation, self._rules.terms),
                    frozen=frozen,
                    frozen_before=situation.now + FROZEN,
                ),
            ).plan
            decision, more = decide_beside(situation, new, self._moves, self._rules.terms, frozen)
            if more is None:
                break
            frozen = more
        return decision, new

    def _adopt(self, situation: MoveContext, decision: Decision, new: Plan) -> None:
        """Buys the new capacity of the moves, and releases the old once the new is usable."""
        now = situation.now
        for move in decision.moves:
            part = replace(new, placements=new.placements_of(move.workload))
            wanted = intents_of(part, situation.offers, now, PATIENCE)
            change = find_change(situation.held_by(move.workload), wanted)
            until = usable_at(part.placements, situation.offers, now, self._rules.terms)
            self._ledger.take(change.wanted, now)
            for one in change.leaving:
                if one.reservation_id is not None:
                    self._ledger.leave(one.reservation_id, until)
            self._count(move, now)
        self._plan = merged(self._plan, new, decision.moved, self._request)
        self._prices = {key: offer.price_usd_per_node_hour for key, offer in situation.offers.items()}

    def _has(self, offer: Offer, intent: Intent) -> bool:
        """Whether the recorded stock, from which our nodes are not subtracted, has enough nodes."""
        taken = self._ledger.nodes_of(offer.offer_id, intent.start)
        return offer.stock.nodes is None or offer.stock.nodes >= taken + intent.nodes

    def _count(self, move: Move, now: datetime) -> None:
        self._outcome.moves += 1
        self._outcome.forced += move.stay_usd is None
        self._outcome.overlap_usd += move.cost.overlap_usd
        self._outcome.rework_usd += move.cost.rework_usd
        self._outcome.egress_usd += move.cost.egress_usd
        self._past.append(PastMove(move.workload, now))
