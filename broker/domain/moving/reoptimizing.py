"""Decides which moves of a new plan are worth making. Pure: no clock, store, network or solver.

The service and a replay of the past call it in the same way:

1. ``held`` are current and future holdings: ``cost_of_keeping.held_of`` of each reservation.
2. ``left = remaining.remaining(request, plan, held, now, terms)``. If it has no workloads, nothing is to do.
3. ``steer = move_cost_benefit.leaving_usd(situation, terms)`` is the cost of leaving for the next search.
   Plan again from the plan in force: a ``ReplanCall`` over ``left.request`` and
   ``held_offers.with_held(offers, held)``.
4. ``decision, more = decide_beside(situation, new, rules, terms, frozen)`` are the moves that pay, and the
   workloads to freeze in another plan (None: no other is needed). Another plan is needed since a workload
   that stays does not free its stock. At most ``MOST_PLANS`` plans are made.
5. ``merging.merged(plan, new, decision.moved, request)`` is the plan in force from then on.

All amounts of a move are from now to the end of the plan. *Staying* is the future cost of staying, without
sunk cost (``cost_of_keeping``). *Saving* = staying − cost at the new place. *Cost* = overlap + rework +
egress (``moving_costs``). *Net* = saving − cost. A run and the services that wait for it move together or not
at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.money import ZERO, to_cents, usd_words
from broker.domain.market.market import ChangeKind, OfferChange
from broker.domain.moving.move_cost_benefit import Counted, MoveContext, count
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.moving.remaining import is_fixed
from broker.domain.moving.reoptimization import Move
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest
from broker.domain.workloads.reoptimize_policy import MoveRules, ReoptimizeMode

MOST_PLANS = 3


@dataclass(frozen=True, slots=True)
class Decision:
    """``moves`` are worth making; ``declined`` are not, each with its reason.

    ``left_out`` are workloads of the old plan that the new plan does not place. ``before_usd`` is the cost
    from now on of all workloads that may move (None: some of them cannot stay); ``after_usd`` is their cost
    with ``moves``.
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
        """Names of the workloads that the new plan would move but that stay."""
        return frozenset(move.workload for move in self.declined)


def decide_moves(
    situation: MoveContext, new: Plan, rules: Mapping[str, MoveRules], terms: MovingTerms
) -> Decision:
    """Which workloads move to where ``new`` places them. ``rules`` are by workload, else the defaults."""
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
    """``decide_moves`` with the workloads ``frozen`` in place, and the workloads to freeze in another plan.

    The second part is None if no other plan is needed.
    """
    kept = {
        name: replace(rule, mode=ReoptimizeMode.NEVER) if name in frozen else rule
        for name, rule in rules.items()
    }
    decision = decide_moves(situation, new, kept, terms)
    final = decision.left_out or not decision.moves or decision.held_back <= frozen
    return decision, None if final else frozen | decision.held_back


def _parties(request: PlanRequest, counted: Sequence[Counted]) -> list[list[Counted]]:
    """Groups that move together: a run with the services that wait for it, or a single workload."""
    by_name = {one.workload.name: one for one in counted}
    waiting = {s.name for w in request.workloads for s in request.followers(w.name) if w.name in by_name}
    return [
        [one, *(by_name[s.name] for s in request.followers(one.workload.name))]
        for one in counted
        if one.workload.name not in waiting
    ]


def _objection(situation: MoveContext, changed: Sequence[Counted], rules: Mapping[str, MoveRules]) -> str:
    """The reason why a group stays as it is; empty if it moves."""
    for one in changed:
        name = one.workload.name
        if rules.get(name, MoveRules()).mode is ReoptimizeMode.NEVER:
            return f"the policy of {name} is never to move it"
        if is_fixed(one.workload, situation.held_by(name), situation.now):
            return f"{name} is running and must not be interrupted"
    if any(one.stay is None for one in changed):
        return ""
    net = to_cents(sum((one.move.net_usd for one in changed if one.move is not None), ZERO))
    if net <= 0:
        return f"moving would cost {usd_words(-net)} more" if net else "moving would save nothing"
    resting = _cooldown(situation, changed, rules)
    if resting:
        return resting
    needed = needed_usd(changed, rules)
    return f"saves {usd_words(net)}, but a move must save {usd_words(needed)}" if net < needed else ""


def _cooldown(situation: MoveContext, changed: Sequence[Counted], rules: Mapping[str, MoveRules]) -> str:
    """The cooldown that a workload of the group is in, as text; empty if none is in one."""
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
    """``09:12 UTC``, with the date if ``other`` is on another day."""
    day = "" if instant.date() == other.date() else f"{instant.day} {instant:%b} "
    return f"{day}{instant:%H:%M} UTC"


def needed_usd(changed: Sequence[Counted], rules: Mapping[str, MoveRules]) -> Decimal:
    """The net saving in USD that a move must reach."""
    stay = sum((one.stay or ZERO for one in changed), ZERO)
    each = [rules.get(one.workload.name, MoveRules()) for one in changed]
    return to_cents(max(max(r.min_saving_usd, stay * r.min_saving_share) for r in each))


def _left_out(situation: MoveContext, new: Plan) -> tuple[str, ...]:
    """Workloads that the current plan places and ``new`` does not."""
    stood = {p.workload for p in situation.plan.placements}
    return tuple(sorted({unplaced.workload for unplaced in new.unplaced} & stood))


def is_touched(plan: Plan, changes: Iterable[OfferChange]) -> bool:
    """Whether market changes are a reason to re-optimize ``plan``.

    Reasons are any change of an offer that it uses, and new offers and price drops of all others.
    """
    used = {placement.offer_id for placement in plan.placements}
    return any(change.offer_id in used or _is_chance(change) for change in changes)


def _is_chance(change: OfferChange) -> bool:
    if change.kind is ChangeKind.NEW:
        return True
    before, after = change.before_usd_per_node_hour, change.after_usd_per_node_hour
    return change.kind is ChangeKind.PRICE and before is not None and after is not None and after < before
