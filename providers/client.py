"""The base class of the sellers' clients; an adapter adds paths, request bodies and the seller's error words.

``SellerClient`` stays one level deep: it opens the connection, sends every call through ``_call``, and
treats the release of a lease that is already gone as success. The functions ``ordered`` (the lease of a new
order) and ``all_pages`` (pagination) stand beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar
from urllib.parse import urlsplit

from broker.domain.basics.errors import (
    LeaseNotFound,
    LeasesUnreadable,
    OrderRejected,
    PayloadUnreadable,
    ProviderError,
    ProviderUnavailable,
)
from broker.domain.basics.machines import SSH_PORT, PublicKey
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Idempotency, Lease, LeaseState, Order
from broker.domain.market.offer import Offer, OfferBatch
from broker.ports.holding import FindKept
from providers.http import Classify, HttpFactory, HttpPolicy, Operation, Reply
from providers.spec import Missing, ProviderSettings

Query = Mapping[str, str]


def bearer(settings: ProviderSettings, credential: str) -> dict[str, str]:
    """The authorization header of a bearer key; none without a key (open feeds)."""
    key = settings.secret(credential)
    return {"Authorization": f"Bearer {key}"} if key else {}


P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class AccountKey:
    """A public key that is registered at a seller. ``line`` is ``kind base64``, without a comment."""

    key_id: str
    name: str
    line: str


def key_line(text: str) -> str:
    """``kind base64`` of a public key as a seller shows it, with or without a comment."""
    return " ".join(text.split()[:2])


Told = TypeVar("Told")
Listing = Callable[P, Coroutine[Any, Any, Told]]


class Entry(Enum):
    """How somebody gets into what a seller gives for an order.

    ``KEYS``: with public SSH keys that go with the order. ``OWN``: the order is capacity in the buyer's own
    account, in which the buyer starts instances. ``CLOSED``: the seller's API takes no key.
    """

    KEYS = "keys"
    OWN = "own"
    CLOSED = "closed"


def tells_all_or_fails(list_leases: Listing[P, Told]) -> Listing[P, Told]:
    """Decorates a function that lists leases, so that an unreadable list never looks like an empty one.

    Raises LeasesUnreadable, with endpoint and answer, when the list is not found, refused or unreadable.
    """

    @wraps(list_leases)
    async def listed(*args: P.args, **named: P.kwargs) -> Told:
        try:
            return await list_leases(*args, **named)
        except (LeaseNotFound, OrderRejected, PayloadUnreadable) as error:
            raise _unreadable(error) from error

    return listed


def _unreadable(error: ProviderError) -> LeasesUnreadable:
    said = str(error).removeprefix(f"{error.provider}: ")
    meaning = {404: ": it is not there", 410: ": it is retired"}.get(error.status or 0, "")
    status = f" (HTTP {error.status}{meaning})" if error.status is not None else ""
    what = f"its list of leases cannot be read, {error.endpoint or 'it'} answered{status}: {said}"
    told = LeasesUnreadable(error.provider, what, request_id=error.request_id)
    told.endpoint, told.status = error.endpoint, error.status
    return told


class Seller(ABC):
    """Properties of every seller's client.

    ``tells_price``: its hourly leases carry the price that is charged. A seller with a long list of offers
    overrides ``quote`` with a narrower request. ``longest_tag``: how many characters of a name it keeps; 63
    (a DNS label) where more are allowed or nothing is documented. ``missing``: settings without which some
    or all orders are refused here; leases can still be listed and released. ``entry``: how somebody gets into
    what is ordered; ``ssh_port``: that of machines whose seller names none; ``takes_script``: an
    order carries the script of a machine's first start; ``most_keys``: how many of an order's keys open its
    machine (None: all); ``opens_alone``: machines ordered without a key have one of the installation, or are
    the sandbox's, which cost nothing.
    """

    provider: str
    missing: tuple[Missing, ...] = ()
    tells_price = False
    longest_tag = 63
    entry: ClassVar[Entry] = Entry.CLOSED
    ssh_port: int = SSH_PORT
    takes_script: ClassVar[bool] = False
    most_keys: ClassVar[int | None] = None
    opens_alone: bool = False

    def set_access(self, settings: ProviderSettings) -> None:
        """Takes from ``settings`` what decides how machines are entered."""
        own = [name for name in settings.options if name.startswith(("ssh_", "key_"))]
        self.opens_alone = settings.sandbox or any(settings.options[name] for name in own)
        self.ssh_port = sandbox_port(settings) or SSH_PORT

    def holds_limit(self, offer: Offer) -> bool:
        """Whether ``reserve`` keeps the order's limit: it is in the order, or ``reserve`` asks the price."""
        return False

    def barred(self, offer: Offer) -> str:
        """Why the current settings prevent an order of ``offer``; empty when they do not."""
        lacking = [str(one) for one in self.missing if one.bars(offer)]
        return f"nothing was ordered, a setting is missing: {'; '.join(lacking)}" if lacking else ""

    def entry_of(self, offer: Offer) -> Entry:
        """How somebody gets into a machine of ``offer``."""
        return self.entry

    def locked_out(self, offer: Offer, keys: Sequence[PublicKey]) -> str:
        """Why nobody could enter a machine of ``offer`` ordered with ``keys``; empty if somebody can."""
        way = self.entry_of(offer)
        if self.opens_alone or way is Entry.OWN or (keys and way is Entry.KEYS):
            return ""
        if way is Entry.CLOSED:
            return f"the API of {self.provider} takes no public SSH key with an order"
        return "no public SSH key goes with the order, so nobody could enter the machine"

    def opens_to_keys(self, offer: Offer) -> bool:
        """Whether a machine of ``offer`` opens to the public keys of its order."""
        return self.entry_of(offer) is Entry.KEYS

    def runs_script(self, offer: Offer) -> bool:
        """Whether an order of ``offer`` carries the script of a machine's first start."""
        return self.takes_script

    async def drop_keys(self, find_kept: FindKept) -> None:
        """Removes the public keys that the broker registered, except the lines of ``find_kept``."""
        return

    @abstractmethod
    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Every offer on sale now."""

    async def quote(self, offer: Offer, asked_at: datetime) -> Offer | None:
        """``offer`` as it is on sale now; None when it is not."""
        return found_again(offer, await self.list_offers(asked_at))


def found_again(offer: Offer, batch: OfferBatch) -> Offer | None:
    """The offer of ``batch`` with the id of ``offer``, in its size; None without one."""
    now = next((found for found in batch.offers if found.offer_id == offer.offer_id), None)
    return None if now is None else now.in_size_of(offer)


def sandbox_port(settings: ProviderSettings) -> int | None:
    """The port on which machines of a sandbox listen for SSH: that of the sandbox; None for a real seller."""
    return urlsplit(settings.base_url).port if settings.sandbox else None


class SellerClient(Seller):
    """One seller's connection and settings, and the calls that every adapter makes.

    Subclasses set ``provider``. Every call goes through ``_call``: a seller whose calls need a signature or
    a token, or that hides errors behind HTTP 200, overrides it.
    """

    idempotency = Idempotency.TAG

    def __init__(
        self,
        settings: ProviderSettings,
        http_factory: HttpFactory,
        classify: Classify,
        policy: HttpPolicy,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self.set_access(settings)
        self._http = http_factory(
            self.provider,
            settings.base_url,
            classify,
            settings.tuned(policy),
            headers=headers,
            secrets=settings.secrets,
        )

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    def paused_until(self) -> Mapping[str, datetime]:
        """Until when the circuit breakers hold back calls, by kind of call."""
        return self._http.paused_until()

    async def _call(
        self,
        method: str,
        path: str,
        operation: Operation,
        *,
        repeatable: bool | None = None,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Sends one call; raises the error that ``classify`` makes of an error answer."""
        return await self._http.request(
            method,
            path,
            operation=operation,
            repeatable=repeatable,
            params=params,
            json=json,
            headers=headers,
        )

    async def _on_sale(self, path: str, params: Mapping[str, Any] | None = None) -> Reply:
        """Reads what is on sale."""
        return await self._call("GET", path, Operation.OFFERS, params=params)

    async def _held(self, path: str, params: Mapping[str, Any] | None = None) -> Reply:
        """Reads what is held."""
        return await self._call("GET", path, Operation.LEASES, params=params)

    async def _order(self, path: str, body: Any) -> Reply:
        """Sends an order, at most once."""
        return await self._call("POST", path, Operation.ORDER, json=body)

    async def _end(self, method: str, path: str, body: Any = None) -> Reply:
        """Sends a call that ends something; repeating it changes nothing."""
        return await self._call(method, path, Operation.RELEASE, repeatable=True, json=body)

    def nodes_per_order(self, offer: Offer) -> int | None:
        """One: a call creates one machine."""
        return 1

    @contextlib.contextmanager
    def _before_order(self, failing: str) -> Iterator[None]:
        """A context of calls before an order: OrderRejected, with ``failing``, where one is not answered."""
        try:
            yield
        except (LeaseNotFound, PayloadUnreadable, ProviderUnavailable) as error:
            raise OrderRejected(self.provider, f"nothing was ordered, {failing}: {error}") from error

    async def release(self, lease: Lease) -> None:
        """Releases a lease; one that the seller does not know (any more) counts as released."""
        with contextlib.suppress(LeaseNotFound):
            await self._give_back(lease)

    @abstractmethod
    async def _give_back(self, lease: Lease) -> None:
        """Ends one lease; LeaseNotFound when it is already gone."""


