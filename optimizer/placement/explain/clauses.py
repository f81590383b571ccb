"""The reasons of a placement as clauses, each with a subject, a verb and a rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Part(IntEnum):
    """The subject of a clause, most important first."""

    DECIDED = 0
    RISK = 1
    LIMIT = 2
    NEAR_TIE = 3
    ASSUMED = 4
    NEXT_BEST = 5
    GATE = 6
    DETAIL = 7
    DROPPED = 8


LEADING = {
    Part.DECIDED: 1,
    Part.RISK: 1,
    Part.LIMIT: 2,
    Part.NEAR_TIE: 1,
    Part.ASSUMED: 1,
    Part.NEXT_BEST: 1,
    Part.GATE: 1,
}
"""How many clauses of each kind come before all others; a reader sees the first six or so at once."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One reason, without capital letter and full stop."""

    part: Part
    says: str


def clauses_of(part: Part, reasons: Iterable[str | None]) -> list[Clause]:
    """The reasons that there are, as clauses of one kind."""
    return [Clause(part, says) for says in reasons if says is not None]


def sentences_of(clauses: Iterable[Clause]) -> tuple[str, ...]:
    """The clauses as sentences: first one or two of each kind by importance, then the rest by kind."""
    ordered = sorted(dict.fromkeys(clauses), key=lambda clause: clause.part)
    taken = dict.fromkeys(LEADING, 0)
    first, rest = [], []
    for clause in ordered:
        if taken.get(clause.part, 0) < LEADING.get(clause.part, 0):
            taken[clause.part] += 1
            first.append(clause)
        else:
            rest.append(clause)
    return tuple(f"{clause.says[:1].upper()}{clause.says[1:]}." for clause in (*first, *rest))


def counted(number: int, noun: str) -> str:
    """``1 node``, ``1,016 nodes``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(hours: float) -> str:
    """``57 min``, ``7 h 57 min``, ``8 h``; in tenths of hours from a day on."""
    minutes = round(60 * hours)
    if minutes >= 24 * 60:
        return f"{hours:,.1f}".removesuffix(".0") + " h"
    whole, rest = divmod(minutes, 60)
    if not whole:
        return f"{rest} min"
    return f"{whole} h {rest} min" if rest else f"{whole} h"


def figure(value: float) -> str:
    """Three significant digits, whole from a hundred on: ``0.532``, ``15.6``, ``1,046``."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
