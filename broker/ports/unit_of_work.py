"""Ports of the unit of work and its repositories, and of the clock, offer sources and executors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, Protocol, Self

from broker.domain.basics.access import TeamScope
from broker.domain.basics.account import AuditEntry, IdempotencyKey, RememberedAnswer
from broker.domain.basics.page import Page
from broker.domain.basics.window import Window
from broker.domain.market.market import FeedHealth, OfferChange, PollRound, PricePoint
from broker.domain.market.offer import Offer, OfferBatch
from broker.domain.market.offer_pages import (
    Names,
    OfferCount,
    OfferFilter,
    OfferOrder,
    OfferPlace,
    OfferPrices,
    OfferSlice,
    SellersCheapest,
)
from broker.domain.market.price_gate import PeerPrice, Quarantined
from broker.domain.market.probing import ProbeReport
from broker.domain.market.round_news import OfferMark, RoundNews
from broker.domain.moving.reoptimization import ProposalState, Reoptimization
from broker.ports.holding import LaunchRepository, ReservationRepository
from broker.ports.planning import PlanRepository


class Clock(Protocol):
    """The source of the current time."""

    def now(self) -> datetime:
        """The current time, aware and in UTC."""
        ...


class OfferSource(Protocol):
    """A provider whose offers can be listed."""

    @property
    def provider(self) -> str:
        """The provider key."""
        ...

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Everything on sale now. Raises ProviderError; unreadable rows are in ``rejected``."""
        ...


class Executor(Protocol):
    """Where heavy calls run; ``concurrent.futures`` and Dask executors fit."""

    @property
    def workers(self) -> int:
        """How many calls run in parallel; further calls are queued."""
        ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedules ``fn``, and returns the future of its result.

        If the executor is able to, cancelling the future also ends a running call.
        """
        ...


class Notifier(Protocol):
    """Sends notifications about changes."""

    async def notify(self, event: str, team: str, body: dict[str, object]) -> None:
        """Queues one event for delivery."""
        ...


class OfferRepository(Protocol):
    """Current offers, their history, and the health of feeds."""

    async def open_round(self, provider: str) -> Mapping[str, OfferMark]:
        """Marks of all current offers of ``provider``; locks its rounds until this transaction ends."""
        ...

    async def record_round(self, round_: PollRound, news: RoundNews | None) -> None:
        """Stores a poll round. Only ``news`` is written; all other current offers count as seen again.

        ``news`` None (a failed poll) leaves the current offers unchanged.
        """
        ...

    async def find_many(self, offer_ids: Collection[str]) -> tuple[Offer, ...]:
        """Those of the named offers that are on sale."""
        ...

    async def find_current(
        self,
        *,
        provider: Names | None = None,
        gpu: Names | None = None,
        region: Names | None = None,
        tier: Names | None = None,
        without: Collection[str] = (),
    ) -> tuple[Offer, ...]:
        """Current offers except those of providers in ``without``, cheapest per GPU-hour first."""
        ...

    async def find_after(
        self, wanted: OfferFilter, after: OfferPlace | None, limit: int
    ) -> tuple[Offer, ...]:
        """At most ``limit`` of the offers ``wanted`` after the position ``after``, cheapest first."""
        ...

    async def find_pool_gpus(
        self, pool_ids: Collection[str], gpu: Names | None
    ) -> Mapping[str, tuple[int | None, ...]]:
        """By pool, the size that each current offer in it states; ``gpu`` filters offers if it is given."""
        ...

    async def find_slice(self, part: OfferSlice, order: OfferOrder, *, descending: bool) -> tuple[str, ...]:
        """Ids of the offers of a slice; offers without a stated number of nodes sort first."""
        ...

    async def find_counts(self) -> tuple[OfferCount, ...]:
        """Numbers of current offers by provider, GPU, region and tier."""
        ...

    async def find_price_range(self, wanted: OfferFilter, count: int) -> OfferPrices | None:
        """Lowest, median and highest price of the ``count`` offers ``wanted``; None if there are none."""
        ...

    async def find_cheapest_of_sellers(self, wanted: OfferFilter) -> tuple[SellersCheapest, ...]:
        """The cheapest offer of each provider among those ``wanted``, cheapest first."""
        ...

    async def find_offer(self, offer_id: str) -> Offer:
        """One current offer. Raises NotFound."""
        ...

    async def find_peer_prices(self) -> tuple[PeerPrice, ...]:
        """Current prices of all providers by GPU and tier."""
        ...

    async def find_prices(self, offer_id: str, window: Window) -> tuple[PricePoint, ...]:
        """Price points in ``window``, including the one in force at its start."""
        ...

    async def find_prices_of(self, offer_ids: Collection[str], window: Window) -> tuple[PricePoint, ...]:
        """Price points of several offers in ``window``, by offer and time."""
        ...

    async def find_changes(self, since: datetime, limit: int) -> tuple[OfferChange, ...]:
        """Changes after ``since``, oldest first."""
        ...

    async def find_feeds(self) -> tuple[FeedHealth, ...]:
        """Health of every feed ever polled."""
        ...

    async def hold_back(self, provider: str, until: datetime) -> None:
        """Sets the back-off of a feed, which is not polled before ``until``; its next round resets it."""
        ...

    async def record_probe(self, report: ProbeReport) -> None:
        """Stores the report of a probe; it replaces the provider's previous report."""
        ...

    async def find_rejected(self, provider: str) -> PollRound | None:
        """The last round of a provider with its rejected rows."""
        ...

    async def find_as_of(self) -> datetime | None:
        """When the newest current offer was observed; None without offers."""
        ...


