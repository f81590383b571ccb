"""Talks to Vast.ai: search, rent, show, destroy."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from broker.domain.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
)
from broker.domain.offer import OfferBatch
from broker.domain.reservation import Lease, LeaseState, Order
from providers.client import SellerClient, bearer, ordered
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import PayloadModel
from providers.rows import rate_of
from providers.spec import ProviderSettings, refuse_unless_single
from providers.vast.offers import NAME, parse_offers

SEARCH_LIMIT = 3000
LONGEST_LABEL = 255
POLICY = HttpPolicy(
    interval_s={
        Operation.OFFERS: 6.0,
        Operation.ORDER: 4.5,
        Operation.RELEASE: 3.0,
        Operation.LEASES: 2.0,
    }
)


class _StillMade(InsufficientCapacity):
    """A refused order that left a stopped instance behind."""

    def __init__(self, provider: str, message: str, contract: str) -> None:
        super().__init__(provider, message)
        self.message = message
        self.contract = contract


_ERRORS: Mapping[str, type[ProviderError]] = {
    "no_such_instance": LeaseNotFound,
    "auth_error": CredentialsRejected,
    "invalid_args": OrderRejected,
    "invalid_price": OrderRejected,
    "no_ssh_key_for_vm": OrderRejected,
    "insufficient_credit": QuotaExceeded,
}


def classify(reply: Reply) -> ProviderError:
    """JSON ``{"success": false, "error", "msg"}``; rate limits are plain text."""
    body = reply.json_or_none()
    if reply.status == 429 or not isinstance(body, dict):
        return classify_by_status(reply)
    code = str(body.get("error") or "")
    text = f"{code}: {body.get('msg') or ''}"
    if code == "no_such_ask":
        return InsufficientCapacity(NAME, "that Vast machine was just rented")
    if body.get("new_contract"):
        return _StillMade(NAME, text, str(body["new_contract"]))
    if "invalid user key" in text.lower():
        return CredentialsRejected(NAME, text)
    if code in _ERRORS:
        return _ERRORS[code](NAME, text)
    if reply.status == 200:
        return OrderRejected(NAME, text)
    return classify_by_status(reply, text)


class _Instance(PayloadModel):
    id: int
    label: str | None = None
    actual_status: str | None = None
    intended_status: str | None = None
    num_gpus: int | None = None
    gpu_name: str | None = None
    geolocation: str | None = None
    dph_total: Decimal | None = None


class _InstanceAnswer(PayloadModel):
    instances: _Instance


class _InstancesAnswer(PayloadModel):
    instances: tuple[_Instance, ...]


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
    )


class Vast(SellerClient):
    """Client of search, rent, show and destroy."""

    provider = NAME
    tells_price = True

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        super().__init__(settings, http_factory, classify, POLICY, bearer(settings, "api_key"))
        self._disk_gb = int(settings.options["disk_gb"])

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Two searches of verified hosts: on demand, and by bid."""
        return parse_offers([await self._search("on-demand"), await self._search("bid")], observed_at)

    async def _search(self, kind: str) -> bytes:
        wish = {
            "verified": {"eq": True},
            "rentable": {"eq": True},
            "rented": {"eq": False},
            "order": [["dph_total", "asc"]],
            "type": kind,
            "limit": SEARCH_LIMIT,
            "allocated_storage": self._disk_gb,
        }
        path = "/api/v0/bundles/"
        return (await self._call("POST", path, Operation.OFFERS, repeatable=True, json=wish)).body

    async def reserve(self, order: Order) -> Lease:
        """Rents one offer, labelled by the tag; a stopped instance left by a refusal is destroyed."""
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
            "image": self._settings.options["image"],
            "disk": self._disk_gb,
            "label": order.tag,
            "runtype": "ssh_direct",
            "cancel_unavail": True,
            "target_state": "running",
        }
        bid = order.offer.reference["bid"]
        return {**body, "price": float(bid)} if bid else body

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

    async def list_leases(self) -> Sequence[Lease]:
        """Every instance of the account."""
        reply = await self._held("/api/v0/instances/")
        return tuple(_lease(instance) for instance in reply.read(_InstancesAnswer).instances)

    async def _give_back(self, lease: Lease) -> None:
        """Destroys: a stopped instance would go on paying for its disk."""
        await self._destroy(lease.reference)

    async def _destroy(self, reference: str) -> None:
        with contextlib.suppress(LeaseNotFound):
            reply = await self._end("DELETE", f"/api/v0/instances/{reference}/")
            if not reply.read(_Done).success:
                raise self._http.error(reply)
