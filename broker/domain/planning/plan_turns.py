"""Fair scheduling of planner calls: weighted round robin over classes, round robin over teams. Pure.

Classes share turns by smooth weighted round robin: in each turn every eligible class gains its weight as
credit, and the class with the most credit runs and pays the sum of these weights. Within a class the team
that was served longest ago is next, and within a team the oldest call. The wait of every class and team is
therefore bounded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MOST_INTERACTIVE_WORKLOADS = 50
"""A document with more workloads is in the class LARGE, so that interactive calls do not wait behind it."""


class TurnClass(StrEnum):
    """Class of a planner call, by who waits for it."""

    INTERACTIVE = "interactive"
    FALLBACK = "next_best"
    REOPTIMIZATION = "look"
    LARGE = "large"


WEIGHTS: Mapping[TurnClass, int] = {
    TurnClass.INTERACTIVE: 4,
    TurnClass.FALLBACK: 4,
    TurnClass.REOPTIMIZATION: 2,
    TurnClass.LARGE: 1,
}
"""Turns of each class out of eleven while calls of all classes wait."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One planner call of a team. ``plan_id`` is the plan that it makes, if it has an id.

    ``sequence`` increases with every call; 0 means that the queue assigns it.
    """

    team: str
    kind: TurnClass
    plan_id: str = ""
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """State of the round robin.

    ``turns`` counts all turns so far, ``credit`` is by class, and ``last`` is the number of the last turn by
    class and team.
    """

    turns: int = 0
    credit: Mapping[TurnClass, int] = field(default_factory=dict)
    last: Mapping[tuple[TurnClass, str], int] = field(default_factory=dict)


def class_by_size(kind: TurnClass, workloads: int) -> TurnClass:
    """``kind``, or LARGE for a call with more than MOST_INTERACTIVE_WORKLOADS workloads."""
    return TurnClass.LARGE if workloads > MOST_INTERACTIVE_WORKLOADS else kind


def next_turn(
    waiting: Iterable[Turn], running: Collection[Turn], slots: int, served: Served
) -> tuple[Turn, Served] | None:
    """The call of ``waiting`` that starts now, and the state after it; None if none can start.

    With two or more ``slots``, one slot never runs LARGE calls. While a call of another team could take the
    slot, a team may run at most ``slots`` - 1 calls (but at least one).
    """
    able = _able(waiting, running, slots)
    if not able:
        return None
    kinds = [kind for kind in TurnClass if any(turn.kind is kind for turn in able)]
    credit = dict(served.credit)
    for kind in kinds:
        credit[kind] = credit.get(kind, 0) + WEIGHTS[kind]
    richest = max(kinds, key=lambda kind: credit[kind])
    credit[richest] -= sum(WEIGHTS[kind] for kind in kinds)
    of_class = (turn for turn in able if turn.kind is richest)
    chosen = min(of_class, key=lambda turn: (served.last.get((richest, turn.team), 0), turn.sequence))
    turns = served.turns + 1
    return chosen, Served(turns, credit, {**served.last, (richest, chosen.team): turns})


def _able(waiting: Iterable[Turn], running: Collection[Turn], slots: int) -> list[Turn]:
    """The calls that may take the free slot; empty without a free slot."""
    if len(running) >= slots:
        return []
    others = max(1, slots - 1)
    larges = sum(turn.kind is TurnClass.LARGE for turn in running)
    able = [turn for turn in waiting if turn.kind is not TurnClass.LARGE or larges < others]
    at_work = Counter(turn.team for turn in running)
    return [turn for turn in able if at_work[turn.team] < others] or able


def starting_order(
    waiting: Iterable[Turn], running: Iterable[Turn], slots: int, served: Served
) -> tuple[Turn, ...]:
    """``waiting`` in the order in which they would start, if no more calls came and running ones ended in
    the order of their start.
    """
    lines: dict[tuple[TurnClass, str], deque[Turn]] = {}
    for turn in sorted(waiting, key=lambda turn: turn.sequence):
        lines.setdefault((turn.kind, turn.team), deque()).append(turn)
    started: list[Turn] = []
    at_work = deque(running)
    while lines:
        found = next_turn([line[0] for line in lines.values()], at_work, slots, served)
        if found is None:
            at_work.popleft()
            continue
        turn, served = found
        line = lines[turn.kind, turn.team]
        line.popleft()
        if not line:
            del lines[turn.kind, turn.team]
        started.append(turn)
        at_work.append(turn)
    return tuple(started)
