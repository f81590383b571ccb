"""Talks to Crusoe: signed calls, machines, and the operations behind them."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

from broker.catalogue import load_gpus
from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    OutcomeUnknown,
    PayloadUnreadable,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.basics.machines import Access, with_keys
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer, OfferBatch
from broker.domain.market.sku import Sku
from broker.provider_facts import load_provider_facts
from providers.client import Entry, Query, SellerClient, all_pages, ordered, tells_all_or_fails
from providers.crusoe.offers import NAME, Market, parse_offers
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import Name, PayloadModel
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_unless_single

API = "/v1alpha5"
USER, HOME = "ubuntu", "/home/ubuntu"
MOST_PAGES = 100
PARTITION = "broker"
SIGNATURE_VERSION = "1.0"
OUT_OF_STOCK = "out_of_stock"
FATE_WAITS_S = (0.0, 0.2, 0.5)
"""Seconds to wait before each check of an order's operation."""
POLICY = HttpPolicy(concurrency=4)
"""No limits are published."""

_QUOTA = re.compile(r"quota|limit (exceeded|reached)|insufficient (funds|balance|credit)", re.IGNORECASE)
_NO_CAPACITY = re.compile(r"out.of.stock|no capacity|insufficient capacity", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """The typed error of ``{"code", "message"}``; a lack of capacity only shows in operations."""
    body = reply.json_or_none()
    if reply.status == 429 or not isinstance(body, dict):
        return classify_by_status(reply)
    text = f"{body.get('code') or ''}: {body.get('message') or ''}"[:300]
    if reply.status == 409 and reply.operation is Operation.RELEASE:
        return ReleaseRefused(NAME, text, forever=False)
    if reply.operation is Operation.ORDER and 400 <= reply.status < 500:
        if _QUOTA.search(text):
            return QuotaExceeded(NAME, text)
        if _NO_CAPACITY.search(text):
            return InsufficientCapacity(NAME, text)
    return classify_by_status(reply, text)


def signed_headers(
    access_key: str,
    secret_key: str,
    method: str,
    path: str,
    at: datetime,
    query: Mapping[str, str] | None = None,
) -> Mapping[str, str]:
    """The headers of a signed call; ValueError when the secret is not base64url.

    The signature is HMAC-SHA256 with the decoded secret over path (with the API's version), sorted query,
    method and timestamp, each followed by a newline; base64url without padding.
    """
    timestamp = at.astimezone(UTC).replace(microsecond=0).isoformat()
    sent = urlencode(sorted((query or {}).items()))
    signature = sign(secret_key, f"{path}\n{sent}\n{method}\n{timestamp}\n")
    return {
        "X-Crusoe-Timestamp": timestamp,
        "Authorization": f"Bearer {SIGNATURE_VERSION}:{access_key}:{signature}",
    }


def sign(secret_key: str, text: str) -> str:
    """The signature of ``text``."""
    try:
        secret = base64.urlsafe_b64decode(secret_key + "=" * (-len(secret_key) % 4))
    except binascii.Error:
        raise ValueError("the secret key is not base64url") from None
    digest = hmac.new(secret, text.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class _About(PayloadModel):
    """The metadata or the result of an operation."""

    id: str | None = None
    code: str | None = None
    message: str | None = None


class _Work(PayloadModel):
    """An operation."""

    operation_id: Name
    state: str = ""
    metadata: _About | None = None
    result: _About | None = None

    @property
    def machine(self) -> str:
        """Id of the machine that the operation creates or ends; empty when it is not named."""
        return next((about.id for about in (self.metadata, self.result) if about and about.id), "")

    def require_unfailed(self) -> None:
        """Raises the error of a failed operation."""
        if self.state.upper() != "FAILED":
            return
        code, message = (self.result.code, self.result.message) if self.result else (None, None)
        text = f"{code or 'failed'}: {message or 'no reason given'}"[:300]
        if code == OUT_OF_STOCK:
            raise InsufficientCapacity(NAME, text)
        raise QuotaExceeded(NAME, text) if _QUOTA.search(text) else OrderRejected(NAME, text)


class _Started(PayloadModel):
    operation: _Work


class _Works(PayloadModel):
    items: tuple[_Work, ...] = ()


def _word(state: str) -> str:
    """The state without its prefix: ``RUNNING`` and ``STATE_RUNNING`` are the same."""
    return state.upper().removeprefix("STATE_")


class _Address(PayloadModel):
    address: str = ""


class _Addresses(PayloadModel):
    public_ipv4: _Address = _Address()
    private_ipv4: _Address = _Address()


class _Interface(PayloadModel):
    ips: tuple[_Addresses, ...] = ()


class _Machine(PayloadModel):
    id: Name
    name: str | None = None
    type: str = ""
    location: str = ""
    state: Annotated[str, Words(lambda: _STATES, _word)] = ""
    network_interfaces: tuple[_Interface, ...] = ()


class _Machines(PayloadModel):
    items: tuple[_Machine, ...]
    next_page_token: str = ""


class _Partition(PayloadModel):
    id: Name
    name: str = ""
    ib_network_id: str = ""


class _Partitions(PayloadModel):
    items: tuple[_Partition, ...]


_STATES: Mapping[str, LeaseState] = {
    "CREATING": LeaseState.PROVISIONING,
    "STARTING": LeaseState.PROVISIONING,
    "RUNNING": LeaseState.ACTIVE,
    "STOPPING": LeaseState.ACTIVE,
    "STOPPED": LeaseState.ACTIVE,
    "DELETING": LeaseState.ENDING,
    "DELETED": LeaseState.ENDED,
}
"""A stopped machine still belongs to the project and is billed."""


def _lease(machine: _Machine) -> Lease:
    return Lease(
        provider=NAME,
        reference=machine.id,
        state=_STATES.get(_word(machine.state), LeaseState.UNKNOWN),
        tag=machine.name,
        sku=machine.type,
        region=machine.location,
        detail=machine.state,
        machines=_access(machine),
    )


def _access(machine: _Machine) -> tuple[Access, ...]:
    """The machine at the first of its public addresses; nothing before it has one."""
    for interface in machine.network_interfaces:
        for told in interface.ips:
            if told.public_ipv4.address:
                private = told.private_ipv4.address or None
                return (Access(told.public_ipv4.address, USER, private_host=private),)
    return ()


class Crusoe(SellerClient):
    """Client of one project. ``now`` dates signatures; ``sleep`` waits for operations."""

    provider = NAME
    longest_tag = 63
    entry = Entry.KEYS
    takes_script = True

    def __init__(
        self,
        settings: ProviderSettings,
        http_factory: HttpFactory,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(settings, http_factory, classify, POLICY)
        self._now, self._sleep = now, sleep
        self._project = f"{API}/projects/{settings.secret('project_id')}"
        self._machines = f"{self._project}/compute/vms/instances"

    async def _call(self, method: str, path: str, operation: Operation, **more: Any) -> Reply:
        """One signed call; the signature covers ``path`` and the query."""
        access, secret = self._settings.secret("access_key"), self._settings.secret("secret_key")
        try:
            headers = signed_headers(access, secret, method, path, self._now(), more.get("params"))
        except ValueError as error:
            raise CredentialsRejected(NAME, str(error)) from None
        return await super()._call(method, path, operation, headers=headers, **more)

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Types with capacity, by location, and the networks that join them."""
        paths = (
            f"{self._project}/compute/vms/types",
            f"{API}/capacities",
            f"{self._project}/networking/ib-networks",
        )
        bodies = [(await self._on_sale(path)).body for path in paths]
        return parse_offers(Market(*bodies), observed_at)

    def nodes_per_order(self, offer: Offer) -> int | None:
        """One: several machines in one call could not be found again reliably, since its answer is barely
        documented."""
        return 1

    async def reserve(self, order: Order) -> Lease:
        """Creates a machine named by the tag, in our partition of the network where there is one.

        It takes one key, so that the others come with the script.
        """
        refuse_unless_single(order, NAME, self.longest_tag)
        note, options = order.offer.reference, self._settings.options
        partition = await self._partition(note["ib_network_id"]) if note["ib_network_id"] else ""
        script = with_keys(order.script, order.keys[1:], HOME)
        body: dict[str, Any] = {
            "name": order.tag,
            "type": note["type"],
            "location": note["location"],
            "image": options["image"] or image_of(order.offer.sku),
            "ssh_public_key": order.keys[0].line if order.keys else options["ssh_public_key"],
            "reservation_specification": {"selection_strategy": "on_demand"},
            **({"startup_script": script} if script else {}),
            **({"host_channel_adapters": [{"ib_partition_id": partition}]} if partition else {}),
        }
        started = (await self._order(self._machines, body)).read(_Started).operation
        work = await self._fate(started)
        return ordered(order, started.machine or work.machine or await self._by_name(order.tag))

    async def _partition(self, network: str) -> str:
        """The broker's partition of the network; created if missing, free of charge, and kept."""
        path = f"{self._project}/networking/ib-partitions"
        body = {"name": PARTITION, "ib_network_id": network}
        try:
            reply = await self._call("GET", path, Operation.ORDER)
            for found in reply.read(_Partitions).items:
                if (found.name, found.ib_network_id) == (PARTITION, network):
                    return found.id
            made = await self._call("POST", path, Operation.ORDER, repeatable=True, json=body)
            return made.read(_Partition).id
        except PayloadUnreadable as error:
            raise ProviderUnavailable(NAME, f"no InfiniBand partition: {error}") from error

    async def _fate(self, work: _Work) -> _Work:
        """The latest state of the operation; raises the error of a failure. Unreadable checks are ignored."""
        for wait_s in FATE_WAITS_S:
            work.require_unfailed()
            if work.state.upper() == "SUCCEEDED":
                return work
            await self._sleep(wait_s)
            try:
                path = f"{self._machines}/operations/{work.operation_id}"
                work = (await self._held(path)).read(_Work)
            except ProviderError:
                return work
        work.require_unfailed()
        return work

    async def _by_name(self, tag: str) -> str:
        """Id of the machine with that name, for an operation that named none."""
        try:
            found = next((lease for lease in await self.list_leases() if lease.tag == tag), None)
        except ProviderError as error:
            raise OutcomeUnknown(
                NAME, f"the order was accepted, but its machine is unknown: {error}"
            ) from error
        if found is None:
            raise OutcomeUnknown(NAME, "the order was accepted, but its machine is not listed yet")
        return found.reference

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One machine; if there is none, raises the error of its failed creation, if it failed."""
        try:
            reply = await self._held(f"{self._machines}/{reference}")
        except LeaseNotFound:
            failed = await self._failed(reference)
            if failed is None:
                raise
            return failed
        return _lease(reply.read(_Machine))

    async def _failed(self, reference: str) -> Lease | None:
        reply = await self._held(f"{self._machines}/operations")
        for work in reply.read(_Works).items:
            if work.machine == reference and work.state.upper() == "FAILED":
                detail = (work.result.code if work.result else None) or "failed"
                return Lease(NAME, reference, LeaseState.FAILED, detail=detail)
        return None

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every machine of the project, page by page."""
        pages = await all_pages(partial(self._held, self._machines), _next_page, {}, MOST_PAGES)
        return tuple(_lease(machine) for page in pages for machine in page.read(_Machines).items)

    async def _give_back(self, lease: Lease) -> None:
        await self._end("DELETE", f"{self._machines}/{lease.reference}")


def _next_page(reply: Reply, _: int) -> Query | None:
    token = reply.read(_Machines).next_page_token
    return {"next_token": token} if token else None


def image_of(sku: Sku) -> str:
    """The image with drivers and Docker for the GPU's form and vendor."""
    images = load_provider_facts(NAME).search["images"]
    vendor = load_gpus()[sku.gpu].vendor.lower()
    return str(images[vendor] if vendor in images else images["sxm" if "-SXM" in sku.gpu else "pcie"])
