"""Talks to Vast.ai: search, rent, show, destroy."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Annotated, Any

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    OutcomeUnknown,
    PayloadUnreadable,
    ProviderError,
    QuotaExceeded,
)
from broker.domain.basics.machines import Access, with_keys
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer, OfferBatch
from providers.client import (
    Entry,
    Query,
    SellerClient,
    all_pages,
    bearer,
    found_again,
    ordered,
    tells_all_or_fails,
)
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import PayloadModel, ordered_units
from providers.rows import rate_of, rows_under
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_unless_single
from providers.vast.offers import NAME, parse_offers
from providers.vast.search import LIMIT, Wish, search_all

LONGEST_LABEL = 255
USER, SSH = "root", "22/tcp"
ALONE = "args"
"""How an instance is run whose image keeps its own entry point."""
NO_SSH = "its container runs the image alone: Vast adds no SSH server to it"
INSTANCES = "/api/v1/instances/"
PAGE_ROWS = 25
MOST_PAGES = 400
LEAST_COMPUTE_CAPABILITY = 500
"""5.0: a search by CUDA version without a compute capability omits GPUs that support it."""
POLICY = HttpPolicy(
    interval_s={
        Operation.OFFERS: 6.0,
        Operation.ORDER: 4.5,
        Operation.RELEASE: 3.0,
        Operation.LEASES: 2.0,
    }
)


class _StillMade(InsufficientCapacity):
    """A refused order that left a stopped instance."""

    def __init__(self, provider: str, message: str, contract: str) -> None:
        super().__init__(provider, message)
        self.message = message
        self.contract = contract


_ERRORS: Mapping[str, type[ProviderError]] = {
    "no_such_instance": LeaseNotFound,
    "auth_error": CredentialsRejected,
    "invalid_args": OrderRejected,
    "invalid_price": OrderRejected,
    "deprecated_endpoint": PayloadUnreadable,
    "no_ssh_key_for_vm": OrderRejected,
    "insufficient_credit": QuotaExceeded,
}


def classify(reply: Reply) -> ProviderError:
    """The typed error of ``{"success": false, "error", "msg"}``; rate limits are plain text.

    ``no_such_ask``, as the code or in the message, means that the offer is gone.
    """
    body = reply.json_or_none()
    if reply.status == 429 or not isinstance(body, dict):
        return classify_by_status(reply)
    code = str(body.get("error") or "")
    text = f"{code}: {body.get('msg') or ''}"
    if body.get("new_contract"):
        return _StillMade(NAME, text, str(body["new_contract"]))
    if "no_such_ask" in text:
        return InsufficientCapacity(NAME, "that Vast machine was just rented")
    if "invalid user key" in text.lower():
        return CredentialsRejected(NAME, text)
    if code in _ERRORS:
        return _ERRORS[code](NAME, text)
    if reply.status == 200:
        return OrderRejected(NAME, text)
    return classify_by_status(reply, text)


class _PortMapping(PayloadModel):
    HostPort: int


class _Instance(PayloadModel):
    id: int
    label: str | None = None
    actual_status: Annotated[str | None, Words(lambda: _STATES)] = None
    intended_status: str | None = None
    num_gpus: int | None = None
    gpu_name: str | None = None
    geolocation: str | None = None
    dph_total: Decimal | None = None
    public_ipaddr: str | None = None
    ports: Mapping[str, tuple[_PortMapping, ...] | None] | tuple[Any, ...] | None = None
    ssh_host: str | None = None
    ssh_port: int | None = None
    image_runtype: str | None = None

    @property
    def access(self) -> Access | None:
        """The host's own mapping of port 22, else Vast's proxy; None before either is there.

        Of its other ports the first one is that of its server.
        """
        ports = self.ports if isinstance(self.ports, Mapping) else {}
        host = (self.public_ipaddr or "").strip()
        served = next((to[0].HostPort for port, to in ports.items() if to and port != SSH), None)
        if self.image_runtype == ALONE:
            return Access(host, USER, server_port=served, is_entered=False) if host and served else None
        mapped = ports.get(SSH)
        if mapped and host:
            return Access(host, USER, mapped[0].HostPort, server_port=served)
        return Access(self.ssh_host, USER, self.ssh_port) if self.ssh_host and self.ssh_port else None


class _InstanceAnswer(PayloadModel):
    instances: _Instance


class _InstancesAnswer(PayloadModel):
    instances: tuple[_Instance, ...]
    next_token: str | None = None


class _Created(PayloadModel):
    success: bool
    new_contract: int | None = None


class _Done(PayloadModel):
    success: bool


_STATES: Mapping[str, LeaseState] = {
    "": LeaseState.PROVISIONING,
    "created": LeaseState.PROVISIONING,
    "loading": LeaseState.PROVISIONING,
    "running": LeaseState.ACTIVE,
    "rebooting": LeaseState.ACTIVE,
    "frozen": LeaseState.ACTIVE,
    "stopped": LeaseState.FAILED,
    "exited": LeaseState.FAILED,
    "offline": LeaseState.FAILED,
    "unknown": LeaseState.FAILED,
}


def _lease(instance: _Instance) -> Lease:
    status = instance.actual_status or ""
    state = _STATES.get(status, LeaseState.UNKNOWN)
    if instance.intended_status == "stopped":
        state = LeaseState.FAILED
    return Lease(
        provider=NAME,
        reference=str(instance.id),
        state=state,
        tag=instance.label,
        sku=f"{instance.num_gpus or 0}x {instance.gpu_name or ''}",
        region=instance.geolocation or "",
        detail=f"{status or 'no status yet'}, intended {instance.intended_status or 'unsaid'}",
        price_usd_per_node_hour=rate_of(instance.dph_total),
        machines=(instance.access,) if state is LeaseState.ACTIVE and instance.access is not None else (),
        access_note=NO_SSH if instance.image_runtype == ALONE else "",
    )


class Vast(SellerClient):
    """Client of search, rent, show and destroy."""

    provider = NAME
    tells_price = True
    entry = Entry.KEYS
    takes_script = True

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        super().__init__(settings, http_factory, classify, POLICY, bearer(settings, "api_key"))
        self._disk_gb = int(settings.options["disk_gb"])
        self._least_cuda = cuda_of(settings.options["image"])

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Offers of verified hosts that can run the image; a row's lowest bid is its spot offer."""
        rows, left_out = await search_all(self._search, self._wish)
        batch = parse_offers(rows, observed_at, self._least_cuda, self._disk_gb)
        return OfferBatch(batch.offers, (*batch.rejected, *left_out))

    async def quote(self, offer: Offer, asked_at: datetime) -> Offer | None:
        """Searches for the offer's id."""
        rows = await self._search({**self._wish, "id": {"eq": int(offer.reference["ask_id"])}})
        return found_again(offer, parse_offers(rows, asked_at, self._least_cuda, self._disk_gb))

    @property
    def _wish(self) -> dict[str, Any]:
        wish = {
            "verified": {"eq": True},
            "rentable": {"eq": True},
            "rented": {"eq": False},
            "direct_port_count": {"gte": 1},
            "order": [["dph_total", "asc"]],
            "type": "on-demand",
            "limit": LIMIT,
            "allocated_storage": self._disk_gb,
        }
        if self._least_cuda is None:
            return wish
        cuda = {"cuda_max_good": {"gte": float(self._least_cuda)}}
        return {**wish, **cuda, "compute_cap": {"gte": LEAST_COMPUTE_CAPABILITY}}

    async def _search(self, wish: Wish) -> list[Any]:
        path = "/api/v0/bundles/"
        reply = await self._call("POST", path, Operation.OFFERS, repeatable=True, json=wish)
        return rows_under(NAME, reply.body, "offers")

    async def reserve(self, order: Order) -> Lease:
        """Rents one offer with the tag as label; a stopped instance that a refusal leaves is destroyed."""
        refuse_unless_single(order, NAME, LONGEST_LABEL)
        try:
            path = f"/api/v0/asks/{order.offer.reference['ask_id']}/"
            reply = await self._call("PUT", path, Operation.ORDER, json=self._rent_body(order))
            created = reply.read(_Created)
            if not created.success:
                raise self._http.error(reply)
        except _StillMade as error:
            await self._undo(error)
            raise InsufficientCapacity(NAME, error.message) from error
        if created.new_contract is None:
            raise reply.unreadable("a rent without a contract id")
        return ordered(order, str(created.new_contract))

    def _rent_body(self, order: Order) -> dict[str, Any]:
        body: dict[str, Any] = {
            "disk": ordered_units(order.offer.disk, order.offer.sku.disk_gb) or self._disk_gb,
            "label": order.tag,
            "cancel_unavail": True,
            "target_state": "running",
            **self._started(order),
        }
        bid = order.offer.reference["bid"]
        if not bid:
            return body
        disk = order.offer.at_list_price().price_usd_per_node_hour - Decimal(bid)
        return {**body, "price": float(order.bid_usd_per_node_hour - disk)}

    def _started(self, order: Order) -> dict[str, Any]:
        """What the instance runs: the broker's image with an SSH server and the script, or a container as it
        is, to which Vast adds no SSH server."""
        ports = {f"-p {order.server_port}:{order.server_port}": "1"} if order.server_port else {}
        if (container := order.container) is not None:
            command = {"args_str": container.command} if container.command else {}
            return {"image": container.image, "runtype": ALONE, **command, "env": {**container.env, **ports}}
        script = with_keys(order.script, order.keys)
        return {
            "image": self._settings.options["image"],
            "runtype": "ssh_direct",
            **({"onstart": script} if script else {}),
            **({"env": ports} if ports else {}),
        }

    async def _undo(self, error: _StillMade) -> None:
        try:
            await self._destroy(error.contract)
        except ProviderError as failure:
            raise OutcomeUnknown(NAME, f"contract {error.contract} was left behind: {failure}") from failure

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One instance."""
        reply = await self._held(f"/api/v0/instances/{reference}/")
        body = reply.json()
        if isinstance(body, dict) and body.get("instances", "absent") is None:
            raise LeaseNotFound(NAME, f"no instance {reference}")
        return _lease(reply.read(_InstanceAnswer).instances)

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every instance of the account, page by page in the order of their ids."""
        first = {"limit": str(PAGE_ROWS), "order_by": '[{"col": "id", "dir": "asc"}]'}
        pages = await all_pages(partial(self._held, INSTANCES), _next_page, first, MOST_PAGES)
        return tuple(_lease(instance) for page in pages for instance in page.read(_InstancesAnswer).instances)

    async def _give_back(self, lease: Lease) -> None:
        """Destroys the instance: a stopped one would still be billed for its disk."""
        await self._destroy(lease.reference)

    async def _destroy(self, reference: str) -> None:
        with contextlib.suppress(LeaseNotFound):
            reply = await self._end("DELETE", f"/api/v0/instances/{reference}/")
            if not reply.read(_Done).success:
                raise self._http.error(reply)


def _next_page(reply: Reply, _: int) -> Query | None:
    token = reply.read(_InstancesAnswer).next_token
    return {"after_token": token} if token else None


def cuda_of(image: str) -> Decimal | None:
    """The CUDA version in the name of a container image; None where it has none."""
    found = re.search(r"cuda[:-]?(\d+\.\d+)", image)
    return Decimal(found[1]) if found else None
