"""Talks to Latitude.sh: plans, servers, deletions now or at the end of what is paid."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from broker.domain.errors import (
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    ProviderError,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.offer import Offer, OfferBatch
from broker.domain.reservation import Lease, LeaseState, Order
from broker.ports import Idempotency
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.latitude.offers import NAME, parse_offers
from providers.payload import Name, PayloadModel
from providers.spec import ProviderSettings, refuse_unless_single

LONGEST_HOSTNAME = 63
PAGE_SIZE = 100
MOST_PAGES = 100
POLICY = HttpPolicy(concurrency=4)

_NO_STOCK = re.compile(r"servers_out_of_stock|out of stock|no stock", re.IGNORECASE)
_NO_QUOTA = re.compile(r"quota|\blimit\b|balance|payment", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """JSON:API ``{"errors": [{"code", "title", "detail"}]}``: 422 is stock or a bad body, by its code."""
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
    status: str = ""
    site: str = ""
    scheduled_deletion_at: str | None = None
    plan: _ServerPlan = _ServerPlan()
    region: _ServerRegion | None = None


class _Server(PayloadModel):
    id: Name
    attributes: _ServerAttributes


class _ServerAnswer(PayloadModel):
    data: _Server


class _ServersAnswer(PayloadModel):
    data: tuple[_Server, ...]


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


class Latitude:
    """Client of plans and servers."""

    provider = NAME
    idempotency = Idempotency.TAG

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        self._settings = settings
        self._http = http_factory(
            NAME,
            settings.base_url,
            classify,
            settings.tuned(POLICY),
            headers={
                "Authorization": f"Bearer {settings.secret('api_key')}",
                "API-Version": "2023-06-01",
                "Accept": "application/vnd.api+json",
            },
            secrets=settings.secrets,
        )

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Plans with GPUs; the list has one page."""
        reply = await self._http.request(
            "GET", "/plans", operation=Operation.OFFERS, params={"filter[gpu]": "true"}
        )
        return parse_offers(reply.body, observed_at)

    def nodes_per_order(self, offer: Offer) -> int | None:
        """One: a call makes one server."""
        return 1

    async def reserve(self, order: Order) -> Lease:
        """Orders one server with the tag as its host name."""
        refuse_unless_single(order, NAME, LONGEST_HOSTNAME)
        reply = await self._http.request(
            "POST", "/servers", operation=Operation.ORDER, json=self._create_body(order)
        )
        made = _lease(reply.read(_ServerAnswer).data)
        return Lease(
            provider=NAME,
            reference=made.reference,
            state=LeaseState.PROVISIONING if made.state is LeaseState.UNKNOWN else made.state,
            tag=order.tag,
            sku=order.offer.sku.name,
            region=order.offer.region,
        )

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
        reply = await self._http.request("GET", f"/servers/{reference}", operation=Operation.LEASES)
        return reply.read(_ServerAnswer).data

    async def list_leases(self) -> Sequence[Lease]:
        """Every server of the team, page by page."""
        found: list[Lease] = []
        for number in range(1, MOST_PAGES + 1):
            params = {"page[size]": PAGE_SIZE, "page[number]": number}
            reply = await self._http.request("GET", "/servers", operation=Operation.LEASES, params=params)
            page = reply.read(_ServersAnswer).data
            found += (_lease(server) for server in page)
            if len(page) < PAGE_SIZE:
                return tuple(found)
        raise reply.unreadable(f"more than {MOST_PAGES} pages of servers")

    async def release(self, lease: Lease) -> None:
        """Deletes; what is paid by the month is scheduled for deletion; what is gone is a success."""
        try:
            server = (await self._server(lease.reference)).attributes
            if server.scheduled_deletion_at:
                return
            method, path = "DELETE", f"/servers/{lease.reference}"
            if server.plan.billing in {"monthly", "yearly"}:
                method, path = "POST", f"{path}/schedule_deletion"
            await self._http.request(method, path, operation=Operation.RELEASE, repeatable=True)
        except LeaseNotFound:
            return
