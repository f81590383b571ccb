"""Talks to Prime Intellect: availability and pods."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, TypeVar

from broker.domain.basics.errors import (
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    PayloadUnreadable,
    PriceAboveLimit,
    ProviderError,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.basics.machines import Access
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer, OfferBatch, Tier
from providers.client import AccountKey, Entry, KeyRegister, bearer, key_line, ordered, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import GpuCount, Instant, Name, PayloadModel, ordered_units
from providers.prime_intellect.offers import NAME, Page, parse_offers, read_page
from providers.rows import access_at, rate_of
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_long_tag

PAGE_SIZE = 100
MOST_PAGES = 100
NODE_GPUS = 8
USER = "root"
POLICY = HttpPolicy(concurrency=4)

_NO_STOCK = re.compile(
    r"out of stock|no capacity|(not enough|insufficient) (capacity|resources)|sold out", re.IGNORECASE
)
_NO_STOCK_LOOSELY = re.compile(r"capacity|unavailable|not available|no longer available", re.IGNORECASE)
_NO_QUOTA = re.compile(r"quota|limit (reached|exceeded)|balance|insufficient (funds|credit)", re.IGNORECASE)
_TOO_DEAR = re.compile(r"exceeds? max_?price", re.IGNORECASE)
_GONE = re.compile(r"not found|does not exist|no such|already (terminated|deleted)", re.IGNORECASE)
_TOO_EARLY = re.compile(r"provisioning|not (yet )?(ready|active)|in progress", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """The typed error of ``{"errors": [{"param", "details"}]}`` or ``{"detail"}``.

    There are no codes, so words decide.
    """
    words = _words(reply.json_or_none())
    if reply.status in {401, 402, 403, 429} or not words:
        return classify_by_status(reply, words)
    if reply.operation is Operation.ORDER:
        return _order_error(reply, words)
    if reply.status < 500 and reply.operation in {Operation.LEASES, Operation.RELEASE}:
        if _GONE.search(words):
            return LeaseNotFound(NAME, words)
        if reply.operation is Operation.RELEASE and _TOO_EARLY.search(words):
            return ReleaseRefused(NAME, words, forever=False)
    return classify_by_status(reply, words)


def _order_error(reply: Reply, words: str) -> ProviderError:
    if _NO_STOCK.search(words):
        return InsufficientCapacity(NAME, words)
    if reply.status < 500 and _TOO_DEAR.search(words):
        return PriceAboveLimit(NAME, words)
    if reply.status < 500 and _NO_QUOTA.search(words):
        return QuotaExceeded(NAME, words)
    if reply.status < 500 and _NO_STOCK_LOOSELY.search(words):
        return InsufficientCapacity(NAME, words)
    return classify_by_status(reply, words)


def _words(body: Any) -> str:
    if not isinstance(body, dict):
        return ""
    errors = body.get("errors")
    if isinstance(errors, list):
        rows = [row for row in errors if isinstance(row, dict)]
        return "; ".join(f"{row.get('param', '')}: {row.get('details', '')}" for row in rows)
    return str(body.get("detail") or "")


_PerNode = str | tuple[str | None, ...] | None
"""A text for each node, or one for a pod of one; None where a node has not booted yet."""


class _Pod(PayloadModel):
    """A pod in the answers to create, get and list."""

    id: Name
    name: str | None = None
    status: Annotated[str, Words(lambda: _STATES)] = ""
    installationStatus: Annotated[str | None, Words(lambda: _INSTALLATIONS)] = None
    installationFailure: str | None = None
    providerType: str = ""
    gpuName: str = ""
    socket: str = ""
    gpuCount: GpuCount = 0
    createdAt: Instant = None
    terminatedAt: Instant = None
    priceHr: Decimal | None = None
    sshConnection: _PerNode = None
    ip: _PerNode = None


class _Pods(PayloadModel):
    total_count: int | None = None
    data: tuple[_Pod, ...]


class _Key(PayloadModel):
    id: Name
    name: Name
    publicKey: str


class _Keys(PayloadModel):
    total_count: int | None = None
    data: tuple[_Key, ...]


Listed = TypeVar("Listed", _Pods, _Keys)


_STATES: Mapping[str, LeaseState] = {
    "PROVISIONING": LeaseState.PROVISIONING,
    "PENDING": LeaseState.PROVISIONING,
    "ACTIVE": LeaseState.ACTIVE,
    "STOPPED": LeaseState.ACTIVE,
    "ERROR": LeaseState.FAILED,
    "DELETING": LeaseState.ENDING,
    "TERMINATED": LeaseState.ENDED,
}


_INSTALLATIONS: Mapping[str, LeaseState] = {
    "PENDING": LeaseState.PROVISIONING,
    "ACTIVE": LeaseState.PROVISIONING,
    "FINISHED": LeaseState.ACTIVE,
    "ERROR": LeaseState.FAILED,
    "TERMINATED": LeaseState.FAILED,
}
"""Installations on a pod that runs, and is billed, from the first."""


def _lease(pod: _Pod) -> Lease:
    state = _STATES.get(pod.status, LeaseState.UNKNOWN)
    if pod.status == "ACTIVE" and pod.installationStatus is not None:
        state = _INSTALLATIONS.get(pod.installationStatus, LeaseState.UNKNOWN)
    several = pod.gpuCount > NODE_GPUS and pod.gpuCount % NODE_GPUS == 0 and pod.socket.startswith("SXM")
    nodes = pod.gpuCount // NODE_GPUS if several else 1
    words = (pod.status, pod.installationStatus, pod.installationFailure)
    return Lease(
        provider=NAME,
        reference=pod.id,
        state=state,
        tag=pod.name,
        nodes=nodes,
        sku=f"{pod.providerType} {pod.gpuCount}x {pod.gpuName}".strip(),
        detail=" ".join(word for word in words if word),
        began_at=pod.createdAt,
        ended_at=pod.terminatedAt,
        price_usd_per_node_hour=rate_of(pod.priceHr, nodes),
        machines=_machines(pod),
    )


def _machines(pod: _Pod) -> tuple[Access, ...]:
    """The nodes once each of them says how it is entered, or where it is beside one that says how."""
    found = [None if text is None else access_at(text, USER) for text in _each(pod.sshConnection)]
    addresses = _each(pod.ip)
    if len(found) == 1 < len(addresses) and found[0] is not None:
        found = [None if host is None else replace(found[0], host=host) for host in addresses]
    known = tuple(one for one in found if one is not None)
    return known if len(known) == len(found) else ()


def _each(told: _PerNode) -> tuple[str | None, ...]:
    return told if isinstance(told, tuple) else (told,)


class PrimeIntellect(KeyRegister):
    """Client of availability and pods."""

    provider = NAME
    tells_price = True
    entry = Entry.KEYS
    most_keys = 1

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        super().__init__(settings, http_factory, classify, POLICY, bearer(settings, "api_key"))

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Every page of both lists: single machines, then configurations of several nodes."""
        pages = [
            *await self._pages("/api/v1/availability/gpus", is_multi_node=False),
            *await self._pages("/api/v1/availability/multi-node", is_multi_node=True),
        ]
        return parse_offers(pages, observed_at)

    async def _pages(self, path: str, *, is_multi_node: bool) -> list[Page]:
        pages: list[Page] = []
        seen = 0
        while len(pages) < MOST_PAGES:
            params = {"page": len(pages) + 1, "page_size": PAGE_SIZE}
            reply = await self._on_sale(path, params)
            pages.append(Page(reply.body, is_multi_node))
            page = read_page(reply.body)
            seen += len(page.items)
            if not page.items or seen >= page.totalCount:
                return pages
        raise PayloadUnreadable(NAME, f"{path} does not end within {MOST_PAGES} pages")

    def nodes_per_order(self, offer: Offer) -> int | None:
        """The largest configuration on sale; smaller ones can be orders of their own."""
        return max(_sizes(offer))

    async def reserve(self, order: Order) -> Lease:
        """Creates one pod with the tag as name, of the configuration with exactly that many nodes.

        It opens to the first of the order's keys: the API takes one, and no script for the others.
        """
        if order.nodes not in _sizes(order.offer):
            known = order.offer.reference["nodes"]
            raise OrderRejected(NAME, f"configurations are sold whole: {known} node(s), not {order.nodes}")
        refuse_long_tag(order, NAME, self.longest_tag)
        ids = await self.registered(order.keys[: self.most_keys])
        body = self._body(order, ids[0] if ids else self._settings.options["ssh_key_id"])
        made = _lease((await self._order("/api/v1/pods/", body)).read(_Pod))
        return ordered(order, made.reference, made.state, detail=made.detail)

    def _body(self, order: Order, key_id: str) -> dict[str, Any]:
        note, options = order.offer.reference, self._settings.options
        pod: dict[str, Any] = {
            "name": order.tag,
            "cloudId": note["cloudId"],
            "gpuType": note["gpuType"],
            "socket": note["socket"],
            "gpuCount": int(note["gpus_per_node"]) * order.nodes,
            "image": _image(note["images"], options["image"]),
        }
        copied = {name: note[name] for name in ("dataCenterId", "country", "security")}
        offer = order.offer
        chosen: dict[str, Any] = {**copied, "sshKeyId": key_id}
        chosen["diskSize"] = ordered_units(offer.disk, offer.chosen_disk_gb)
        chosen["memory"] = ordered_units(offer.memory, offer.chosen_memory_gb)
        most = order.limit_usd_per_node_hour
        if most is None and offer.tier is Tier.SPOT and note["max_price_per_node"]:
            most = offer.at_list_price().price_usd_per_node_hour
        if most is not None:
            chosen["maxPrice"] = float(most * order.nodes)
        body: dict[str, Any] = {
            "pod": {**pod, **{name: value for name, value in chosen.items() if value}},
            "provider": {"type": note["provider"]},
        }
        return {**body, "team": {"teamId": options["team_id"]}} if options["team_id"] else body

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One pod."""
        return _lease((await self._held(f"/api/v1/pods/{reference}")).read(_Pod))

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every pod of the account, page by page."""
        return tuple(_lease(pod) for page in await self._all("/api/v1/pods/", _Pods) for pod in page.data)

    async def _all(self, path: str, model: type[Listed]) -> list[Listed]:
        """The pages of a list of what the account has."""
        pages: list[Listed] = []
        rows = 0
        for _ in range(MOST_PAGES):
            reply = await self._held(path, {"offset": rows, "limit": PAGE_SIZE})
            page = reply.read(model)
            pages.append(page)
            rows += len(page.data)
            if not page.data or (page.total_count is not None and rows >= page.total_count):
                return pages
        raise reply.unreadable(f"the list {path} does not end within {MOST_PAGES} pages")

    async def account_keys(self) -> Sequence[AccountKey]:
        """The keys of the account; a pod names one."""
        pages = await self._all("/api/v1/ssh_keys/", _Keys)
        return [AccountKey(key.id, key.name, key_line(key.publicKey)) for page in pages for key in page.data]

    async def _register_key(self, name: str, line: str) -> str:
        reply = await self._key_call("POST", "/api/v1/ssh_keys/", {"name": name, "publicKey": line})
        return reply.read(_Key).id

    async def _unregister_key(self, key: AccountKey) -> None:
        await self._key_call("DELETE", f"/api/v1/ssh_keys/{key.key_id}")

    async def _give_back(self, lease: Lease) -> None:
        await self._end("DELETE", f"/api/v1/pods/{lease.reference}")


def _sizes(offer: Offer) -> tuple[int, ...]:
    """Node counts of the configurations that an offer stands for."""
    return tuple(int(nodes) for nodes in offer.reference["nodes"].split(","))


def _image(images: str, wanted: str) -> str:
    """The configured image if the configuration has it or names none, else its first."""
    known = [image for image in images.split(",") if image]
    return wanted if wanted in known or not known else known[0]
