"""Talks to Scaleway: types, stock, servers and their actions."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

import structlog
from pydantic import Field

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    ReleaseRefused,
)
from broker.domain.basics.machines import Access
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import OfferBatch
from providers.client import Entry, SellerClient, ordered, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import Name, PayloadModel, join_batches, ordered_units
from providers.scaleway.leftovers import Leftovers
from providers.scaleway.offers import NAME, ZoneFeed, count_of, parse_offers, region_of
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_unless_single

log = structlog.get_logger(__name__)

USER = "root"
KEY_TAG = "AUTHORIZED_KEY="
"""Begins a tag of a server with a public key that opens it, where underscores stand for spaces."""
PAGE_ROWS = 100
BLOCK_VOLUME = "sbs_volume"
BYTES_PER_GB = 10**9
MOST_PAGES = 40
STOPPED_IS_FAILED_S = 300.0
NEVER_RAN_S = 900.0
"""A server that stopped for good so soon after its creation never ran."""
POLICY = HttpPolicy(concurrency=4)

_ERRORS: Mapping[str, type[ProviderError]] = {
    "denied_authentication": CredentialsRejected,
    "permissions_denied": CredentialsRejected,
    "out_of_stock": InsufficientCapacity,
    "quotas_exceeded": QuotaExceeded,
    "too_many_requests": RateLimited,
}
_MISSING = {"not_found", "unknown_resource"}
_BUSY = {"transient_state", "locked", "precondition_failed", "conflict", "invalid_request_error"}
_NO_CAPACITY = re.compile(
    r"out of stock|shortage|(no|not enough|insufficient) (more )?(capacity|stock)", re.IGNORECASE
)


def classify(reply: Reply) -> ProviderError:
    """The typed error of ``{"type", "message", …}`` by its type; older quota errors by their message."""
    body = reply.json_or_none()
    if reply.status == 429 or not isinstance(body, dict):
        return classify_by_status(reply)
    kind, message = str(body.get("type") or ""), str(body.get("message") or "")
    text = f"{kind}: {message or body.get('resource') or ''}".strip(": ")
    if kind in _ERRORS:
        return _ERRORS[kind](NAME, text)
    if "quota" in message.lower():
        return QuotaExceeded(NAME, text)
    if reply.operation is Operation.ORDER and _NO_CAPACITY.search(message):
        return InsufficientCapacity(NAME, text)
    if kind in _MISSING and reply.operation in {Operation.LEASES, Operation.RELEASE}:
        return LeaseNotFound(NAME, text)
    if kind in _BUSY and reply.operation is Operation.RELEASE and reply.status < 500:
        return ReleaseRefused(NAME, text, forever=False)
    return classify_by_status(reply, text)


class _Volume(PayloadModel):
    id: Name
    volume_type: str = ""

    @property
    def is_block(self) -> bool:
        """Whether the volume is a block volume, which a termination only detaches."""
        return self.volume_type == BLOCK_VOLUME


class _Address(PayloadModel):
    address: str = ""
    family: str = "inet"


class _Server(PayloadModel):
    id: Name
    name: str = ""
    commercial_type: str = ""
    state: Annotated[str, Words(lambda: _STATES)] = ""
    state_detail: str | None = None
    zone: str = ""
    tags: tuple[str, ...] = ()
    creation_date: datetime | None = None
    modification_date: datetime | None = None
    volumes: dict[str, _Volume] = Field(default_factory=dict)
    public_ips: tuple[_Address, ...] = ()
    private_ip: str | None = None

    @property
    def host(self) -> str:
        """Its first public address of version 4; empty before it has one."""
        return next((one.address for one in self.public_ips if one.family == "inet"), "")


class _ServerAnswer(PayloadModel):
    server: _Server


class _ServersAnswer(PayloadModel):
    servers: tuple[_Server, ...]


_STATES: Mapping[str, LeaseState] = {
    "starting": LeaseState.PROVISIONING,
    "running": LeaseState.ACTIVE,
    "stopping": LeaseState.ENDING,
    "stopped": LeaseState.PROVISIONING,
    "stopped in place": LeaseState.ACTIVE,
    "stopped_in_place": LeaseState.ACTIVE,
    "locked": LeaseState.ACTIVE,
}


def _lease(server: _Server, reply: Reply) -> Lease:
    """A server as a lease.

    A server is stopped until it is powered on; if it stays stopped, there was no capacity.
    """
    state = _STATES.get(server.state, LeaseState.UNKNOWN)
    if server.state == "stopped" and _stands_s(server, reply) > STOPPED_IS_FAILED_S:
        state = LeaseState.FAILED
    return Lease(
        provider=NAME,
        reference=server.id,
        state=state,
        tag=server.name or None,
        sku=server.commercial_type,
        region=region_of(server.zone),
        detail=": ".join(word for word in (server.state, server.state_detail) if word),
        machines=(Access(server.host, USER, private_host=server.private_ip),) if server.host else (),
    )


def _never_ran(server: _Server) -> bool:
    """Whether a stopped server was never started after its creation."""
    made, changed = server.creation_date, server.modification_date
    if made is None or changed is None or None in {made.tzinfo, changed.tzinfo}:
        return False
    return (changed - made).total_seconds() <= NEVER_RAN_S


def _stands_s(server: _Server, reply: Reply) -> float:
    """Seconds since the server last changed, by the provider's clock; 0 when unknown."""
    changed = server.modification_date
    with contextlib.suppress(ValueError, TypeError):
        asked = parsedate_to_datetime(reply.headers.get("date", ""))
        if changed is not None and changed.tzinfo is not None:
            return (asked - changed).total_seconds()
    return 0.0


