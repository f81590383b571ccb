"""Which moves a new plan is worth: the pure core of looking again. No clock, store, network or solver.

How to call it, from the service and from a replay of the past alike:

1. ``held``: what is held or waits for its time (``staying.held_of`` of each reservation; without reservations
   ``remaining.held_as_planned(plan, offers_as_ordered, now)``).
2. ``left = remaining.remaining(request, plan, held, now, terms)``; nothing to do when it has no workloads.
3. ``steer = weighing.leaving_usd(situation, terms)``, and plan again from the plan in force with it: a
   ``ReplanCall`` over ``left.request`` and ``own_stock.with_own(offers, held)``.
4. ``decision, more = decide_beside(situation, new, rules, terms, frozen)``: the moves that pay, and what to
   freeze in another plan (None: no other is needed), as what stays frees nothing; at most ``MOST_PLANS``.
5. ``merging.merged(plan, new, decision.moved, request)`` is the plan in force from then on.

Money of a move, all from now on to the end of the plan: *staying* is what only staying costs (sunk money is
on neither side, ``staying``); *saving* = staying − the new place; *cost* = overlap + rework + egress
(``moving_costs``); *net* = saving − cost. A workload and what waits for it move together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import ZERO, to_cents, usd_words
from broker.domain.market.market import ChangeKind, OfferChange
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.moving.remaining import is_fixed
from broker.domain.moving.reoptimization import Move
from broker.domain.moving.weighing import Counted, MoveContext, count
from broker.domain.planning.plan import Plan
from broker.domain.planning.reoptimize_policy import MoveRules, ReoptimizeMode
from broker.domain.planning.workload import PlanRequest

MOST_PLANS = 3


@dataclass(frozen=True, slots=True)
class Decision:
    """``moves`` pay; ``declined`` do not, each with its reason. ``left_out``: what the new plan lost.

    ``before_usd``: what everything that may change costs from now on (None: it cannot stay);
    ``after_usd``: the same with ``moves``.
    """

    moves: tuple[Move, ...]
    declined: tuple[Move, ...]
    left_out: tuple[str, ...]
    before_usd: Decimal | None
    after_usd: Decimal

    @property
    def moved(self) -> frozenset[str]:
        """Names of the workloads that move."""
        return frozenset(move.workload for move in self.moves)

    @property
    def held_back(self) -> frozenset[str]:
        """Names of those that the new plan places elsewhere and that stay."""
        return frozenset(move.workload for move in self.declined)


def decide_moves(
    situation: MoveContext, new: Plan, rules: Mapping[str, MoveRules], terms: MovingTerms
) -> Decision:
    """Which workloads go where ``new`` places them. ``rules`` by workload; without any the defaults stand."""
    counted = [count(situation, new, workload, terms) for workload in situation.request.workloads]
    moves: list[Move] = []
    declined: list[Move] = []
    for party in _parties(situation.request, counted):
        changed = [one for one in party if one.move is not None]
        reason = _objection(situation, changed, rules) if changed else ""
        found = [replace(one.move, reason=reason) for one in changed if one.move is not None]
        (declined if reason else moves).extend(found)
    going = {move.workload for move in moves}
    before = [one.stay for one in counted]
    return Decision(
        moves=tuple(moves),
        declined=tuple(declined),
        left_out=_left_out(situation, new),
        before_usd=None if None in before else sum((usd for usd in before if usd is not None), ZERO),
        after_usd=sum((one.to if one.workload.name in going else one.stay or ZERO for one in counted), ZERO),
    )


def decide_beside(
    situation: MoveContext,
    new: Plan,
    rules: Mapping[str, MoveRules],
    terms: MovingTerms,
    frozen: frozenset[str],
) -> tuple[Decision, frozenset[str] | None]:
    """``decide_moves`` where ``frozen`` stays; and what another plan should freeze (None: none)."""
    kept = {
        name: replace(rule, mode=ReoptimizeMode.NEVER) if name in frozen else rule
        for name, rule in rules.items()
    }
    decision = decide_moves(situation, new, kept, terms)
    final = decision.left_out or not decision.moves or decision.held_back <= frozen
    return decision, None if final else frozen | decision.held_back


def _parties(request: PlanRequest, counted: Sequence[Counted]) -> list[list[Counted]]:
    """What moves together: a run with the services that wait for it, or one workload."""
    by_name = {one.workload.name: one for one in counted}
    waiting = {s.name for w in request.workloads for s in request.followers(w.name) if w.name in by_name}
    return [
        [one, *(by_name[s.name] for s in request.followers(one.workload.name))]
        for one in counted
        if one.workload.name not in waiting
    ]


def _objection(situation: MoveContext, changed: Sequence[Counted], rules: Mapping[str, MoveRules]) -> str:
    """Why a party that would change stays as it is; empty: nothing speaks against it."""
    for one in changed:
        name = one.workload.name
        if rules.get(name, MoveRules()).mode is ReoptimizeMode.NEVER:
            return f"the policy of {name} is never to move it"
        if is_fixed(one.workload, situation.held_by(name), situation.now):
            return f"{name} is at work and may not be interrupted"
    if any(one.stay is None for one in changed):
        return ""
    net = to_cents(sum((one.move.net_usd for one in changed if one.move is not None), ZERO))
    if net <= 0:
        return f"moving would cost {usd_words(-net)} more" if net else "moving would save nothing"
    resting = _cooldown(situation, changed, rules)
    if resting:
        return resting
    needed = needed_usd(changed, rules)
    return f"saves {usd_words(net)}, a move needs {usd_words(needed)}" if net < needed else ""


def _cooldown(situation: MoveContext, changed: Sequence[Counted], rules: Mapping[str, MoveRules]) -> str:
    """The pause after a move, for whoever of a party is in one; empty where nobody is."""
    for one in changed:
        name = one.workload.name
        last = max((past.at for past in situation.past if past.workload == name), default=None)
        if last is None:
            continue
        over = last + rules.get(name, MoveRules()).cooldown
        if situation.now < over:
            return f"it moved at {_at(last, over)}; the cooldown ends at {_at(over, last)}"
    return ""


def _at(instant: datetime, other: datetime) -> str:
    """``09:12 UTC``, with its day where ``other`` is of another day."""
    day = "" if instant.date() == other.date() else f"{instant.day} {instant:%b} "
    return f"{day}{instant:%H:%M} UTC"


def needed_usd(changed: Sequence[Counted], rules: Mapping[str, MoveRules]) -> Decimal:
    """What a move must save, all paid."""
    stay = sum((one.stay or ZERO for one in changed), ZERO)
    each = [rules.get(one.workload.name, MoveRules()) for one in changed]
    return to_cents(max(max(r.min_saving_usd, stay * r.min_saving_share) for r in each))


def _left_out(situation: MoveContext, new: Plan) -> tuple[str, ...]:
    """What stands now and ``new`` does not place."""
    stood = {p.workload for p in situation.plan.placements}
    return tuple(sorted({unplaced.workload for unplaced in new.unplaced} & stood))


def is_touched(plan: Plan, changes: Iterable[OfferChange]) -> bool:
    """Whether changes of the market call for a new look at ``plan``.

    Any change of an offer that it uses; elsewhere what may be better now: new offers and price drops.
    """
    used = {placement.offer_id for placement in plan.placements}
    return any(change.offer_id in used or _is_chance(change) for change in changes)


def _is_chance(change: OfferChange) -> bool:
    if change.kind is ChangeKind.NEW:
        return True
    before, after = change.before_usd_per_node_hour, change.after_usd_per_node_hour
    return change.kind is ChangeKind.PRICE and before is not None and after is not None and after < before
