"""Spend by group: narrowed by words, and each group's money in three parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from api.pages.tables import Sorting
from api.pages.words import seller, words
from broker.domain.money import ZERO
from broker.domain.spend import Charge, ChargeBasis, group_of

NO_GROUP = "-"


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group's money in the span: owed already, reserved beyond that, planned beyond that."""

    name: str
    owed_usd: Decimal
    reserved_usd: Decimal
    planned_usd: Decimal
    share: float

    @property
    def total_usd(self) -> Decimal:
        """All of it."""
        return self.owed_usd + self.reserved_usd + self.planned_usd


@dataclass(frozen=True, slots=True)
class Choice:
    """What the view can be narrowed by: its values with their names, and the one that is chosen."""

    name: str
    label: str
    chosen: str
    choices: tuple[tuple[str, str], ...]


def narrowed(charges: Iterable[Charge], wanted: Mapping[str, str]) -> list[Charge]:
    """Charges with every wished word; an empty wish takes all."""
    asked = {name: word for name, word in wanted.items() if word}
    return [c for c in charges if all(group_of(c, name) == word for name, word in asked.items())]


def choices(charges: Sequence[Charge], wanted: Mapping[str, str]) -> tuple[Choice, ...]:
    """What the charges can be narrowed by."""
    found = []
    for name, chosen in wanted.items():
        known = {group_of(charge, name) for charge in charges} | {chosen} - {""}
        named = ((word, group_words(name, word)) for word in known)
        found.append(Choice(name, name.capitalize(), chosen, tuple(sorted(named, key=lambda pair: pair[1]))))
    return tuple(found)


def group_words(group_by: str, group: str) -> str:
    """How a group is called."""
    if group == NO_GROUP:
        return "not told"
    return seller(group) if group_by == "provider" else words(group)


def group_rows(charges: Iterable[Charge], group_by: str, sorting: Sorting) -> tuple[GroupRow, ...]:
    """Each group's money, sorted."""
    parts: defaultdict[str, list[Decimal]] = defaultdict(lambda: [ZERO, ZERO, ZERO])
    for charge in charges:
        parts[group_of(charge, group_by)][_part(charge)] += charge.usd
    total = sum((usd for row in parts.values() for usd in row), ZERO)
    rows = [_row(group_words(group_by, name), row, total) for name, row in parts.items()]
    rows.sort(key=SORTS[sorting.by], reverse=sorting.descending)
    return tuple(rows)


def _row(name: str, parts: Sequence[Decimal], whole: Decimal) -> GroupRow:
    owed, reserved, planned = parts
    share = float(sum(parts, ZERO) / whole) if whole else 0.0
    return GroupRow(name, owed, reserved, planned, share)


def _part(charge: Charge) -> int:
    """0 owed, 1 reserved, 2 planned."""
    if charge.basis is ChargeBasis.ACTUAL:
        return 0
    return 1 if charge.reservation_id is not None else 2


SORTS: Mapping[str, Callable[[GroupRow], tuple[object, ...]]] = {
    "total": lambda row: (row.total_usd, row.name),
    "name": lambda row: (row.name,),
    "owed": lambda row: (row.owed_usd, row.name),
    "reserved": lambda row: (row.reserved_usd, row.name),
    "planned": lambda row: (row.planned_usd, row.name),
}
"""Columns that groups can be sorted by."""
