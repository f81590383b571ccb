"""Whose call of the planner is next: weighted round robin over classes, round robin over teams. Pure.

Classes share turns by weight (smooth weighted round robin: each class that could go gains its weight, the
richest goes and pays what all gained). Within a class the team goes that was served longest ago, and within
a team and class the call that came first. So every class and team has its turn within a bounded number.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MOST_INTERACTIVE_WORKLOADS = 50
"""A document of more workloads is large: somebody who waits at a screen does not wait behind it."""


class TurnClass(StrEnum):
    """What a call is to who waits for it."""

    INTERACTIVE = "interactive"
    NEXT_BEST = "next_best"
    LOOK = "look"
    LARGE = "large"


WEIGHTS: Mapping[TurnClass, int] = {
    TurnClass.INTERACTIVE: 4,
    TurnClass.NEXT_BEST: 4,
    TurnClass.LOOK: 2,
    TurnClass.LARGE: 1,
}
"""Turns of each class among eleven, while all of them wait."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One call: whose it is and of which class. ``plan_id``: what it makes, where that can be asked for.
    ``sequence`` grows with every call that comes; 0: the line gives it one."""

    team: str
    kind: TurnClass
    plan_id: str = ""
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """What was served until now: ``credit`` of each class, and by class and team the number of its last turn
    among all ``turns``."""

    turns: int = 0
    credit: Mapping[TurnClass, int] = field(default_factory=dict)
    last: Mapping[tuple[TurnClass, str], int] = field(default_factory=dict)


def class_by_size(kind: TurnClass, workloads: int) -> TurnClass:
    """``kind``, or large where a call is of so many workloads."""
    return TurnClass.LARGE if workloads > MOST_INTERACTIVE_WORKLOADS else kind


def next_turn(
    waiting: Iterable[Turn], running: Collection[Turn], slots: int, served: Served
) -> tuple[Turn, Served] | None:
    """Which of ``waiting`` starts now, and what is served then; None where none can.

    Of two or more ``slots`` one never runs large calls. A team has at most ``slots`` - 1 (at least one) while
    a call of another team could take the slot.
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
    """What may take the free slot; nothing without one."""
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
    """``waiting`` as they would start if nothing else came and what runs ended in the order of its start."""
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
