"""Talks to Vultr: plan lists, instances, bare metals."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from broker.domain.basics.errors import (
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    ProviderError,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.basics.machines import Access
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import OfferBatch
from providers.client import (
    AccountKey,
    Entry,
    KeyRegister,
    Query,
    all_pages,
    bearer,
    key_line,
    tells_all_or_fails,
)
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import Name, PayloadModel, join_batches
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_unless_single
from providers.vultr.offers import NAME, parse_offers

USER = "root"
NO_ADDRESS = "0.0.0.0"  # noqa: S104  what a machine without an address shows
KEYS = "ssh-keys"
PAGE_ROWS = 500
MOST_PAGES = 40
POLICY = HttpPolicy(any_interval_s=0.05, backoff_s=0.5)

INSTANCES, BARE_METALS = "instances", "bare-metals"
_ROW_KEY = {INSTANCES: "instance", BARE_METALS: "bare_metal"}

_NO_CAPACITY = re.compile(
    r"not available in (the selected|this) (region|location)|sold out|out of (stock|capacity)"
    r"|(no|not enough|insufficient) (available )?(capacity|stock)",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"maximum (number|monthly)|instance limit|limit (has been )?reached|support request|instance cost"
    r"|insufficient (funds|balance|credit)|billing",
    re.IGNORECASE,
)
_GONE = re.compile(
    r"pending destruction|not found|does not exist|invalid (instance|server|bare[- ]?metal)", re.IGNORECASE
)


def classify(reply: Reply) -> ProviderError:
    """The typed error of ``{"error", "status"}``: capacity, quota and bad orders are all 400 and differ in
    words."""
    body = reply.json_or_none()
    if reply.status in {401, 403, 429} or not isinstance(body, dict):
        return classify_by_status(reply)
    text = str(body.get("error") or "")
    if reply.operation is Operation.ORDER and reply.status < 500:
        return _order_error(text, reply)
    if reply.operation is Operation.RELEASE and "locked" in text.lower():
        return ReleaseRefused(NAME, text, forever=False)
    if reply.operation in {Operation.RELEASE, Operation.LEASES} and _GONE.search(text):
        return LeaseNotFound(NAME, text)
    return classify_by_status(reply, text)


def _order_error(text: str, reply: Reply) -> ProviderError:
    if _NO_CAPACITY.search(text):
        return InsufficientCapacity(NAME, text)
    if _QUOTA.search(text):
        return QuotaExceeded(NAME, text)
    return classify_by_status(reply, text)


class _Links(PayloadModel):
    next: str | None = None


class _Meta(PayloadModel):
    links: _Links = _Links()


class _Page(PayloadModel):
    """The pagination fields of every list."""

    meta: _Meta | None = None


class _Server(PayloadModel):
    """An instance or a bare metal; the latter has only ``status``."""

    id: Name
    status: Annotated[str, Words(lambda: _STATES)] = ""
    server_status: str | None = None
    label: str | None = None
    plan: str = ""
    region: str = ""
    main_ip: str = ""
    internal_ip: str = ""


class _InstanceAnswer(PayloadModel):
    instance: _Server


class _BareMetalAnswer(PayloadModel):
    bare_metal: _Server


class _Key(PayloadModel):
    id: Name
    name: str = ""
    ssh_key: str = ""


class _KeyAnswer(PayloadModel):
    ssh_key: _Key


class _KeysAnswer(_Page):
    ssh_keys: tuple[_Key, ...]


class _InstancesAnswer(_Page):
    instances: tuple[_Server, ...]


class _BareMetalsAnswer(_Page):
    bare_metals: tuple[_Server, ...]


_STATES: Mapping[str, LeaseState] = {
    "pending": LeaseState.PROVISIONING,
    "active": LeaseState.ACTIVE,
    "resizing": LeaseState.ACTIVE,
    "failed": LeaseState.FAILED,
}


def _lease(server: _Server) -> Lease:
    state = _STATES.get(server.status, LeaseState.UNKNOWN)
    if state is LeaseState.ACTIVE and server.server_status == "installingbooting":
        state = LeaseState.PROVISIONING
    return Lease(
        provider=NAME,
        reference=server.id,
        state=state,
        tag=server.label or None,
        sku=server.plan,
        region=server.region,
        detail=server.status,
        machines=_machines(server),
    )


def _machines(server: _Server) -> tuple[Access, ...]:
    if server.main_ip in {"", NO_ADDRESS}:
        return ()
    return (Access(server.main_ip, USER, private_host=server.internal_ip or None),)


class Vultr(KeyRegister):
    """Client of virtual and bare-metal machines; ids are unique over both."""

    provider = NAME
    longest_tag = 128
    entry = Entry.KEYS
    takes_script = True

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        super().__init__(settings, http_factory, classify, POLICY, bearer(settings, "api_key"))

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Every plan of both lists; neither list needs a key."""
        virtual = await self._pages("plans", Operation.OFFERS, {"type": "all"})
        metal = await self._pages("plans-metal", Operation.OFFERS)
        return join_batches(parse_offers(reply.body, observed_at) for reply in (*virtual, *metal))

    async def _pages(self, path: str, operation: Operation, asked: Query | None = None) -> list[Reply]:
        """Every page of a list, by its cursors."""
        first = {**(asked or {}), "per_page": str(PAGE_ROWS)}
        ask = partial(self._call, "GET", f"/v2/{path}", operation)
        return await all_pages(lambda query: ask(params=query), _next_page, first, MOST_PAGES)

    async def reserve(self, order: Order) -> Lease:
        """Creates one machine with the tag as label."""
        refuse_unless_single(order, NAME, self.longest_tag)
        endpoint = order.offer.reference["endpoint"]
        if endpoint not in _ROW_KEY:
            raise OrderRejected(NAME, f"the offer has no order endpoint ({endpoint!r})")
        own = self._settings.options["ssh_key_id"]
        keys = await self.registered(order.keys) or ([own] if own else [])
        return _lease(_one(await self._order(f"/v2/{endpoint}", self._order_body(order, keys)), endpoint))

    def _order_body(self, order: Order, keys: Sequence[str]) -> dict[str, Any]:
        script = base64.b64encode(order.script.encode()).decode()
        return {
            "region": order.offer.reference["region"],
            "plan": order.offer.reference["plan"],
            "os_id": int(self._settings.options["os_id"]),
            "label": order.tag,
            "tags": [order.tag],
            "sshkey_id": keys,
            "activation_email": False,
            **({"user_data": script} if script else {}),
        }

    async def account_keys(self) -> Sequence[AccountKey]:
        """The keys of the account."""
        pages = await self._pages(KEYS, Operation.LEASES)
        rows = [row for reply in pages for row in reply.read(_KeysAnswer).ssh_keys]
        return [AccountKey(row.id, row.name, key_line(row.ssh_key)) for row in rows]

    async def _register_key(self, name: str, line: str) -> str:
        reply = await self._key_call("POST", f"/v2/{KEYS}", {"name": name, "ssh_key": line})
        return reply.read(_KeyAnswer).ssh_key.id

    async def _unregister_key(self, key: AccountKey) -> None:
        await self._key_call("DELETE", f"/v2/{KEYS}/{key.key_id}")

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One machine of either kind."""
        try:
            return await self._find(INSTANCES, reference)
        except LeaseNotFound:
            return await self._find(BARE_METALS, reference)

    async def _find(self, endpoint: str, reference: str) -> Lease:
        return _lease(_one(await self._held(f"/v2/{endpoint}/{reference}"), endpoint))

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every machine of the account, of both kinds."""
        virtual = await self._pages(INSTANCES, Operation.LEASES)
        metal = await self._pages(BARE_METALS, Operation.LEASES)
        rows = [server for reply in virtual for server in reply.read(_InstancesAnswer).instances]
        rows += [server for reply in metal for server in reply.read(_BareMetalsAnswer).bare_metals]
        return tuple(_lease(server) for server in rows)

    async def _give_back(self, lease: Lease) -> None:
        try:
            await self._end("DELETE", f"/v2/{INSTANCES}/{lease.reference}")
        except LeaseNotFound:
            await self._end("DELETE", f"/v2/{BARE_METALS}/{lease.reference}")


def _next_page(reply: Reply, _: int) -> Query | None:
    meta = reply.read(_Page).meta
    return {"cursor": meta.links.next} if meta and meta.links.next else None


def _one(reply: Reply, endpoint: str) -> _Server:
    if endpoint == BARE_METALS:
        return reply.read(_BareMetalAnswer).bare_metal
    return reply.read(_InstanceAnswer).instance
