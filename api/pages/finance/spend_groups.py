"""Spend by group: its filters, and the spend of each group by certainty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType

from api.pages.parts.colours import OTHERS, Look
from api.pages.parts.table_links import Sorting
from api.pages.parts.words import seller, words
from broker.domain.basics.money import ZERO
from broker.domain.market.offer import Tier
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.spend import ChargeBasis, Commitment
from broker.services.spend.settled_spend import SumKey

NO_GROUP = "-"
PARTS = 1 + len(Commitment)
NAMED_BY_PEOPLE = frozenset({"team", "workload", "gpu", "region"})
"""Groups whose names are shown as they are."""
NO_LOOKS: Mapping[str, Look] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GroupRow:
    """The spend of one group in the span. ``fixed_usd`` is the part of ``reserved_usd`` that was bought in
    advance; the rest of it can still be released."""

    name: str
    spent_usd: Decimal
    reserved_usd: Decimal
    fixed_usd: Decimal
    planned_usd: Decimal
    share: float
    look: Look

    @property
    def total_usd(self) -> Decimal:
        """The sum of what is spent, reserved and planned."""
        return self.spent_usd + self.reserved_usd + self.planned_usd


@dataclass(frozen=True, slots=True)
class Choice:
    """A filter of the view: its values with their names, and the chosen one."""

    name: str
    label: str
    chosen: str
    choices: tuple[tuple[str, str], ...]


def choices(wanted: Mapping[str, str], providers: Iterable[str]) -> tuple[Choice, ...]:
    """The filters of the view."""
    known: Mapping[str, Iterable[str]] = {"provider": providers, "kind": WorkloadKind, "tier": Tier}
    found = []
    for name, values in known.items():
        named = sorted(
            ((str(word), group_words(name, str(word))) for word in values), key=lambda pair: pair[1]
        )
        found.append(Choice(name, name.capitalize(), wanted[name], tuple(named)))
    return tuple(found)


COMMITMENT_WORDS: Mapping[str, str] = {
    Commitment.COMMITTED: "spent, or reserved and fixed",
    Commitment.FLEXIBLE: "reserved, can be released",
    Commitment.UNTIL_RELEASED: "reserved until released",
    Commitment.INTENDED: "planned",
}


def group_words(group_by: str, group: str) -> str:
    """The name of a group."""
    if group == NO_GROUP:
        return "not told"
    if group_by == "commitment":
        return COMMITMENT_WORDS.get(group, group)
    if group_by in NAMED_BY_PEOPLE:
        return group
    return seller(group) if group_by == "provider" else words(group)


def group_rows(
    usd: Mapping[SumKey, Decimal], group_by: str, sorting: Sorting, looks: Mapping[str, Look] = NO_LOOKS
) -> tuple[GroupRow, ...]:
    """The spend of each group, sorted. ``looks``: how each is drawn."""
    parts: defaultdict[str, list[Decimal]] = defaultdict(lambda: [ZERO] * PARTS)
    for key, amount in usd.items():
        parts[key.group][part_of(key)] += amount
    total = sum(usd.values(), ZERO)
    rows = [
        _row(group_words(group_by, name), row, total, looks.get(name, OTHERS)) for name, row in parts.items()
    ]
    rows.sort(key=SORTS[sorting.by], reverse=sorting.descending)
    return tuple(rows)


def _row(name: str, parts: Sequence[Decimal], whole: Decimal, look: Look) -> GroupRow:
    share = float(sum(parts, ZERO) / whole) if whole else 0.0
    spent, fixed, flexible, until_released, planned = parts
    return GroupRow(name, spent, fixed + flexible + until_released, fixed, planned, share, look)


def part_of(key: SumKey) -> int:
    """The index of a charge's part: 0 spent, 1 reserved and fixed, 2 reserved, 3 reserved until released,
    4 planned."""
    return 0 if key.basis is ChargeBasis.ACTUAL else 1 + tuple(Commitment).index(key.commitment)


SORTS: Mapping[str, Callable[[GroupRow], tuple[object, ...]]] = {
    "total": lambda row: (row.total_usd, row.name),
    "name": lambda row: (row.name,),
    "spent": lambda row: (row.spent_usd, row.name),
    "reserved": lambda row: (row.reserved_usd, row.name),
    "fixed": lambda row: (row.fixed_usd, row.name),
    "planned": lambda row: (row.planned_usd, row.name),
}
"""Columns that groups can be sorted by."""
