"""Ports of reserving: who is bought from, who moves what is held, and where it is kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Protocol

from broker.domain.basics.page import Page
from broker.domain.basics.window import Window
from broker.domain.holding.launches import LaunchAttempt
from broker.domain.holding.reservation import Idempotency, Lease, Order, Reservation
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan


class Reserver(Protocol):
    """A provider that can be bought from. One call buys one lease."""

    @property
    def provider(self) -> str:
        """The provider key."""
        ...

    @property
    def idempotency(self) -> Idempotency:
        """How a repeat is made safe."""
        ...

    @property
    def tells_price(self) -> bool:
        """Whether its leases by the hour say what they are charged at."""
        ...

    def barred(self, offer: Offer) -> str:
        """Why no order of ``offer`` can be sent as the seller is configured; empty where one can."""
        ...

    @property
    def longest_tag(self) -> int:
        """Characters that it keeps of a tag."""
        ...

    async def quote(self, offer: Offer, asked_at: datetime) -> Offer | None:
        """``offer`` as its seller shows it at ``asked_at``, None when it is not on sale. ProviderError.

        It is asked just before an order where ``tells_price`` is false, and for what is bought later under a
        limit.
        """
        ...

    def nodes_per_order(self, offer: Offer) -> int | None:
        """Nodes that one call can buy of ``offer``; None: any number."""
        ...

    async def reserve(self, order: Order) -> Lease:
        """Buys. Raises InsufficientCapacity, PriceAboveLimit, QuotaExceeded, OrderRejected,
        CredentialsRejected or RateLimited when surely nothing was bought, OutcomeUnknown when it may have
        been."""
        ...

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One lease by the provider's own id; LeaseNotFound when it is gone."""
        ...

    async def list_leases(self) -> Sequence[Lease]:
        """Every lease of the account that is not long ended, ours or not, with its tag."""
        ...

    async def release(self, lease: Lease) -> None:
        """Asks for the end. LeaseNotFound and "already ended" are success and raise nothing;
        ReleaseRefused when the provider will not (yet)."""
        ...


class Mover(Protocol):
    """Moves what is held to where a plan places it: the new is bought before the old is let go."""

    async def move(self, actor: str, plan: Plan, leaving: Sequence[str]) -> tuple[Reservation, ...]:
        """Intends and buys in the place of the reservations ``leaving``; nothing when they are held as
        placed. Raises StalePlan, Conflict and the provider's error; the old then stays."""
        ...


class ReservationRepository(Protocol):
    """Reservations, by team."""

    async def add(self, reservation: Reservation) -> None:
        """Stores a new intent."""
        ...

    async def update(self, reservation: Reservation) -> Reservation:
        """Writes guarded by ``version`` and returns the next version; ConcurrentChange."""
        ...

    async def find(self, reservation_id: str) -> Reservation:
        """One reservation; NotFound."""
        ...

    async def find_of_tags(self, stem: str) -> tuple[Reservation, ...]:
        """Those with a unit whose tag begins with ``stem``, oldest first."""
        ...

    async def find_page(
        self, limit: int, cursor: str | None, plan_id: str | None = None
    ) -> Page[Reservation]:
        """Newest first."""
        ...

    async def find_open(self) -> tuple[Reservation, ...]:
        """Everything that the broker still has to act on."""
        ...

    async def find_lost(self, since: datetime) -> tuple[Reservation, ...]:
        """Failed ones since then with an order whose answer never came."""
        ...

    async def find_of_bills(self, bill_ids: Collection[str]) -> tuple[Reservation, ...]:
        """Those of some plans, and those of some ids that have no plan."""
        ...

    async def find_competing(
        self, offers: Iterable[Offer], providers: Collection[str] = ()
    ) -> tuple[Reservation, ...]:
        """Open reservations that take from the stock of ``offers``, from a pool of theirs, or hold anything
        of ``providers``.

        From here to the end of this transaction nobody else, in no process, is told the same stock.
        """
        ...

    async def claim(self, reservation_id: str) -> bool:
        """Claims a row to act on it for a short while; False while another living process does."""
        ...

    async def note_seen(self, units: Sequence[tuple[str, int]], at: datetime) -> None:
        """Stores when providers last showed units (reservation id, ordinal) running; versions stay."""
        ...

    async def find_plans_held(self, window: Window | None) -> frozenset[str]:
        """Plans of whose reservations one touches ``window`` (None: any time)."""
        ...

    async def find_overlapping(self, window: Window | None) -> tuple[Reservation, ...]:
        """Every reservation that was ever held and touches ``window`` (None: all); for spend."""
        ...


class LaunchRepository(Protocol):
    """Our own launches, and what came of them."""

    async def add(self, attempts: Iterable[LaunchAttempt]) -> None:
        """Appends; of one reservation the first attempt with each outcome stays."""
        ...

    async def find_since(self, since: datetime) -> tuple[LaunchAttempt, ...]:
        """Attempts asked at ``since`` or later, oldest first."""
        ...
