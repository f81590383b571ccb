"""What a store in memory has committed, and how its repositories write: staged, applied at the commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from broker.domain.basics.access import TeamScope
from broker.domain.basics.account import ApiKey, AuditEntry, RememberedAnswer, Session
from broker.domain.basics.errors import ConcurrentChange, Conflict, NotFound
from broker.domain.basics.machines import KeyPair, SshKey
from broker.domain.basics.page import Page
from broker.domain.holding.launches import LaunchAttempt, LaunchOutcome
from broker.domain.holding.reservation import Reservation
from broker.domain.holding.seller_network import SellerNetwork
from broker.domain.market.market import FeedHealth, OfferChange, PollRound, PricePoint
from broker.domain.market.offer import Offer
from broker.domain.market.price_gate import Quarantined
from broker.domain.moving.reoptimization import Reoptimization
from broker.ports.planning import PlanRecord
from tests.fakes.rollups import RollupTables

T = TypeVar("T")
Row = TypeVar("Row", PlanRecord, Reservation)


class HasTeam(Protocol):
    """A row of a team."""

    @property
    def team(self) -> str: ...


K = TypeVar("K")
Owned = TypeVar("Owned", bound=HasTeam)


@dataclass
class Committed:
    """What is committed."""

    offers: dict[str, Offer] = field(default_factory=dict)
    quarantine: dict[str, Quarantined] = field(default_factory=dict)
    points: list[PricePoint] = field(default_factory=list)
    changes: list[OfferChange] = field(default_factory=list)
    feeds: dict[str, FeedHealth] = field(default_factory=dict)
    rounds: dict[str, PollRound] = field(default_factory=dict)
    plans: MutableMapping[str, PlanRecord] = field(default_factory=dict)
    reservations: MutableMapping[str, Reservation] = field(default_factory=dict)
    launches: dict[tuple[str, LaunchOutcome], LaunchAttempt] = field(default_factory=dict)
    reoptimizations: list[Reoptimization] = field(default_factory=list)
    keys: MutableMapping[str, ApiKey] = field(default_factory=dict)
    own_keys: list[KeyPair] = field(default_factory=list)
    ssh_keys: dict[str, SshKey] = field(default_factory=dict)
    networks: dict[tuple[str, str], SellerNetwork] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    answers: MutableMapping[tuple[str, str, str], RememberedAnswer] = field(default_factory=dict)
    audit: list[AuditEntry] = field(default_factory=list)
    left: set[tuple[str, str, str]] = field(default_factory=set)
    effects: dict[tuple[str, str, str], tuple[str, ...]] = field(default_factory=dict)
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    rollups: RollupTables = field(default_factory=RollupTables)

    def seen_by(self, scope: TeamScope) -> Committed:
        """The same tables, in which there are the rows of ``scope`` only."""
        return replace(
            self,
            plans=OfTeams(self.plans, scope),
            reservations=OfTeams(self.reservations, scope),
            keys=OfTeams(self.keys, scope),
            answers=OfTeams(self.answers, scope),
        )

    def put_offers(self, *offers: Offer) -> None:
        """Puts offers on sale, past any poll."""
        self.offers.update({offer.offer_id: offer for offer in offers})


class OfTeams(MutableMapping[K, Owned]):
    """The rows of ``scope`` among ``rows``; NotFound where one of another team is stored."""

    def __init__(self, rows: MutableMapping[K, Owned], scope: TeamScope) -> None:
        self._rows = rows
        self._scope = scope

    def __getitem__(self, key: K) -> Owned:
        row = self._rows[key]
        if not self._scope.covers(row.team):
            raise KeyError(key)
        return row

    def __setitem__(self, key: K, row: Owned) -> None:
        self._scope.require(row.team)
        self._rows[key] = row

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        del self._rows[key]

    def __iter__(self) -> Iterator[K]:
        return iter([key for key, row in self._rows.items() if self._scope.covers(row.team)])

    def __len__(self) -> int:
        return sum(self._scope.covers(row.team) for row in self._rows.values())


class Repository:
    """``tables`` as a unit of work of ``scope`` sees them; ``_every_team``: what is everybody's."""

    def __init__(self, tables: Committed, staged: list[Callable[[], None]], scope: TeamScope) -> None:
        self._every_team = tables
        self._tables = tables.seen_by(scope)
        self._staged = staged
        self._scope = scope


def page_of(items: Sequence[T], limit: int, cursor: str | None) -> Page[T]:
    start = int(cursor or 0)
    rest = len(items) > start + limit
    return Page(tuple(items[start : start + limit]), str(start + limit) if rest else None)


class Rows(Repository):
    """Versioned rows with read-your-writes inside one transaction."""

    def _require_version(self, rows: MutableMapping[str, Row], key: str, row: Row) -> None:
        if key not in rows:
            raise NotFound("row", key)
        if rows[key].version != row.version:
            raise ConcurrentChange(f"{key} is at version {rows[key].version}, not {row.version}")

    def _stage_update(self, rows: MutableMapping[str, Row], key: str, row: Row, written: Row) -> None:
        self._scope.require(row.team)
        self._require_version(rows, key, row)

        def apply() -> None:
            self._require_version(rows, key, row)
            rows[key] = written

        self._staged.append(apply)

    def _stage_add(self, rows: MutableMapping[str, Row], key: str, row: Row) -> None:
        self._scope.require(row.team)

        def apply() -> None:
            if key in rows:
                raise Conflict(f"{key} exists")
            rows[key] = row

        self._staged.append(apply)
