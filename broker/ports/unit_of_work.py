"""What the ground floor needs from others: protocols that engines, store and wiring fulfil."""

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
    """The time that decisions are made at."""

    def now(self) -> datetime:
        """Now, aware, in UTC."""
        ...


class OfferSource(Protocol):
    """A provider that can be asked what it sells."""

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
        """How many calls run side by side; what is more waits inside."""
        ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedules ``fn``; the future gives its result.

        Cancelling the future ends a call that has begun, where the executor can.
        """
        ...


class Notifier(Protocol):
    """Tells the outside what changed."""

    async def notify(self, event: str, team: str, body: dict[str, object]) -> None:
        """Queues one event for delivery."""
        ...


class OfferRepository(Protocol):
    """Offers now, their history, and the health of feeds."""

    async def open_round(self, provider: str) -> Mapping[str, OfferMark]:
        """Marks of everything that ``provider`` sells now; until the end of this transaction no other may
        open a round of it."""
        ...

    async def record_round(self, round_: PollRound, news: RoundNews | None) -> None:
        """Stores a poll: only ``news`` is written, everything else on sale counts as seen again.

        ``news`` None (a failed poll) leaves the current offers as they are.
        """
        ...

    async def find_many(self, offer_ids: Collection[str]) -> tuple[Offer, ...]:
        """Those of the named offers that are on sale."""
        ...

    async def find_current(
        self,
        *,
        provider: str | None = None,
        gpu: str | None = None,
        region: str | None = None,
        tier: str | None = None,
        without: Collection[str] = (),
    ) -> tuple[Offer, ...]:
        """Current offers but for those of the providers ``without``, cheapest per GPU-hour first."""
        ...

    async def find_after(
        self, wanted: OfferFilter, after: OfferPlace | None, limit: int
    ) -> tuple[Offer, ...]:
        """At most ``limit`` of the offers ``wanted`` after a place, cheapest per GPU-hour first."""
        ...

    async def find_pool_gpus(
        self, pool_ids: Collection[str], gpu: str | None
    ) -> Mapping[str, tuple[int | None, ...]]:
        """What each current offer (of ``gpu``, where it is told) in the named pools says of their GPUs."""
        ...

    async def find_slice(self, part: OfferSlice, order: OfferOrder, *, descending: bool) -> tuple[str, ...]:
        """Ids of the offers of a slice; what is not counted comes before the counted."""
        ...

    async def find_counts(self) -> tuple[OfferCount, ...]:
        """How many offers are on sale, by provider, GPU, region and tier."""
        ...

    async def find_price_range(self, wanted: OfferFilter, count: int) -> OfferPrices | None:
        """Least, median and greatest price of the ``count`` offers ``wanted``; None where there are none."""
        ...

    async def find_cheapest_of_sellers(self, wanted: OfferFilter) -> tuple[SellersCheapest, ...]:
        """The cheapest offer of every seller among those ``wanted``, the cheapest of all first."""
        ...

    async def find_offer(self, offer_id: str) -> Offer:
        """One current offer; NotFound."""
        ...

    async def find_peer_prices(self) -> tuple[PeerPrice, ...]:
        """What every seller asks now."""
        ...

    async def find_prices(self, offer_id: str, window: Window) -> tuple[PricePoint, ...]:
        """Points of change in ``window``, led by the one in force at its start."""
        ...

    async def find_prices_of(self, offer_ids: Collection[str], window: Window) -> tuple[PricePoint, ...]:
        """The same of several offers, by offer and time."""
        ...

    async def find_changes(self, since: datetime, limit: int) -> tuple[OfferChange, ...]:
        """Changes after ``since``, oldest first."""
        ...

    async def find_feeds(self) -> tuple[FeedHealth, ...]:
        """Health of every feed ever polled."""
        ...

    async def hold_back(self, provider: str, until: datetime) -> None:
        """Notes before when a feed is not asked again; its next round takes that back."""
        ...

    async def record_probe(self, report: ProbeReport) -> None:
        """Stores what a probe of a provider found, over the one before."""
        ...

    async def find_rejected(self, provider: str) -> PollRound | None:
        """The last round of a provider with its rejected rows."""
        ...

    async def find_as_of(self) -> datetime | None:
        """When the newest current offer was seen."""
        ...


class QuarantineRepository(Protocol):
    """Offers whose price is not believed, by offer id."""

    async def find(self, provider: str | None) -> tuple[Quarantined, ...]:
        """Entries of ``provider`` (None: all), oldest first."""
        ...

    async def find_one(self, offer_id: str) -> Quarantined:
        """One entry; NotFound."""
        ...

    async def put(self, entry: Quarantined) -> None:
        """Stores an entry, over an earlier one of the same offer."""
        ...

    async def change(self, entries: Sequence[Quarantined], gone: Collection[str]) -> None:
        """Stores ``entries``, and forgets those of the offers ``gone``."""
        ...


class ReoptimizationRepository(Protocol):
    """Re-optimizations, newest first."""

    async def add(self, reoptimization: Reoptimization) -> None:
        """Stores one."""
        ...

    async def update(self, reoptimization: Reoptimization) -> Reoptimization:
        """Writes guarded by ``version`` and returns the next version; ConcurrentChange."""
        ...

    async def find(self, reoptimization_id: str) -> Reoptimization:
        """One; NotFound."""
        ...

    async def find_in(
        self, states: Collection[ProposalState], since: datetime | None = None
    ) -> tuple[Reoptimization, ...]:
        """Those in ``states`` that began at ``since`` (None: ever) or later, newest first."""
        ...

    async def find_page(self, team: str | None, limit: int, cursor: str | None) -> Page[Reoptimization]:
        """Newest first; ``team`` None: all that there are."""
        ...


class AccountRepository(Protocol):
    """Remembered answers and the audit trail."""

    async def remember(self, answer: RememberedAnswer) -> RememberedAnswer | None:
        """Claims (team, key, route): None when claimed now, else what stands there already."""
        ...

    async def complete(self, answer: RememberedAnswer) -> None:
        """Fills in status and body of a claimed answer."""
        ...

    async def forget(self, team: str, key: str, route: str) -> None:
        """Gives a claim back after a failure that had no effect."""
        ...

    async def let_go(self, claim: IdempotencyKey) -> None:
        """Gives a claim back: forgotten when nothing was stored under it, else free to be taken over."""
        ...

    async def take_over(self, claim: IdempotencyKey) -> tuple[str, ...] | None:
        """Takes an unanswered claim that was let go or whose process died: the ids stored under it; None
        while it is at work."""
        ...

    async def bind(self, claim: IdempotencyKey | None, effects: Iterable[str]) -> None:
        """Notes ids stored under ``claim``, in the transaction that stores them (None: under no key).

        ConcurrentChange when another process has taken the claim over: then nothing may be stored.
        """
        ...

    async def add_audit(self, entry: AuditEntry) -> None:
        """Appends to the audit trail."""
        ...

    async def find_audit(
        self, limit: int, cursor: str | None, object_id: str | None = None
    ) -> Page[AuditEntry]:
        """Newest first."""
        ...

    async def install_id(self) -> str:
        """A short id of this installation, made once; part of every tag."""
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
        """Makes it last."""
        ...


UnitOfWorkFactory = Callable[[TeamScope], UnitOfWork]
"""Opens a transaction for ``scope_of(caller)``, or for EVERY_TEAM."""
