"""Why a placement is as it is, as clauses: each has a subject and a verb, and a place among the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Part(IntEnum):
    """What a clause tells, the most important first."""

    DECIDED = 0
    LIMIT = 1
    NEAR_TIE = 2
    ASSUMED = 3
    NEXT_BEST = 4
    DETAIL = 5
    DROPPED = 6


LEADING = {Part.DECIDED: 1, Part.LIMIT: 2, Part.NEAR_TIE: 1, Part.ASSUMED: 1, Part.NEXT_BEST: 1}
"""How many clauses of each part come before all others: six, which is what a reader sees first."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One reason, without a capital and a full stop."""

    part: Part
    says: str


def sentences_of(clauses: Iterable[Clause]) -> tuple[str, ...]:
    """The clauses as sentences, most important first: one or two of each part, then the others by part."""
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
