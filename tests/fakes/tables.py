"""What a store in memory has committed, and how its repositories write: staged, applied at the commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from broker.domain.basics.account import ApiKey, AuditEntry, RememberedAnswer, Session
from broker.domain.basics.errors import ConcurrentChange, Conflict, NotFound
from broker.domain.basics.page import Page
from broker.domain.holding.launches import LaunchAttempt, LaunchOutcome
from broker.domain.holding.reservation import Reservation
from broker.domain.market.market import FeedHealth, OfferChange, PollRound, PricePoint
from broker.domain.market.offer import Offer
from broker.domain.market.price_gate import Quarantined
from broker.domain.moving.reoptimization import Reoptimization
from broker.ports.planning import PlanRecord
from tests.fakes.rollups import RollupTables

T = TypeVar("T")
Row = TypeVar("Row", PlanRecord, Reservation)


@dataclass
class Committed:
    """What is committed."""

    offers: dict[str, Offer] = field(default_factory=dict)
    quarantine: dict[str, Quarantined] = field(default_factory=dict)
    points: list[PricePoint] = field(default_factory=list)
    changes: list[OfferChange] = field(default_factory=list)
    feeds: dict[str, FeedHealth] = field(default_factory=dict)
    rounds: dict[str, PollRound] = field(default_factory=dict)
    plans: dict[str, PlanRecord] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    launches: dict[tuple[str, LaunchOutcome], LaunchAttempt] = field(default_factory=dict)
    reoptimizations: list[Reoptimization] = field(default_factory=list)
    keys: dict[str, ApiKey] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    answers: dict[tuple[str, str, str], RememberedAnswer] = field(default_factory=dict)
    audit: list[AuditEntry] = field(default_factory=list)
    left: set[tuple[str, str, str]] = field(default_factory=set)
    effects: dict[tuple[str, str, str], tuple[str, ...]] = field(default_factory=dict)
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    rollups: RollupTables = field(default_factory=RollupTables)

    def put_offers(self, *offers: Offer) -> None:
        """Puts offers on sale, past any poll."""
        self.offers.update({offer.offer_id: offer for offer in offers})


class Repository:
    def __init__(self, tables: Committed, staged: list[Callable[[], None]]) -> None:
        self._tables = tables
        self._staged = staged


def page_of(items: Sequence[T], limit: int, cursor: str | None) -> Page[T]:
    start = int(cursor or 0)
    rest = len(items) > start + limit
    return Page(tuple(items[start : start + limit]), str(start + limit) if rest else None)


class Rows(Repository):
    """Versioned rows with read-your-writes inside one transaction."""

    def _require_version(self, rows: dict[str, Row], key: str, row: Row) -> None:
        if key not in rows:
            raise NotFound("row", key)
        if rows[key].version != row.version:
            raise ConcurrentChange(f"{key} is at version {rows[key].version}, not {row.version}")

    def _stage_update(self, rows: dict[str, Row], key: str, row: Row, written: Row) -> None:
        self._require_version(rows, key, row)

        def apply() -> None:
            self._require_version(rows, key, row)
            rows[key] = written

        self._staged.append(apply)

    def _stage_add(self, rows: dict[str, Row], key: str, row: Row) -> None:
        def apply() -> None:
            if key in rows:
                raise Conflict(f"{key} exists")
            rows[key] = row

        self._staged.append(apply)
