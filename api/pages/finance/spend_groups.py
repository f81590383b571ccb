"""Spend by group: its filters, and the spend of each group by certainty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from api.pages.parts.tables import Sorting
from api.pages.parts.words import seller, words
from broker.domain.basics.money import ZERO
from broker.domain.market.offer import Tier
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.spend import ChargeBasis, Commitment
from broker.services.spend.settled_spend import SumKey

NO_GROUP = "-"
PARTS = 1 + len(Commitment)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """The spend of one group in the span: owed already, committed beyond that, still flexible, until somebody
    releases leases without an end, and of drafts that somebody intends to buy."""

    name: str
    owed_usd: Decimal
    bound_usd: Decimal
    flexible_usd: Decimal
    until_released_usd: Decimal
    intended_usd: Decimal
    share: float

    @property
    def total_usd(self) -> Decimal:
        """The sum of all parts."""
        reserved = self.owed_usd + self.bound_usd + self.flexible_usd + self.until_released_usd
        return reserved + self.intended_usd


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


def group_words(group_by: str, group: str) -> str:
    """The name of a group."""
    if group == NO_GROUP:
        return "not told"
    return seller(group) if group_by == "provider" else words(group)


def group_rows(usd: Mapping[SumKey, Decimal], group_by: str, sorting: Sorting) -> tuple[GroupRow, ...]:
    """The spend of each group, sorted."""
    parts: defaultdict[str, list[Decimal]] = defaultdict(lambda: [ZERO] * PARTS)
    for key, amount in usd.items():
        parts[key.group][part_of(key)] += amount
    total = sum(usd.values(), ZERO)
    rows = [_row(group_words(group_by, name), row, total) for name, row in parts.items()]
    rows.sort(key=SORTS[sorting.by], reverse=sorting.descending)
    return tuple(rows)


def _row(name: str, parts: Sequence[Decimal], whole: Decimal) -> GroupRow:
    share = float(sum(parts, ZERO) / whole) if whole else 0.0
    owed, bound, flexible, until_released, intended = parts
    return GroupRow(name, owed, bound, flexible, until_released, intended, share)


def part_of(key: SumKey) -> int:
    """The index of a charge's part: 0 owed, 1 committed beyond that, 2 flexible, 3 until somebody releases
    it, 4 only intended."""
    return 0 if key.basis is ChargeBasis.ACTUAL else 1 + tuple(Commitment).index(key.commitment)


SORTS: Mapping[str, Callable[[GroupRow], tuple[object, ...]]] = {
    "total": lambda row: (row.total_usd, row.name),
    "name": lambda row: (row.name,),
    "owed": lambda row: (row.owed_usd, row.name),
    "bound": lambda row: (row.bound_usd, row.name),
    "flexible": lambda row: (row.flexible_usd, row.name),
    "open": lambda row: (row.until_released_usd, row.name),
    "intended": lambda row: (row.intended_usd, row.name),
}
"""Columns that groups can be sorted by."""
