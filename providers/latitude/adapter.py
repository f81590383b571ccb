"""Talks to Latitude.sh: plans, servers, deletions now or at the end of what is paid."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from broker.domain.basics.errors import (
    InsufficientCapacity,
    OrderRejected,
    ProviderError,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import OfferBatch
from providers.client import SellerClient, bearer, ordered, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.latitude.offers import NAME, parse_offers
from providers.payload import Name, PayloadModel
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_unless_single

PAGE_SIZE = 100
MOST_PAGES = 100
PAGE = {"page[size]": str(PAGE_SIZE), "stats[total]": "count"}
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
    plan: _ServerPlan = _ServerPlan()
    region: _ServerRegion | None = None


class _Server(PayloadModel):
    id: Name
    attributes: _ServerAttributes


class _ServerAnswer(PayloadModel):
    data: _Server


class _Total(PayloadModel):
    count: int | None = None


class _Stats(PayloadModel):
    total: _Total | None = None


class _Meta(PayloadModel):
    stats: _Stats | None = None


class _ServersAnswer(PayloadModel):
    data: tuple[_Server, ...]
    meta: _Meta | None = None

    @property
    def total(self) -> int | None:
        """The number of servers on all pages; None where the answer has none."""
        stats = self.meta.stats if self.meta is not None else None
        return stats.total.count if stats is not None and stats.total is not None else None


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


def _lease(server: _Server) -> Lease:
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
    )


class Latitude(SellerClient):
    """Client of plans and servers."""

    provider = NAME
    longest_tag = 32

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        headers = {"API-Version": "2023-06-01", "Accept": "application/vnd.api+json"}
        headers |= bearer(settings, "api_key")
        super().__init__(settings, http_factory, classify, POLICY, headers)

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Plans with GPUs; the list has one page."""
        return parse_offers((await self._on_sale("/plans", {"filter[gpu]": "true"})).body, observed_at)

    async def reserve(self, order: Order) -> Lease:
        """Orders one server with the tag as host name."""
        refuse_unless_single(order, NAME, self.longest_tag)
        reply = await self._order("/servers", self._create_body(order))
        made = _lease(reply.read(_ServerAnswer).data)
        unsaid = made.state is LeaseState.UNKNOWN
        return ordered(order, made.reference, LeaseState.PROVISIONING if unsaid else made.state)

    def _create_body(self, order: Order) -> dict[str, Any]:
        options = self._settings.options
        if not options["project"]:
            raise OrderRejected(NAME, "no project is set")
        attributes = {
            **order.offer.reference,
            "project": options["project"],
            "operating_system": options["operating_system"],
            "hostname": order.tag,
            "ssh_keys": [options["ssh_key_id"]] if options["ssh_key_id"] else [],
        }
        return {"data": {"type": "servers", "attributes": attributes}}

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One server."""
        return _lease(await self._server(reference))

    async def _server(self, reference: str) -> _Server:
        return (await self._held(f"/servers/{reference}")).read(_ServerAnswer).data

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every server of the team, page by page."""
        servers: list[_Server] = []
        for number in range(1, MOST_PAGES + 1):
            reply = await self._held("/servers", {**PAGE, "page[number]": str(number)})
            page = reply.read(_ServersAnswer)
            servers += page.data
            if not page.data or (page.total is not None and len(servers) >= page.total):
                return tuple(map(_lease, servers))
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
