"""What the clients of sellers have in common; an adapter adds its seller's paths, bodies and words.

``SellerClient`` is the one base, and it stays one level deep: it opens the connection, sends every call
through ``_call``, and knows that giving back what is gone is a success. What an order has just become
(``ordered``) and lists of several pages (``all_pages``) are functions beside it, for whoever needs them.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from broker.domain.basics.errors import (
    LeaseNotFound,
    LeasesUnreadable,
    OrderRejected,
    PayloadUnreadable,
    ProviderError,
)
from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Idempotency, Lease, LeaseState, Order
from broker.domain.market.offer import Offer, OfferBatch
from providers.http import Classify, HttpFactory, HttpPolicy, Operation, Reply
from providers.spec import Missing, ProviderSettings

Query = Mapping[str, str]


def bearer(settings: ProviderSettings, credential: str) -> dict[str, str]:
    """The header of a bearer key; none where there is no key (open feeds)."""
    key = settings.secret(credential)
    return {"Authorization": f"Bearer {key}"} if key else {}


P = ParamSpec("P")
Told = TypeVar("Told")
Listing = Callable[P, Coroutine[Any, Any, Told]]


def tells_all_or_fails(list_leases: Listing[P, Told]) -> Listing[P, Told]:
    """Marks what reads a list of leases: an answer that is no list never means that leases are gone.

    Raises LeasesUnreadable, with endpoint and answer, for a list that is not found, refused or unreadable.
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
    """What every seller's client can say of orders, prices and names.

    ``tells_price``: its leases by the hour carry what they are charged at. A seller whose list is long
    overrides ``quote`` with a shorter question. ``longest_tag``: characters that it keeps of a name, 63 (a
    DNS label) where more are allowed or nothing is said. ``missing``: settings without which some or all of
    its orders are refused here; what is held there is still seen and released.
    """

    missing: tuple[Missing, ...] = ()
    tells_price = False
    longest_tag = 63

    def barred(self, offer: Offer) -> str:
        """Why no order of ``offer`` is sent as the seller is configured; empty where one is."""
        lacking = [str(one) for one in self.missing if one.bars(offer)]
        return f"nothing was ordered, a setting is missing: {'; '.join(lacking)}" if lacking else ""

    @abstractmethod
    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Everything on sale now."""

    async def quote(self, offer: Offer, asked_at: datetime) -> Offer | None:
        """``offer`` as it is on sale now; None when it is not."""
        return found_again(offer, await self.list_offers(asked_at))


def found_again(offer: Offer, batch: OfferBatch) -> Offer | None:
    """What ``batch`` shows under the id of ``offer``; None when it does not."""
    return next((found for found in batch.offers if found.offer_id == offer.offer_id), None)


class SellerClient(Seller):
    """One seller's connection and settings, and the calls that every adapter makes.

    Subclasses set ``provider``. A seller whose calls need a signature or a token, or that hides errors
    behind HTTP 200, overrides ``_call``: everything goes through it.
    """

    provider: str
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
        self._http = http_factory(
            self.provider,
            settings.base_url,
            classify,
            settings.tuned(policy),
            headers=headers,
            secrets=settings.secrets,
        )

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    def paused_until(self) -> Mapping[str, datetime]:
        """Until when its breakers send nothing, by kind of call."""
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
        """One call; raises what ``classify`` makes of an error."""
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
        """What is on sale."""
        return await self._call("GET", path, Operation.OFFERS, params=params)

    async def _held(self, path: str, params: Mapping[str, Any] | None = None) -> Reply:
        """What is held."""
        return await self._call("GET", path, Operation.LEASES, params=params)

    async def _order(self, path: str, body: Any) -> Reply:
        """An order, sent at most once."""
        return await self._call("POST", path, Operation.ORDER, json=body)

    async def _end(self, method: str, path: str, body: Any = None) -> Reply:
        """A call that ends something; doing it twice changes nothing more."""
        return await self._call(method, path, Operation.RELEASE, repeatable=True, json=body)

    def nodes_per_order(self, offer: Offer) -> int | None:
        """One: a call makes one machine."""
        return 1

    async def release(self, lease: Lease) -> None:
        """Gives back; what the seller does not know (any more) is gone, a success."""
        with contextlib.suppress(LeaseNotFound):
            await self._give_back(lease)

    @abstractmethod
    async def _give_back(self, lease: Lease) -> None:
        """Ends one lease; LeaseNotFound when it is gone."""


def ordered(
    order: Order,
    reference: str,
    state: LeaseState = LeaseState.PROVISIONING,
    window: Window | None = None,
) -> Lease:
    """The lease that ``order`` has just become, where the answer says little more than its id."""
    return Lease(
        provider=order.offer.provider,
        reference=reference,
        state=state,
        tag=order.tag,
        nodes=order.nodes,
        sku=order.offer.sku.name,
        region=order.offer.region,
        window=window,
    )


async def all_pages(
    ask: Callable[[Query], Awaitable[Reply]],
    following: Callable[[Reply, int], Query | None],
    first: Query,
    most_pages: int,
) -> list[Reply]:
    """Every page of a list; ``first`` is the query of its first page.

    ``following``: of a page and how many there are by then, what changes in the query for the next one;
    None after the last. Raises what ``Reply.unreadable`` gives when a query comes again, or after
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
