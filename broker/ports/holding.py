"""Ports of reservations: providers that take orders, and moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from broker.domain.basics.machines import Access, PublicKey
from broker.domain.holding.reservation import Idempotency, Lease, Order, Reservation
from broker.domain.holding.seller_network import NetworkPlan, NetworkRules
from broker.domain.holding.starting import StartReport, Unreached
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Plan

FindKept = Callable[[], Awaitable[Collection[str]]]


class MachineProbing(Protocol):
    """Asks a machine over the network."""

    async def host_key(self, access: Access) -> str | None:
        """The public key that the machine's SSH server shows; None without an answer."""
        ...

    async def is_healthy(self, url: str) -> bool | None:
        """Whether ``url`` answers with a status of success; None if it does not answer in time."""
        ...


@dataclass(frozen=True, slots=True)
class Start:
    """A script that a machine runs once. ``name`` is that of the run: the tag of its unit.

    ``host_key``: what the machine's SSH server must show, as ``kind base64``. ``private_key``: the
    installation's, in OpenSSH's format. ``script`` has the values of secrets.
    """

    name: str
    access: Access
    host_key: str
    private_key: str = field(repr=False)
    script: str = field(repr=False)


class MachineStarting(Protocol):
    """Runs scripts on machines over SSH."""

    async def start(self, start: Start) -> StartReport | Unreached:
        """Begins the script unless the machine has begun it before, and says how it stands. It may be
        repeated, also by several processes at once: a machine runs each name once."""
        ...


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

    def locked_out(self, offer: Offer, keys: Sequence[PublicKey]) -> str:
        """Why nobody could enter a machine of ``offer`` ordered with ``keys``; empty if somebody can."""
        ...

    def opens_to_keys(self, offer: Offer) -> bool:
        """Whether a machine of ``offer`` opens to the public keys of its order."""
        ...

    @property
    def ssh_port(self) -> int:
        """The SSH port of a machine whose provider names none."""
        ...

    def runs_script(self, offer: Offer) -> bool:
        """Whether an order of ``offer`` carries the script of a machine's first start."""
        ...

    @property
    def most_keys(self) -> int | None:
        """How many of an order's keys open its machine; None: all."""
        ...

    async def drop_keys(self, find_kept: FindKept) -> None:
        """Removes the public keys that the broker registered at the seller, except those that are needed.

        ``find_kept`` gives the lines of these; it is called after the seller's list was read, so that a key
        which is registered meanwhile stays.
        """
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


class NetworkBuilder(Protocol):
    """A seller whose machines join a network in the buyer's account, which is made once."""

    @property
    def network_setting(self) -> str:
        """The setting that names a network in place of the one that is made."""
        ...

    @property
    def names_network(self) -> bool:
        """Whether that setting is made."""
        ...

    def network_regions(self) -> tuple[str, ...]:
        """The regions that need a network each, as the seller is configured; ("",): one serves all."""
        ...

    async def plan_network(self, rules: NetworkRules, regions: Sequence[str]) -> NetworkPlan:
        """What is there, and what is missing. It changes nothing. Raises ProviderError."""
        ...

    async def make_network(self, rules: NetworkRules, regions: Sequence[str]) -> NetworkPlan:
        """Makes what is missing, and changes rules that differ; repeated, it changes nothing."""
        ...


class Mover(Protocol):
    """Moves holdings to where a plan places them: the new is bought before the old is released."""

    async def move(self, actor: str, plan: Plan, leaving: Sequence[str]) -> tuple[Reservation, ...]:
        """Buys replacements of the reservations ``leaving``; nothing if they already match ``plan``.

        Raises StalePlan, Conflict or the provider's error; then the old reservations stay.
        """
        ...

    async def require_orderable(self, plan: Plan, leaving: Collection[str]) -> None:
        """Raises OrdersBarred or OverCap if the new capacity may not be ordered. Stores nothing."""
        ...
