"""Talks to Latitude.sh: plans, servers, deletions now or at the end of what is paid."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

from broker.domain.basics.errors import (
    InsufficientCapacity,
    OrderRejected,
    ProviderError,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.basics.machines import Access
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer, OfferBatch
from broker.ports.holding import FindKept
from providers.client import (
    AccountKey,
    Entry,
    KeyRegister,
    bearer,
    key_line,
    ordered,
    tells_all_or_fails,
)
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.latitude.offers import NAME, parse_offers
from providers.payload import Name, PayloadModel
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_unless_single
from providers.stored_scripts import StoredScript, StoredScripts

PAGE_SIZE = 100
MOST_PAGES = 100
PAGE = {"page[size]": str(PAGE_SIZE), "stats[total]": "count"}
KEYS, SCRIPTS = "/ssh_keys", "/user_data"
POLICY = HttpPolicy(concurrency=4)

_NO_STOCK = re.compile(r"servers_out_of_stock|out of stock|no stock", re.IGNORECASE)
_NO_QUOTA = re.compile(r"quota|\blimit\b|balance|payment", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """The typed error of JSON:API's ``{"errors": [{"code", "title", "detail"}]}``.

    422 means stock or a bad body; its code decides.
    """
    body = reply.json_or_none()
    errors = body.get("errors") if isinstance(body, dict) else None
    first = errors[0] if isinstance(errors, list) and errors else None
    if reply.status == 429 or reply.status >= 500 or not isinstance(first, dict):
        return classify_by_status(reply)
    words = [str(first.get(name) or "") for name in ("code", "title", "detail")]
    text = ": ".join(word for word in words if word)
    if reply.operation is Operation.ORDER and reply.status in {402, 403, 409, 422}:
        if _NO_STOCK.search(text):
            return InsufficientCapacity(NAME, text)
        if reply.status == 402 or _NO_QUOTA.search(text):
            return QuotaExceeded(NAME, text)
    locked = reply.status == 403 and "lock" in text.lower()
    if reply.operation is Operation.RELEASE and (locked or reply.status in {400, 409, 422, 423}):
        return ReleaseRefused(NAME, text, forever=False)
    return classify_by_status(reply, text)


class _ServerPlan(PayloadModel):
    slug: str = ""
    billing: str | None = None


class _SiteName(PayloadModel):
    slug: str = ""


class _ServerRegion(PayloadModel):
    site: _SiteName | None = None


class _ServerAttributes(PayloadModel):
    hostname: str | None = None
    status: Annotated[str, Words(lambda: _STATES)] = ""
    site: str = ""
    scheduled_deletion_at: str | None = None
    primary_ipv4: str | None = None
    plan: _ServerPlan = _ServerPlan()
    region: _ServerRegion | None = None


class _Server(PayloadModel):
    id: Name
    attributes: _ServerAttributes


class _ServerAnswer(PayloadModel):
    data: _Server


class _Named(PayloadModel):
    name: str = ""
    public_key: str = ""
    description: str = ""


class _Stored(PayloadModel):
    """A key, or a script (*user data*), of the team."""

    id: Name
    attributes: _Named = _Named()


class _StoredAnswer(PayloadModel):
    data: _Stored


class _Total(PayloadModel):
    count: int | None = None


class _Stats(PayloadModel):
    total: _Total | None = None


class _Meta(PayloadModel):
    stats: _Stats | None = None


class _Page(PayloadModel):
    """A page of any list."""

    data: tuple[Any, ...]
    meta: _Meta | None = None

    @property
    def total(self) -> int | None:
        """The number of rows on all pages; None where the answer has none."""
        stats = self.meta.stats if self.meta is not None else None
        return stats.total.count if stats is not None and stats.total is not None else None


class _ServersAnswer(_Page):
    data: tuple[_Server, ...]


class _StoredRows(_Page):
    data: tuple[_Stored, ...]


_STATES: Mapping[str, LeaseState] = {
    **dict.fromkeys(
        ("queued", "starting_deploy", "commissioning", "deploying", "configuring_bios", "disk_erasing"),
        LeaseState.PROVISIONING,
    ),
    **dict.fromkeys(
        ("on", "off", "rescue_mode", "entering_rescue_mode", "exiting_rescue_mode"), LeaseState.ACTIVE
    ),
    "failed_deployment": LeaseState.FAILED,
}


def _lease(server: _Server, user: str) -> Lease:
    told = server.attributes
    state = _STATES.get(told.status, LeaseState.UNKNOWN)
    site = told.site or (told.region.site.slug if told.region and told.region.site else "")
    return Lease(
        provider=NAME,
        reference=server.id,
        state=LeaseState.ENDING if told.scheduled_deletion_at else state,
        tag=told.hostname,
        sku=told.plan.slug,
        region=site,
        detail=told.status,
        machines=(Access(told.primary_ipv4, user),) if told.primary_ipv4 else (),
    )


def _document(kind: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {"data": {"type": kind, "attributes": attributes}}


Rows = TypeVar("Rows", bound=_Page)


class Latitude(KeyRegister):
    """Client of plans and servers."""

    provider = NAME
    longest_tag = 32
    entry = Entry.KEYS
    takes_script = True

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        headers = {"API-Version": "2023-06-01", "Accept": "application/vnd.api+json"}
        headers |= bearer(settings, "api_key")
        super().__init__(settings, http_factory, classify, POLICY, headers)
        self._user = settings.options["operating_system"].partition("_")[0]
        self._scripts = StoredScripts(settings.tag_prefix)

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Plans with GPUs; the list has one page."""
        return parse_offers((await self._on_sale("/plans", {"filter[gpu]": "true"})).body, observed_at)

    async def reserve(self, order: Order) -> Lease:
        """Orders one server with the tag as host name."""
        refuse_unless_single(order, NAME, self.longest_tag)
        attributes = self._attributes(order)
        own = self._settings.options["ssh_key_id"]
        attributes["ssh_keys"] = await self.registered(order.keys) or ([own] if own else [])
        if order.script:
            attributes["user_data"] = await self._store(order.tag, order.script)
        reply = await self._order("/servers", _document("servers", attributes))
        made = _lease(reply.read(_ServerAnswer).data, self._user)
        unsaid = made.state is LeaseState.UNKNOWN
        return ordered(order, made.reference, LeaseState.PROVISIONING if unsaid else made.state)

    def runs_script(self, offer: Offer) -> bool:
        """Whether servers of the offer's plan run *user data*."""
        return offer.reference.get("user_data") != "no"

    async def _store(self, tag: str, script: str) -> str:
        """Stores the script of an order; the order names it by the id that is returned."""
        content = base64.b64encode(script.encode()).decode()
        body = _document("user_data", {"description": tag, "content": content})
        with self._before_order("its script could not be stored"):
            return (await self._key_call("POST", SCRIPTS, body)).read(_StoredAnswer).data.id

    def _attributes(self, order: Order) -> dict[str, Any]:
        options = self._settings.options
        if not options["project"]:
            raise OrderRejected(NAME, "no project is set")
        return {
            **{name: order.offer.reference[name] for name in ("plan", "site", "billing")},
            "project": options["project"],
            "operating_system": options["operating_system"],
            "hostname": order.tag,
        }

    async def account_keys(self) -> Sequence[AccountKey]:
        """The keys of the team and its projects."""
        rows = [row for page in await self._pages(KEYS, _StoredRows) for row in page.data]
        return [AccountKey(row.id, row.attributes.name, key_line(row.attributes.public_key)) for row in rows]

    async def _register_key(self, name: str, line: str) -> str:
        body = _document("ssh_keys", {"name": name, "public_key": line})
        return (await self._key_call("POST", KEYS, body)).read(_StoredAnswer).data.id

    async def _unregister_key(self, key: AccountKey) -> None:
        await self._key_call("DELETE", f"{KEYS}/{key.key_id}")

    async def drop_keys(self, find_kept: FindKept) -> None:
        """Removes the public keys that the broker registered, except ``kept`` lines, and needless scripts."""
        await super().drop_keys(find_kept)
        rows = [row for page in await self._pages(SCRIPTS, _StoredRows) for row in page.data]
        stored = [StoredScript(row.id, row.attributes.description) for row in rows]
        await self._scripts.sweep(stored, await self.list_leases(), self._remove_script)

    async def _remove_script(self, script_id: str) -> None:
        await self._key_call("DELETE", f"{SCRIPTS}/{script_id}")

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One server."""
        return _lease(await self._server(reference), self._user)

    async def _server(self, reference: str) -> _Server:
        return (await self._held(f"/servers/{reference}")).read(_ServerAnswer).data

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every server of the team, page by page."""
        pages = await self._pages("/servers", _ServersAnswer)
        return tuple(_lease(server, self._user) for page in pages for server in page.data)

    async def _pages(self, path: str, model: type[Rows]) -> list[Rows]:
        """Every page of a list."""
        pages: list[Rows] = []
        for number in range(1, MOST_PAGES + 1):
            reply = await self._held(path, {**PAGE, "page[number]": str(number)})
            pages.append(reply.read(model))
            total = pages[-1].total
            if not pages[-1].data or (total is not None and sum(len(page.data) for page in pages) >= total):
                return pages
        raise reply.unreadable(f"a list without an end (of more than {MOST_PAGES} pages)")

    async def _give_back(self, lease: Lease) -> None:
        """Deletes an hourly server; a monthly one is scheduled for deletion."""
        path = f"/servers/{lease.reference}"
        server = (await self._server(lease.reference)).attributes
        if server.scheduled_deletion_at:
            return
        if server.plan.billing in {"monthly", "yearly"}:
            await self._end("POST", f"{path}/schedule_deletion")
        else:
            await self._end("DELETE", path)