class AccountKeys(SellerClient):
    """The client of a seller that keeps public keys in the account, from which the broker removes its own."""

    @abstractmethod
    async def account_keys(self) -> Sequence[AccountKey]:
        """The public keys that the seller has of the account."""

    @abstractmethod
    async def _unregister_key(self, key: AccountKey) -> None:
        """Removes a registered key."""

    def _key_name(self, key: PublicKey) -> str:
        """The name of a registered key: the broker's prefix and a digest of the key."""
        digest = hashlib.sha256(key.line.encode()).hexdigest()[:16]
        return f"{self._settings.tag_prefix}-key-{digest}"

    async def drop_keys(self, find_kept: FindKept) -> None:
        """Removes the public keys that the broker registered, except the lines of ``find_kept``.

        A key that the seller does not give up, because a machine still has it, stays.
        """
        prefix = f"{self._settings.tag_prefix}-key-"
        mine = [key for key in await self.account_keys() if key.name.startswith(prefix)]
        kept = await find_kept() if mine else ()
        for key in mine:
            if key.line not in kept:
                with contextlib.suppress(LeaseNotFound, OrderRejected):
                    await self._unregister_key(key)

    async def _key_call(self, method: str, path: str, body: Any = None) -> Reply:
        """Sends a call about registered keys; repeating it changes nothing."""
        return await self._call(method, path, Operation.LEASES, repeatable=True, json=body)