class QuarantineRepository(Protocol):
    """Offers in quarantine, by offer id."""

    async def find(self, provider: str | None) -> tuple[Quarantined, ...]:
        """Entries of ``provider`` (None: all), oldest first."""
        ...

    async def find_one(self, offer_id: str) -> Quarantined:
        """One entry. Raises NotFound."""
        ...

    async def put(self, entry: Quarantined) -> None:
        """Stores an entry; it replaces an earlier one of the same offer."""
        ...

    async def change(self, entries: Sequence[Quarantined], gone: Collection[str]) -> None:
        """Stores ``entries``, and deletes those of the offers ``gone``."""
        ...


class ReoptimizationRepository(Protocol):
    """Stored re-optimizations."""

    async def add(self, reoptimization: Reoptimization) -> None:
        """Stores a new re-optimization."""
        ...

    async def update(self, reoptimization: Reoptimization) -> Reoptimization:
        """Writes it, and returns it with the next version. Raises ConcurrentChange if ``version`` is old."""
        ...

    async def find(self, reoptimization_id: str) -> Reoptimization:
        """One re-optimization. Raises NotFound."""
        ...

    async def find_in(
        self, states: Collection[ProposalState], since: datetime | None = None
    ) -> tuple[Reoptimization, ...]:
        """Re-optimizations in ``states`` that began at ``since`` (None: ever) or later, newest first."""
        ...

    async def find_page(self, team: str | None, limit: int, cursor: str | None) -> Page[Reoptimization]:
        """Newest first; ``team`` None: all that there are."""
        ...


class AccountRepository(Protocol):
    """Idempotency keys with their answers, and the audit trail."""

    async def remember(self, answer: RememberedAnswer) -> RememberedAnswer | None:
        """Claims (team, key, route). None if it is claimed now, else the answer that is already stored."""
        ...

    async def complete(self, answer: RememberedAnswer) -> None:
        """Stores status and body of a claimed answer."""
        ...

    async def forget(self, team: str, key: str, route: str) -> None:
        """Deletes a claim after a failure without effects."""
        ...

    async def let_go(self, claim: IdempotencyKey) -> None:
        """Releases a claim: it is deleted if no ids are bound to it, else others may take it over."""
        ...

    async def take_over(self, claim: IdempotencyKey) -> tuple[str, ...] | None:
        """Takes over an unanswered claim that was released or whose process died; returns the ids bound to
        it, or None while its process is still working on it.
        """
        ...

    async def bind(self, claim: IdempotencyKey | None, effects: Iterable[str]) -> None:
        """Binds ids to ``claim`` in the transaction that stores their objects (None: there is no key).

        Raises ConcurrentChange if another process has taken over the claim; then nothing may be stored.
        """
        ...

    async def add_audit(self, entry: AuditEntry) -> None:
        """Appends to the audit trail."""
        ...

    async def find_audit(
        self, limit: int, cursor: str | None, object_id: str | None = None
    ) -> Page[AuditEntry]:
        """Newest first, with the names of the keys that acted."""
        ...

    async def find_key_names(self, key_ids: Collection[str]) -> Mapping[str, str]:
        """The names of those of ``key_ids`` that are keys in scope, also of revoked ones."""
        ...

    async def find_teams(self) -> tuple[str, ...]:
        """Teams in scope that have a key, a plan or a reservation, in the order in which they appeared."""
        ...

    async def install_id(self) -> str:
        """The short id of this installation, which is created once and is part of every tag."""
        ...


class UnitOfWork(Protocol):
    """One transaction. Leaving without ``commit`` rolls back.

    ``scope``: whose objects there are. Another team's are as if they were not there for every repository: no
    list shows them, to find one by its id is NotFound, and so is to store one for another team.
    """

    scope: TeamScope
    offers: OfferRepository
    quarantine: QuarantineRepository
    plans: PlanRepository
    reservations: ReservationRepository
    launches: LaunchRepository
    reoptimizations: ReoptimizationRepository
    accounts: AccountRepository

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def commit(self) -> None:
        """Commits the transaction."""
        ...


UnitOfWorkFactory = Callable[[TeamScope], UnitOfWork]
"""Opens a transaction for ``scope_of(caller)``, or for EVERY_TEAM."""
