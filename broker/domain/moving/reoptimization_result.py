"""The result of a re-optimization: its proposal, the reason why there is none, or a retry. Pure.

A search that hits its time limit is unfinished, and is tried again with a longer limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.account import AuditEntry
from broker.domain.basics.money import ZERO, usd_words
from broker.domain.moving.move_cost_benefit import PastMove
from broker.domain.moving.reoptimization import Move, MoveState, ProposalState, Reoptimization
from broker.domain.moving.reoptimizing import Decision
from broker.domain.planning.workload import PlanRequest
from broker.domain.workloads.reoptimize_policy import MoveRules, ReoptimizeMode, rules_of

ACTOR = "reoptimizer"
"""The actor of re-optimizations that nobody requested."""


def entry_of(look: Reoptimization, at: datetime, actor: str = ACTOR) -> AuditEntry:
    """The audit entry for the current state of a re-optimization."""
    return AuditEntry(
        at=at,
        actor=actor,
        action=f"reoptimization.{look.state}",
        object_kind="reoptimization",
        object_id=look.reoptimization_id,
        team=look.team,
        detail=f"plan {look.plan_id}, {look.trigger}: {look.reason}",
    )


def rules_by_workload(request: PlanRequest, otherwise: MoveRules) -> dict[str, MoveRules]:
    """The rules of each workload: the stricter of its own and its team's policy."""
    team = request.policy.reoptimize
    return {w.name: rules_of((team, w.policy.reoptimize), otherwise) for w in request.workloads}


def past_moves(moved: Iterable[Reoptimization], team: str) -> tuple[PastMove, ...]:
    """Moves of a team that are done or under way."""
    done = (MoveState.MOVING, MoveState.DONE)
    return tuple(
        PastMove(move.workload, look.decided_at or look.started_at)
        for look in moved
        for move in look.moves
        if look.team == team and move.state in done
    )


def found(
    blank: Reoptimization, decision: Decision, rules: Mapping[str, MoveRules], quarantine_note: str = ""
) -> Reoptimization:
    """``blank`` with the result of ``decision``: a proposal if any move pays.

    ``quarantine_note`` is a note on a cheaper price in quarantine; it is part of the reason if nothing moves.
    """
    seen = replace(blank, before_usd=decision.before_usd, after_usd=decision.after_usd)
    if decision.left_out:
        words = f"the new plan would not place {', '.join(decision.left_out)}"
        return replace(seen, state=ProposalState.REJECTED, reason=words)
    if decision.moves:
        return _proposal(seen, decision, rules)
    if not decision.declined:
        words = quarantine_note or "every workload stays where it is"
        return replace(seen, state=ProposalState.UNCHANGED, reason=words)
    reasons = "; ".join(dict.fromkeys(f"{m.workload}: {m.reason}" for m in decision.declined))
    reasons += f"; {quarantine_note}" if quarantine_note else ""
    if all(move.net_usd <= 0 for move in decision.declined):
        return replace(seen, state=ProposalState.UNCHANGED, reason=f"nothing cheaper was found; {reasons}")
    after = _less(decision.before_usd, decision.declined)
    return replace(
        seen, state=ProposalState.REJECTED, after_usd=after, moves=decision.declined, reason=reasons
    )


def _less(before: Decimal | None, moves: tuple[Move, ...]) -> Decimal | None:
    return None if before is None else before - sum((move.saving_usd for move in moves), ZERO)


def _proposal(seen: Reoptimization, decision: Decision, rules: Mapping[str, MoveRules]) -> Reoptimization:
    each = [rules.get(move.workload, MoveRules()) for move in decision.moves]
    auto = all(rule.mode is ReoptimizeMode.AUTO for rule in each)
    proposal = replace(
        seen,
        state=ProposalState.PROPOSED,
        moves=decision.moves,
        mode=ReoptimizeMode.AUTO if auto else ReoptimizeMode.PROPOSE,
        lapses_at=seen.started_at + min(rule.lapse for rule in each),
    )
    return replace(proposal, reason=_words(proposal))


def less_saved(proposal: Reoptimization, first: Reoptimization) -> Reoptimization:
    """``proposal`` with the saving of the earlier proposal ``first`` already counted in its costs."""
    saved = first.saving_usd
    if saved is None or proposal.before_usd is None or proposal.after_usd is None:
        return proposal
    less = replace(proposal, before_usd=proposal.before_usd - saved, after_usd=proposal.after_usd - saved)
    return replace(less, reason=_words(less))


def _words(proposal: Reoptimization) -> str:
    before, saving = proposal.before_usd, proposal.saving_usd
    if before is None or saving is None:
        return "the plan can no longer be kept as it is"
    words = f"saves {usd_words(saving)} of {usd_words(before)}"
    return words + (f", moving costs {usd_words(proposal.cost_usd)}" if proposal.cost_usd else "")


def is_same(one: Reoptimization, other: Reoptimization) -> bool:
    """Whether both propose the same moves of the same plan. The saving may differ."""
    return one.plan_id == other.plan_id and _targets(one) == _targets(other)


def _targets(look: Reoptimization) -> frozenset[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return frozenset((move.workload, move.from_offers, move.to_offers) for move in look.moves)


@dataclass(frozen=True, slots=True)
class GuardRules:
    """Time limits of one search, in seconds of wall-clock time.

    The first try has ``first_s``; each later try has twice the limit that was not enough, up to ``most_s``.
    """

    first_s: float = 60.0
    most_s: float = 1920.0


def guard_after(unfinished: Reoptimization | None, rules: GuardRules) -> float:
    """The time limit of the next try in seconds, where ``unfinished`` is the last unfinished one, if any."""
    if unfinished is None or unfinished.guard_s is None:
        return rules.first_s
    return min(rules.most_s, max(rules.first_s, 2 * unfinished.guard_s))


def retry_at(look: Reoptimization) -> datetime | None:
    """When an unfinished re-optimization is tried again: after a pause as long as its time limit.

    The pause leaves half of the time of an overloaded machine for other work. None for any other state.
    """
    if look.state is not ProposalState.UNFINISHED or look.guard_s is None:
        return None
    return look.started_at + timedelta(seconds=look.guard_s)


def cut_off(seen: Reoptimization, what: str, guard_s: float) -> Reoptimization:
    """``seen`` as unfinished, because ``what`` hit the time limit. Partial results are discarded."""
    return replace(
        seen,
        state=ProposalState.UNFINISHED,
        before_usd=None,
        after_usd=None,
        moves=(),
        guard_s=guard_s,
        reason=f"not finished within {guard_s:g} s on a busy machine: {what}; it is tried again",
    )
