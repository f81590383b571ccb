"""Re-optimizations that hit their time limit: when to try again, and with which limit. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from broker.domain.moving.reoptimization import ProposalState, Reoptimization


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
