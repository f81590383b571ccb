"""Looks that a guard cut off: when each is tried again, and how long it may then take. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from broker.domain.moving.reoptimization import ProposalState, Reoptimization


@dataclass(frozen=True, slots=True)
class GuardRules:
    """Seconds of the wall that one search of a look may take: ``first_s`` at first, then twice what was not
    enough, and never more than ``most_s``."""

    first_s: float = 60.0
    most_s: float = 1920.0


def guard_after(unfinished: Reoptimization | None, rules: GuardRules) -> float:
    """The guard of the next look, in seconds, where ``unfinished`` is the last one and was cut off."""
    if unfinished is None or unfinished.guard_s is None:
        return rules.first_s
    return min(rules.most_s, max(rules.first_s, 2 * unfinished.guard_s))


def retry_at(look: Reoptimization) -> datetime | None:
    """From when a look that was cut off is tried again: it pauses for as long as it was allowed to take, so
    that a machine with too much to do has half of its time for other work. None for any other look."""
    if look.state is not ProposalState.UNFINISHED or look.guard_s is None:
        return None
    return look.started_at + timedelta(seconds=look.guard_s)


def cut_off(seen: Reoptimization, what: str, guard_s: float) -> Reoptimization:
    """A look of which the guard cut off ``what``: nothing that it found so far says that all may stay."""
    return replace(
        seen,
        state=ProposalState.UNFINISHED,
        before_usd=None,
        after_usd=None,
        moves=(),
        guard_s=guard_s,
        reason=f"not finished within {guard_s:g} s on a busy machine: {what}; it is tried again",
    )