class Scaleway(SellerClient):
    """Client of Instances in the zones that the settings name."""

    provider = NAME
    longest_tag = 128
    entry = Entry.KEYS
    takes_script = True

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        key = {"X-Auth-Token": settings.secret("secret_key")}
        super().__init__(settings, http_factory, classify, POLICY, key)
        self._zones = tuple(zone.strip() for zone in settings.options["zones"].split(",") if zone.strip())
        self._leftovers = Leftovers(self._http, f"{settings.tag_prefix}-ended")

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Types of every zone with their stock there."""
        batches = []
        for zone in self._zones:
            types = await self._catalogue(zone, "products/servers")
            stock = await self._catalogue(zone, "products/servers/availability")
            batches.append(parse_offers(ZoneFeed(zone, types, stock), observed_at))
        return join_batches(batches)

    async def _catalogue(self, zone: str, path: str) -> tuple[bytes, ...]:
        """Every page of one of the two lists."""
        pages: list[bytes] = []
        seen = 0
        while True:
            reply = await self._page(zone, path, Operation.OFFERS, len(pages) + 1)
            rows = count_of(reply.body)
            pages.append(reply.body)
            seen += rows
            if _is_last(reply, rows, seen, len(pages)):
                return tuple(pages)

    async def _page(
        self, zone: str, path: str, operation: Operation, number: int, name: str | None = None
    ) -> Reply:
        params = {"per_page": str(PAGE_ROWS), "page": str(number)} | ({"name": name} if name else {})
        return await self._call("GET", f"/instance/v1/zones/{zone}/{path}", operation, params=params)

    async def reserve(self, order: Order) -> Lease:
        """Creates one server with the tag as name and powers it on; if that fails, deletes it again.

        Keys are tags of the server; its script is written between the two calls.
        """
        refuse_unless_single(order, NAME, self.longest_tag)
        zone = order.offer.reference["zone"]
        if not zone:
            raise OrderRejected(NAME, "the offer names no zone")
        try:
            reply = await self._order(f"/instance/v1/zones/{zone}/servers", self._order_body(order))
            server = reply.read(_ServerAnswer).server
        except OutcomeUnknown:
            await self._start_lost(zone, order)
            raise
        await self._start_or_undo(zone, server, order.script)
        return ordered(order, server.id)

    def _order_body(self, order: Order) -> dict[str, Any]:
        options = self._settings.options
        body: dict[str, Any] = {
            "name": order.tag,
            "commercial_type": order.offer.reference["commercial_type"],
            "image": options["image"],
            "tags": [order.tag, *(KEY_TAG + key.line.replace(" ", "_") for key in order.keys)],
            "dynamic_ip_required": True,
            "protected": False,
        }
        size_gb = ordered_units(order.offer.disk, order.offer.sku.disk_gb)
        if size_gb is not None:
            body["volumes"] = {"0": {"volume_type": BLOCK_VOLUME, "size": size_gb * BYTES_PER_GB}}
        return {**body, "project": options["project_id"]} if options["project_id"] else body

    async def _start(self, zone: str, server_id: str, script: str) -> None:
        """Writes the script for cloud-init, and powers the server on."""
        if script:
            await self._http.request(
                "PATCH",
                f"/instance/v1/zones/{zone}/servers/{server_id}/user_data/cloud-init",
                operation=Operation.ORDER,
                repeatable=True,
                content=script.encode(),
                headers={"Content-Type": "text/plain"},
            )
        await self._act(zone, server_id, "poweron", Operation.ORDER, repeatable=False)

    async def _act(
        self, zone: str, server_id: str, action: str, operation: Operation, *, repeatable: bool
    ) -> None:
        path = f"/instance/v1/zones/{zone}/servers/{server_id}/action"
        await self._call("POST", path, operation, repeatable=repeatable, json={"action": action})

    async def _start_lost(self, zone: str, order: Order) -> None:
        """Completes an order whose create answer was lost, if its server is listed.

        OutcomeUnknown otherwise.
        """
        with contextlib.suppress(ProviderError):
            reply = await self._page(zone, "servers", Operation.LEASES, 1, order.tag)
            for server in reply.read(_ServersAnswer).servers:
                if server.name == order.tag and server.state == "stopped":
                    await self._start(zone, server.id, order.script)

    async def _start_or_undo(self, zone: str, server: _Server, script: str) -> None:
        try:
            await self._start(zone, server.id, script)
        except OutcomeUnknown:
            raise
        except ProviderError:
            try:
                await self._delete(zone, server)
            except ProviderError:
                raise OutcomeUnknown(NAME, f"server {server.id} is neither started nor deleted") from None
            raise

    async def _find(self, reference: str, region: str) -> tuple[str, _Server, Reply]:
        """The server and its zone: the zones of ``region`` (or all) are tried in turn."""
        for zone in self._zones:
            if region in {"", region_of(zone)}:
                path = f"/instance/v1/zones/{zone}/servers/{reference}"
                with contextlib.suppress(LeaseNotFound):
                    reply = await self._held(path)
                    return zone, reply.read(_ServerAnswer).server, reply
        raise LeaseNotFound(NAME, f"no server {reference} in any zone of {region or 'the account'}")

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One server."""
        _, server, reply = await self._find(reference, region)
        return _lease(server, reply)

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every server of the account in the configured zones.

        Unfinished orders and releases are completed.
        """
        found: list[Lease] = []
        for zone in self._zones:
            await self._leftovers.sweep(zone)
            pages = seen = rows = 0
            while True:
                pages += 1
                reply = await self._page(zone, "servers", Operation.LEASES, pages)
                servers = reply.read(_ServersAnswer).servers
                for server in servers:
                    lease = _lease(server, reply)
                    await self._end_if_never_started(zone, server, lease)
                    found.append(lease)
                rows = len(servers)
                seen += rows
                if _is_last(reply, rows, seen, pages):
                    break
        return tuple(found)

    async def _end_if_never_started(self, zone: str, server: _Server, lease: Lease) -> None:
        """Deletes a server of a failed order, which nobody would release, because its storage costs money.

        Our servers carry their name as a tag as well, as ``reserve`` sets it.
        """
        is_ours = server.name in server.tags and server.name.startswith(f"{self._settings.tag_prefix}-")
        if lease.state is LeaseState.FAILED and is_ours and _never_ran(server):
            try:
                await self._delete(zone, server)
            except ProviderError as error:
                log.warning("server_left", provider=NAME, zone=zone, server=server.id, error=str(error))

    async def _give_back(self, lease: Lease) -> None:
        """Terminates a server; a stopped one cannot be terminated and is deleted with its volumes.

        A termination only detaches block volumes; later lists delete them.
        """
        zone, server, _ = await self._find(lease.reference, lease.region)
        if server.state == "stopped":
            await self._delete(zone, server)
        elif server.state != "stopping":
            blocks = [volume.id for volume in server.volumes.values() if volume.is_block]
            await self._leftovers.mark(zone, blocks)
            await self._act(zone, server.id, "terminate", Operation.RELEASE, repeatable=True)

    async def _delete(self, zone: str, server: _Server) -> None:
        await self._leftovers.mark(zone, [v.id for v in server.volumes.values() if v.is_block])
        await self._leftovers.remove(f"/instance/v1/zones/{zone}/servers/{server.id}")
        for volume in server.volumes.values():
            api = "block/v1" if volume.is_block else "instance/v1"
            await self._leftovers.remove(f"/{api}/zones/{zone}/volumes/{volume.id}")


def _is_last(reply: Reply, rows: int, seen: int, pages: int) -> bool:
    """Whether a page is the last one: by the total count, else because it is short."""
    total = reply.headers.get("x-total-count", "")
    last = seen >= int(total) if total.isdecimal() else rows < PAGE_ROWS
    if last or not rows:
        return True
    if pages >= MOST_PAGES:
        raise reply.unreadable("the pages of a list have no end")
    return False