class KeyRegister(AccountKeys):
    """The client of a seller at which a public key is registered once; orders name it by its id."""

    @abstractmethod
    async def _register_key(self, name: str, line: str) -> str:
        """Registers a public key under ``name``; returns the id by which orders name it."""

    async def registered(self, keys: Sequence[PublicKey]) -> list[str]:
        """The ids by which an order names ``keys``; those that the seller does not know yet are registered.

        Repeating it registers nothing twice, so a lost answer does no harm. OrderRejected where the seller
        cannot be asked: then nothing is ordered.
        """
        if not keys:
            return []
        with self._before_order("its public SSH keys could not be registered"):
            known = {key.line: key.key_id for key in await self.account_keys()}
            return [
                known.get(key.line) or await self._register_key(self._key_name(key), key.line) for key in keys
            ]


def ordered(
    order: Order,
    reference: str,
    state: LeaseState = LeaseState.PROVISIONING,
    window: Window | None = None,
    detail: str = "",
) -> Lease:
    """The new lease of ``order``, for sellers that answer with little more than its id."""
    return Lease(
        provider=order.offer.provider,
        reference=reference,
        state=state,
        tag=order.tag,
        nodes=order.nodes,
        sku=order.offer.sku.name,
        region=order.offer.region,
        window=window,
        detail=detail,
    )


async def all_pages(
    ask: Callable[[Query], Awaitable[Reply]],
    following: Callable[[Reply, int], Query | None],
    first: Query,
    most_pages: int,
) -> list[Reply]:
    """Every page of a list, from the query ``first`` on.

    ``following`` takes a page and the number of rows so far, and returns the query changes for the next
    page; None after the last. Raises what ``Reply.unreadable`` gives when a query repeats, or after
    ``most_pages``.
    """
    pages: list[Reply] = []
    asked: list[Query] = []
    change: Query | None = {}
    while change is not None:
        query = {**first, **change}
        if query in asked or len(pages) >= most_pages:
            raise pages[-1].unreadable(f"a list without an end (of more than {len(pages)} pages)")
        asked.append(query)
        pages.append(await ask(query))
        change = following(pages[-1], len(pages))
    return pages
