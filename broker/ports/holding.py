"""Ports of reservations: providers that take orders, moves, and the store of reservations and launches."""

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
    """A provider that takes orders. One call buys one lease."""

    @property
    def provider(self) -> str:
        """The provider key."""
        ...

    @property
    def idempotency(self) -> Idempotency:
        """How a repeated order is kept from buying twice."""
        ...

    @property
    def tells_price(self) -> bool:
        """Whether its hourly leases report their rate."""
        ...

    def holds_limit(self, offer: Offer) -> bool:
        """Whether ``reserve`` buys nothing above the limit of an order of ``offer``, without a quote."""
        ...

    def barred(self, offer: Offer) -> str:
        """Why the provider's configuration allows no order of ``offer``; empty if it does."""
        ...

    @property
    def longest_tag(self) -> int:
        """Number of characters that it keeps of a tag."""
        ...

    async def quote(self, offer: Offer, asked_at: datetime) -> Offer | None:
        """``offer`` as the provider shows it at ``asked_at``; None if it is not on sale.

        It is called just before an order, unless ``holds_limit``; of a window, only its price counts.
        Raises ProviderError.
        """
        ...

    def nodes_per_order(self, offer: Offer) -> int | None:
        """The most nodes of ``offer`` that one call can buy; None: any number."""
        ...

    async def reserve(self, order: Order) -> Lease:
        """Buys one lease.

        Raises InsufficientCapacity, PriceAboveLimit, QuotaExceeded, OrderRejected, CredentialsRejected or
        RateLimited if certainly nothing was bought, and OutcomeUnknown if something may have been.
        """
        ...

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One lease by the provider's own id. Raises LeaseNotFound if it is gone."""
        ...

    async def list_leases(self) -> Sequence[Lease]:
        """Every lease of the account with its tag, ours or not, except those that ended long ago."""
        ...

    async def release(self, lease: Lease) -> None:
        """Asks the provider to end the lease. It is no error if the lease is gone or has ended already.

        Raises ReleaseRefused if the provider will not end it, or not yet.
        """
        ...


class Mover(Protocol):
    """Moves holdings to where a plan places them: the new is bought before the old is released."""

    async def move(self, actor: str, plan: Plan, leaving: Sequence[str]) -> tuple[Reservation, ...]:
        """Buys replacements of the reservations ``leaving``; nothing if they already match ``plan``.

        Raises StalePlan, Conflict or the provider's error; then the old reservations stay.
        """
        ...


class ReservationRepository(Protocol):
    """Reservations, by team."""

    async def add(self, reservation: Reservation) -> None:
        """Stores a new intent."""
        ...

    async def update(self, reservation: Reservation) -> Reservation:
        """Writes it, and returns it with the next version. Raises ConcurrentChange if ``version`` is old."""
        ...

    async def find(self, reservation_id: str) -> Reservation:
        """One reservation. Raises NotFound."""
        ...

    async def find_of_tags(self, stem: str) -> tuple[Reservation, ...]:
        """Reservations with a unit whose tag begins with ``stem``, oldest first."""
        ...

    async def find_page(
        self, limit: int, cursor: str | None, plan_id: str | None = None
    ) -> Page[Reservation]:
        """Newest first."""
        ...

    async def find_open(self) -> tuple[Reservation, ...]:
        """All open reservations, on which the broker may still have to act."""
        ...

    async def find_lost(self, since: datetime) -> tuple[Reservation, ...]:
        """Reservations that failed since then and have an order whose answer was lost."""
        ...

    async def find_of_bills(self, bill_ids: Collection[str]) -> tuple[Reservation, ...]:
        """Reservations of some bills. A bill is a plan id, or the id of a reservation without a plan."""
        ...

    async def find_competing(
        self, offers: Iterable[Offer], providers: Collection[str] = ()
    ) -> tuple[Reservation, ...]:
        """Open reservations that use the stock or pools of ``offers``, or capacity of ``providers``.

        The stock is locked against all other transactions until this transaction ends.
        """
        ...

    async def take_turn(self) -> None:
        """Takes a lock that serialises orders which ask budgets; it is held until this transaction ends."""
        ...

    async def claim(self, reservation_id: str) -> bool:
        """Claims a row for a short time; False while another live process has claimed it."""
        ...

    async def note_seen(self, units: Sequence[tuple[str, int]], at: datetime) -> None:
        """Stores when units (reservation id, ordinal) were last seen running; versions do not change."""
        ...

    async def find_workloads(self) -> frozenset[str]:
        """Names of the workloads of all reservations."""
        ...

    async def find_plans_held(self, window: Window | None) -> frozenset[str]:
        """Plans of whose reservations one touches ``window`` (None: any time)."""
        ...

    async def find_overlapping(self, window: Window | None) -> tuple[Reservation, ...]:
        """Every reservation that was ever held and overlaps ``window`` (None: any time); for spend."""
        ...


class LaunchRepository(Protocol):
    """Our own launch attempts."""

    async def add(self, attempts: Iterable[LaunchAttempt]) -> None:
        """Appends attempts; of one reservation only the first attempt with each outcome is kept."""
        ...

    async def find_since(self, since: datetime) -> tuple[LaunchAttempt, ...]:
        """Attempts asked at ``since`` or later, oldest first."""
        ...
