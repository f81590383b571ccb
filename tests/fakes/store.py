"""A store in memory that keeps the promises of ``broker.ports``.

Writes are staged and applied at ``commit``; versions are compared when a write is asked for and
again when it is applied, as a database would. ``open_units`` lets a fake provider see whether it is
called inside a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Self, TypeVar

from broker.domain.account import ApiKey, AuditEntry, RememberedAnswer, RequestClaim
from broker.domain.approvals import ApprovalState
from broker.domain.errors import ConcurrentChange, Conflict, NotFound
from broker.domain.launches import LaunchAttempt, LaunchOutcome
from broker.domain.market import FeedHealth, OfferChange, OfferLabel, PollRound, PricePoint
from broker.domain.offer import Offer
from broker.domain.price_gate import PeerPrice, Quarantined
from broker.domain.reoptimization import ProposalState, Reoptimization
from broker.domain.reservation import Reservation
from broker.domain.round_news import OfferMark, RoundNews, fingerprint
from broker.domain.window import Window
from broker.finance_ports import RollupRepository
from broker.ports import (
    AccountRepository,
    LaunchRepository,
    OfferRepository,
    Page,
    PlanRecord,
    PlanRepository,
    PlanState,
    QuarantineRepository,
    ReoptimizationRepository,
    ReservationRepository,
)
from tests.fakes.rollups import Rollups, RollupTables

T = TypeVar("T")
Row = TypeVar("Row", PlanRecord, Reservation)

open_units: ContextVar[int] = ContextVar("open_units", default=0)


@dataclass
class Tables:
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
    answers: dict[tuple[str, str, str], RememberedAnswer] = field(default_factory=dict)
    audit: list[AuditEntry] = field(default_factory=list)
    left: set[tuple[str, str, str]] = field(default_factory=set)
    effects: dict[tuple[str, str, str], tuple[str, ...]] = field(default_factory=dict)
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    rollups: RollupTables = field(default_factory=RollupTables)

    def unit_of_work(self) -> InMemoryUnitOfWork:
        """One transaction on these tables."""
        return InMemoryUnitOfWork(self)

    def put_offers(self, *offers: Offer) -> None:
        """Puts offers on sale, past any poll."""
        self.offers.update({offer.offer_id: offer for offer in offers})


class _Repository:
    def __init__(self, tables: Tables, staged: list[Callable[[], None]]) -> None:
        self._tables = tables
        self._staged = staged


def _page(items: Sequence[T], limit: int, cursor: str | None) -> Page[T]:
    start = int(cursor or 0)
    rest = len(items) > start + limit
    return Page(tuple(items[start : start + limit]), str(start + limit) if rest else None)


class _Rows(_Repository):
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


class Offers(_Repository):
    """Fulfils ``OfferRepository``."""

    async def find_labels(self) -> tuple[OfferLabel, ...]:
        return tuple(
            OfferLabel(
                o.offer_id,
                o.provider,
                o.sku.gpu,
                o.region,
                o.tier,
                o.price_usd_per_node_hour / o.sku.gpus_per_node,
                o.price_usd_per_node_hour,
                o.stock.nodes,
            )
            for o in await self.find_current()
        )

    async def open_round(self, provider: str) -> Mapping[str, OfferMark]:
        feed = self._tables.feeds.get(provider)
        at = None if feed is None else feed.last_success_at
        return {
            key: OfferMark(fingerprint(o, at or o.observed_at), o.at_list_price().price_usd_per_node_hour)
            for key, o in self._tables.offers.items()
            if o.provider == provider
        }

    async def record_round(self, round_: PollRound, news: RoundNews | None) -> None:
        def apply() -> None:
            tables, provider = self._tables, round_.provider
            tables.rounds[provider] = round_
            tables.changes.extend(round_.changes)
            old = tables.feeds.get(provider, FeedHealth(provider, None, None, None, None, 0, 0, None))
            failures = 0 if round_.error is None else old.failures + 1
            old = replace(old, failures=failures, not_before=None)
            if news is None:
                since = old.stale_since or round_.started_at
                tables.feeds[provider] = replace(
                    old, last_error_at=round_.started_at, last_error=round_.error, stale_since=since
                )
                return
            tables.feeds[provider] = replace(
                old, last_success_at=round_.started_at, stale_since=None, offers=round_.offers
            )
            for key in news.gone:
                del tables.offers[key]
            for key, offer in tables.offers.items():
                if offer.provider == provider and offer.observed_at == old.last_success_at:
                    tables.offers[key] = replace(offer, observed_at=round_.started_at)
            tables.put_offers(*news.offers)
            for offer in news.offers:
                price = offer.price_usd_per_node_hour
                tables.points.append(
                    PricePoint(offer.offer_id, round_.started_at, price, offer.stock.nodes, available=True)
                )

        self._staged.append(apply)

    async def hold_back(self, provider: str, until: datetime) -> None:
        def apply() -> None:
            feed = self._tables.feeds[provider]
            self._tables.feeds[provider] = replace(feed, not_before=until)

        self._staged.append(apply)

    async def find_many(self, offer_ids: Collection[str]) -> tuple[Offer, ...]:
        return tuple(self._tables.offers[key] for key in offer_ids if key in self._tables.offers)

    async def find_current(
        self,
        *,
        provider: str | None = None,
        gpu: str | None = None,
        region: str | None = None,
        tier: str | None = None,
        without: Collection[str] = (),
    ) -> tuple[Offer, ...]:
        found = [
            offer
            for offer in self._tables.offers.values()
            if provider in (None, offer.provider)
            and offer.provider not in without
            and gpu in (None, offer.sku.gpu)
            and region in (None, offer.region)
            and tier in (None, offer.tier)
        ]
        return tuple(sorted(found, key=lambda o: o.price_usd_per_node_hour / o.sku.gpus_per_node))

    async def find_offer(self, offer_id: str) -> Offer:
        if offer_id not in self._tables.offers:
            raise NotFound("offer", offer_id)
        return self._tables.offers[offer_id]

    async def find_peer_prices(self) -> tuple[PeerPrice, ...]:
        return tuple(
            PeerPrice(o.provider, o.sku.gpu, o.tier, o.price_usd_per_node_hour / o.sku.gpus_per_node)
            for o in self._tables.offers.values()
        )

    async def find_prices(self, offer_id: str, window: Window) -> tuple[PricePoint, ...]:
        mine = [p for p in self._tables.points if p.offer_id == offer_id and p.at < window.end]
        leading = [p for p in mine if p.at <= window.start][-1:]
        return (*leading, *(p for p in mine if p.at > window.start))

    async def find_changes(self, since: datetime, limit: int) -> tuple[OfferChange, ...]:
        return tuple(change for change in self._tables.changes if change.at > since)[:limit]

    async def find_feeds(self) -> tuple[FeedHealth, ...]:
        return tuple(self._tables.feeds.values())

    async def find_rejected(self, provider: str) -> PollRound | None:
        return self._tables.rounds.get(provider)

    async def find_as_of(self) -> datetime | None:
        return max((offer.observed_at for offer in self._tables.offers.values()), default=None)


class Quarantine(_Repository):
    """Fulfils ``QuarantineRepository``."""

    async def find(self, provider: str | None) -> tuple[Quarantined, ...]:
        mine = [e for e in self._tables.quarantine.values() if provider in (None, e.offer.provider)]
        return tuple(sorted(mine, key=lambda e: (e.since, e.offer.offer_id)))

    async def find_one(self, offer_id: str) -> Quarantined:
        if offer_id not in self._tables.quarantine:
            raise NotFound("quarantined offer", offer_id)
        return self._tables.quarantine[offer_id]

    async def put(self, entry: Quarantined) -> None:
        self._staged.append(lambda: self._tables.quarantine.update({entry.offer.offer_id: entry}))

    async def change(self, entries: Sequence[Quarantined], gone: Collection[str]) -> None:
        def apply() -> None:
            for key in gone:
                del self._tables.quarantine[key]
            self._tables.quarantine.update({entry.offer.offer_id: entry for entry in entries})

        self._staged.append(apply)


class Plans(_Rows):
    """Fulfils ``PlanRepository``."""

    async def add(self, record: PlanRecord) -> None:
        self._stage_add(self._tables.plans, record.plan_id, record)

    async def update(self, record: PlanRecord) -> PlanRecord:
        written = replace(record, version=record.version + 1)
        self._stage_update(self._tables.plans, record.plan_id, record, written)
        return written

    async def find(self, plan_id: str) -> PlanRecord:
        if plan_id not in self._tables.plans:
            raise NotFound("plan", plan_id)
        return self._tables.plans[plan_id]

    def _newest(self, team: str | None) -> list[PlanRecord]:
        mine = [r for r in self._tables.plans.values() if team in (None, r.team)]
        return sorted(mine, key=lambda r: (r.created_at, r.plan_id), reverse=True)

    async def find_page(self, team: str | None, limit: int, cursor: str | None) -> Page[PlanRecord]:
        return _page(self._newest(team), limit, cursor)

    async def find_current(self, team: str | None = None) -> tuple[PlanRecord, ...]:
        done = [r for r in self._newest(team) if r.state is PlanState.DONE]
        superseded = {r.supersedes for r in done}
        newest: dict[tuple[str, str], PlanRecord] = {}
        for record in done:
            newest.setdefault((record.team, record.document), record)
        return tuple(r for r in newest.values() if r.plan_id not in superseded)

    async def find_by_approval(
        self, team: str | None, states: Collection[ApprovalState], limit: int, cursor: str | None
    ) -> Page[PlanRecord]:
        return _page([r for r in self._newest(team) if r.approval in states], limit, cursor)

    async def find_lineage(self, plan_id: str) -> tuple[str, ...]:
        found: list[str] = []
        wanted: str | None = plan_id
        while wanted is not None and wanted not in found:
            found.append(wanted)
            wanted = (await self.find(wanted)).supersedes
        return tuple(found)

    async def claim_unfinished(self) -> tuple[PlanRecord, ...]:
        unfinished = (PlanState.QUEUED, PlanState.RUNNING)
        return tuple(record for record in reversed(self._newest(None)) if record.state in unfinished)


class Reservations(_Rows):
    """Fulfils ``ReservationRepository``. ``is_taking``: this unit of work has its turn at the stock."""

    is_taking = False

    async def add(self, reservation: Reservation) -> None:
        self._stage_add(self._tables.reservations, reservation.reservation_id, reservation)

    async def update(self, reservation: Reservation) -> Reservation:
        written = replace(reservation, version=reservation.version + 1)
        self._stage_update(self._tables.reservations, reservation.reservation_id, reservation, written)
        return written

    async def find(self, reservation_id: str) -> Reservation:
        if reservation_id not in self._tables.reservations:
            raise NotFound("reservation", reservation_id)
        return self._tables.reservations[reservation_id]

    async def find_page(
        self, team: str | None, limit: int, cursor: str | None, plan_id: str | None = None
    ) -> Page[Reservation]:
        mine = [
            row
            for row in self._tables.reservations.values()
            if team in (None, row.team) and plan_id in (None, row.plan_id)
        ]
        ordered = sorted(mine, key=lambda r: (r.created_at, r.reservation_id), reverse=True)
        return _page(ordered, limit, cursor)

    async def find_open(self) -> tuple[Reservation, ...]:
        return tuple(row for row in self._tables.reservations.values() if row.is_open)

    async def find_of_bills(self, bill_ids: Collection[str]) -> tuple[Reservation, ...]:
        rows = self._tables.reservations.values()
        return tuple(row for row in rows if (row.plan_id or row.reservation_id) in bill_ids)

    async def find_competing(self, offers: Iterable[Offer]) -> tuple[Reservation, ...]:
        """One taker at a time, until its unit of work ends."""
        if not self.is_taking:
            await self._tables.taking.acquire()
            self.is_taking = True
        return await self.find_open()

    async def claim(self, reservation_id: str) -> bool:
        return True

    async def note_seen(self, units: Sequence[tuple[str, int]], at: datetime) -> None:
        def apply() -> None:
            rows = self._tables.reservations
            for key, ordinal in units:
                rows[key] = rows[key].with_unit(replace(rows[key].units[ordinal], seen_at=at))

        self._staged.append(apply)

    async def find_overlapping(self, window: Window | None) -> tuple[Reservation, ...]:
        return tuple(row for row in self._tables.reservations.values() if row.provider_references)


class Launches(_Repository):
    """Fulfils ``LaunchRepository``."""

    async def add(self, attempts: Iterable[LaunchAttempt]) -> None:
        def apply(found: tuple[LaunchAttempt, ...] = tuple(attempts)) -> None:
            for attempt in found:
                self._tables.launches.setdefault((attempt.reservation_id, attempt.outcome), attempt)

        self._staged.append(apply)

    async def find_since(self, since: datetime) -> tuple[LaunchAttempt, ...]:
        return tuple(attempt for attempt in self._tables.launches.values() if attempt.asked_at >= since)


class Reoptimizations(_Repository):
    """Fulfils ``ReoptimizationRepository``."""

    async def add(self, reoptimization: Reoptimization) -> None:
        self._staged.append(lambda: self._tables.reoptimizations.insert(0, reoptimization))

    async def update(self, reoptimization: Reoptimization) -> Reoptimization:
        key, written = (
            reoptimization.reoptimization_id,
            replace(reoptimization, version=reoptimization.version + 1),
        )

        def apply() -> None:
            looks = self._tables.reoptimizations
            (at,) = [i for i, look in enumerate(looks) if look.reoptimization_id == key]
            if looks[at].version != reoptimization.version:
                raise ConcurrentChange(f"{key} is at version {looks[at].version}")
            looks[at] = written

        self._staged.append(apply)
        return written

    async def find(self, reoptimization_id: str) -> Reoptimization:
        for look in self._tables.reoptimizations:
            if look.reoptimization_id == reoptimization_id:
                return look
        raise NotFound("re-optimization", reoptimization_id)

    async def find_in(
        self, states: Collection[ProposalState], since: datetime | None = None
    ) -> tuple[Reoptimization, ...]:
        looks = self._tables.reoptimizations
        return tuple(o for o in looks if o.state in states and (since is None or o.started_at >= since))

    async def find_page(self, team: str | None, limit: int, cursor: str | None) -> Page[Reoptimization]:
        mine = [look for look in self._tables.reoptimizations if team in (None, look.team)]
        return _page(mine, limit, cursor)


class Accounts(_Repository):
    """Fulfils ``AccountRepository``."""

    async def add_key(self, key: ApiKey) -> None:
        self._staged.append(lambda: self._tables.keys.update({key.sha256: key}))

    async def find_key(self, sha256: str) -> ApiKey | None:
        return self._tables.keys.get(sha256)

    async def remember(self, answer: RememberedAnswer) -> RememberedAnswer | None:
        claim = (answer.team, answer.key, answer.route)
        if claim in self._tables.answers:
            return self._tables.answers[claim]
        self._staged.append(lambda: self._tables.answers.update({claim: answer}))
        return None

    async def complete(self, answer: RememberedAnswer) -> None:
        claim = (answer.team, answer.key, answer.route)
        self._staged.append(lambda: self._tables.answers.update({claim: answer}))

    async def forget(self, team: str, key: str, route: str) -> None:
        claim = (team, key, route)
        self._staged.append(lambda: self._drop(claim))

    def _drop(self, claim: tuple[str, str, str]) -> None:
        del self._tables.answers[claim]
        self._tables.effects.pop(claim, None)

    async def let_go(self, claim: RequestClaim) -> None:
        name = (claim.team, claim.key, claim.route)
        if name in self._tables.effects:
            self._staged.append(lambda: self._tables.left.add(name))
        else:
            self._staged.append(lambda: self._drop(name))

    async def take_over(self, claim: RequestClaim) -> tuple[str, ...] | None:
        name = (claim.team, claim.key, claim.route)
        if name not in self._tables.left:
            return None
        self._staged.append(lambda: self._tables.left.remove(name))
        return self._tables.effects.get(name, ())

    async def bind(self, claim: RequestClaim | None, effects: Iterable[str]) -> None:
        if claim is None:
            return
        name = (claim.team, claim.key, claim.route)
        if name not in self._tables.answers:
            raise ConcurrentChange(f"{claim} was taken over")
        bound = (*self._tables.effects.get(name, ()), *effects)
        self._staged.append(lambda: self._tables.effects.update({name: bound}))

    async def add_audit(self, entry: AuditEntry) -> None:
        self._staged.append(lambda: self._tables.audit.append(entry))

    async def find_audit(
        self, team: str | None, limit: int, cursor: str | None, object_id: str | None = None
    ) -> Page[AuditEntry]:
        mine = [
            entry
            for entry in reversed(self._tables.audit)
            if team in (None, entry.team) and object_id in (None, entry.object_id)
        ]
        return _page(mine, limit, cursor)

    async def install_id(self) -> str:
        return "test"


class InMemoryUnitOfWork:
    """Fulfils ``UnitOfWork``."""

    def __init__(self, tables: Tables) -> None:
        self._staged: list[Callable[[], None]] = []
        self.offers: OfferRepository = Offers(tables, self._staged)
        self.quarantine: QuarantineRepository = Quarantine(tables, self._staged)
        self.plans: PlanRepository = Plans(tables, self._staged)
        self._tables = tables
        self._reservations = Reservations(tables, self._staged)
        self.reservations: ReservationRepository = self._reservations
        self.launches: LaunchRepository = Launches(tables, self._staged)
        self.reoptimizations: ReoptimizationRepository = Reoptimizations(tables, self._staged)
        self.accounts: AccountRepository = Accounts(tables, self._staged)
        self.rollups: RollupRepository = Rollups(tables.rollups, tables.reservations, self._staged)

    async def __aenter__(self) -> Self:
        open_units.set(open_units.get() + 1)
        return self

    async def __aexit__(self, *_: object) -> None:
        open_units.set(open_units.get() - 1)
        if self._reservations.is_taking:
            self._tables.taking.release()
            self._reservations.is_taking = False
        self._staged.clear()

    async def commit(self) -> None:
        for apply in self._staged:
            apply()
        self._staged.clear()
