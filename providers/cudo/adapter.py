"""Talks to CUDO: machine types, virtual machines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import Field, model_validator

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
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
from providers.client import Entry, SellerClient, bearer, ordered, tells_all_or_fails
from providers.cudo.offers import NAME, parse_offers
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import Name, PayloadModel, ordered_units
from providers.rows import rate_of
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_unless_single

USER = "root"
TAG_KEY = "broker-tag"
POLICY = HttpPolicy(concurrency=4)

_EXISTS, _EXHAUSTED = 6, 8
_BY_CODE: Mapping[int, type[ProviderError]] = {
    7: CredentialsRejected,
    16: CredentialsRejected,
    3: OrderRejected,
    5: OrderRejected,
    9: OrderRejected,
}
"""gRPC codes of an order: permission, authentication, argument, not found, precondition."""

_NO_STOCK = re.compile(
    r"capacity|out of stock|no (available |suitable )?hosts?|(not enough|insufficient) (gpu|vcpu|resource)",
    re.IGNORECASE,
)
_NO_QUOTA = re.compile(r"quota|balance|credit|billing|payment|\blimit\b", re.IGNORECASE)
_RATE = re.compile(r"rate limit|too many requests", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """The typed error of a gRPC gateway's ``{"code", "message"}``.

    429 may mean stock, quota or rate limit; the message decides.
    """
    body = reply.json_or_none()
    if not isinstance(body, dict) or not isinstance(body.get("code"), int):
        return classify_by_status(reply)
    code, text = int(body["code"]), str(body.get("message") or "")
    exhausted = _exhausted(code, text, reply)
    if exhausted is not None:
        return exhausted
    if reply.operation is Operation.ORDER:
        if code == _EXISTS:
            return OutcomeUnknown(NAME, f"a machine of this id exists: {text}")
        if code in _BY_CODE:
            return _BY_CODE[code](NAME, text)
    if reply.operation is Operation.RELEASE and code == 9:
        return ReleaseRefused(NAME, text, forever=False)
    return classify_by_status(reply, text)


def _exhausted(code: int, text: str, reply: Reply) -> ProviderError | None:
    """Which resource is exhausted, or None."""
    if reply.status == 429 and (_RATE.search(text) or reply.operation is not Operation.ORDER):
        return RateLimited(NAME, text, reply.retry_after_s)
    if reply.operation is not Operation.ORDER or code not in {_EXHAUSTED, 9, 3}:
        return None
    if _NO_STOCK.search(text):
        return InsufficientCapacity(NAME, text)
    return QuotaExceeded(NAME, text) if _NO_QUOTA.search(text) else None


class _Money(PayloadModel):
    value: Decimal | None = None


class _Price(PayloadModel):
    totalPriceHr: _Money = _Money()


class _Machine(PayloadModel):
    id: Name
    datacenterId: str = ""
    machineType: str = ""
    state: Annotated[str, Words(lambda: _STATES)] = ""
    shortState: Annotated[str, Words(lambda: _STATES)] = ""
    metadata: Mapping[str, str] | None = None
    price: _Price | None = None
    externalIpAddress: str = ""
    internalIpAddress: str = ""


class _MachineAnswer(_Price):
    """One machine with its price beside it; in lists the price is part of the row."""

    VM: _Machine


class _MachinesAnswer(PayloadModel):
    """A list of machines.

    An empty list may be left out; an answer with other keys is not this list.
    """

    VMs: tuple[_Machine, ...] = Field(default=())

    @model_validator(mode="before")
    @classmethod
    def _is_a_list(cls, answer: Any) -> Any:
        if isinstance(answer, dict) and answer and "VMs" not in answer:
            raise ValueError("no VMs")
        return answer


class _Created(PayloadModel):
    id: Name


_HELD = (
    "STOPPED",
    "STOPPING",
    "SUSPENDED",
    "SUSPENDING",
    "MIGRATING",
    "RESIZING",
    "RESIZING_DISK",
    "HOTPLUGGING",
    "CREATING_SNAPSHOT",
    "DELETING_SNAPSHOT",
    "REVERTING_SNAPSHOT",
)
_STATES: Mapping[str, LeaseState] = {
    **dict.fromkeys(("PENDING", "STARTING", "CLONING", "RECREATING"), LeaseState.PROVISIONING),
    **dict.fromkeys(("init", "pend", "prol", "boot"), LeaseState.PROVISIONING),
    **dict.fromkeys(("ACTIVE", *_HELD, "runn", "stop", "susp", "poff"), LeaseState.ACTIVE),
    "DELETING": LeaseState.ENDING,
    **dict.fromkeys(("DELETED", "done"), LeaseState.ENDED),
    **dict.fromkeys(("FAILED", "fail"), LeaseState.FAILED),
}


def _lease(machine: _Machine) -> Lease:
    word = machine.state or machine.shortState
    return Lease(
        provider=NAME,
        reference=machine.id,
        state=_STATES.get(word, LeaseState.UNKNOWN),
        tag=(machine.metadata or {}).get(TAG_KEY) or machine.id,
        sku=machine.machineType,
        region=machine.datacenterId,
        detail=word,
        price_usd_per_node_hour=rate_of(machine.price.totalPriceHr.value) if machine.price else None,
        machines=_machines(machine),
    )


def _machines(machine: _Machine) -> tuple[Access, ...]:
    if not machine.externalIpAddress:
        return ()
    return (Access(machine.externalIpAddress, USER, private_host=machine.internalIpAddress or None),)


class Cudo(SellerClient):
    """Client of machine types and of one project's machines."""

    provider = NAME
    longest_tag = 63
    tells_price = True
    entry = Entry.KEYS
    takes_script = True

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        super().__init__(settings, http_factory, classify, POLICY, bearer(settings, "api_key"))
        self._project = f"/v1/projects/{quote(settings.options['project'], safe='')}"

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Machine types of all data centres; the list has one page."""
        return parse_offers((await self._on_sale("/v1/vms/machine-types-2")).body, observed_at)

    async def reserve(self, order: Order) -> Lease:
        """Creates one machine whose id is the tag."""
        refuse_unless_single(order, NAME, self.longest_tag)
        reply = await self._order(f"{self._project}/vm", self._create_body(order))
        return ordered(order, reply.read(_Created).id)

    def _create_body(self, order: Order) -> dict[str, Any]:
        offer, wish, options = order.offer, order.offer.reference, self._settings.options
        own = options["ssh_key"]
        keys = [key.line for key in order.keys] or ([own] if own else [])
        return {
            "vmId": re.sub(r"[^a-z0-9-]", "-", order.tag.lower()),
            "dataCenterId": wish["dataCenterId"],
            "machineType": wish["machineType"],
            "gpus": int(wish["gpus"]),
            "vcpus": int(wish["vcpus"]),
            "memoryGib": ordered_units(offer.memory, offer.sku.memory_gb),
            "bootDisk": {
                "storageClass": "STORAGE_CLASS_NETWORK",
                "sizeGib": ordered_units(offer.disk, offer.sku.disk_gb),
            },
            "bootDiskImageId": options["image"],
            "sshKeySource": "SSH_KEY_SOURCE_NONE" if keys else "SSH_KEY_SOURCE_PROJECT",
            "customSshKeys": keys,
            "metadata": {TAG_KEY: order.tag},
            "commitmentTerm": "COMMITMENT_TERM_NONE",
            **({"startScript": order.script} if order.script else {}),
        }

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One machine."""
        found = (await self._held(f"{self._project}/vms/{reference}")).read(_MachineAnswer)
        rate = rate_of(found.totalPriceHr.value)
        lease = _lease(found.VM)
        return lease if rate is None else replace(lease, price_usd_per_node_hour=rate)

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every machine of the project; the list has one page."""
        reply = await self._held(f"{self._project}/vms")
        return tuple(_lease(machine) for machine in reply.read(_MachinesAnswer).VMs)

    async def _give_back(self, lease: Lease) -> None:
        """Terminates the machine; one that is already terminating counts as success."""
        try:
            await self._end("POST", f"{self._project}/vms/{lease.reference}/terminate")
        except ReleaseRefused:
            found = await self.find_lease(lease.reference, "")
            if found.state not in {LeaseState.ENDING, LeaseState.ENDED}:
                raise
