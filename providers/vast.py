"""Vast.ai: a marketplace of hosts that rent out containers, on demand and by bid.

Sold: single offers; an offer's id is the unit of stock (one node), and offers of one machine overlap (the
same GPUs as one offer of eight and eight of one), so machines must not be summed: ``reference`` carries
the machine. On the wire: USD per hour for the whole offer; ``dph_total`` holds the disk that the search
asked for, ``dph_base`` and ``min_bid`` do not; GPU memory in MiB per GPU, host memory in MB of the whole
host (the offer's share is that of its CPU cores). Traffic is billed apart.
Not said: the network between machines (no fabric); the link between GPUs unless ``bw_nvlink`` is measured.

Environment: ``BROKER_VAST_API_KEY``; ``BROKER_VAST_IMAGE``, ``BROKER_VAST_DISK_GB``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from broker.catalogue import ProviderFacts, infer_intra_node, load_provider_facts
from broker.domain.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
)
from broker.domain.offer import NativePrice, Offer, OfferBatch, Stock, StockLevel, Tier
from broker.domain.reservation import Lease, LeaseState, Order
from broker.domain.sku import Form, IntraNode, LinkKind, Sku
from broker.ports import Idempotency
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import (
    Amount,
    GpuCount,
    PayloadModel,
    RowRejected,
    as_dict,
    as_list,
    canonical_gpu,
    collect,
    decode_json,
    nominal_memory_gb,
    require_gpus,
    require_price,
)
from providers.spec import (
    Capability,
    NamedPayload,
    ProviderSettings,
    ProviderSpec,
    refuse_unless_single,
)

NAME = "vast"
BASE_URL = "https://console.vast.ai"
BILLING_INCREMENT_S = 1
SEARCH_LIMIT = 3000
UNKNOWN_REGION = "unknown"
LONGEST_LABEL = 255
POLICY = HttpPolicy(
    interval_s={
        Operation.OFFERS: 6.0,
        Operation.ORDER: 4.5,
        Operation.RELEASE: 3.0,
        Operation.LEASES: 2.0,
    }
)


class _Ask(PayloadModel):
    """A row of ``POST /api/v0/bundles/``."""

    id: int
    gpu_name: str | None = None
    num_gpus: GpuCount | None = None
    gpu_ram: Amount | None = None
    bw_nvlink: Amount | None = None
    cpu_cores: Amount | None = None
    cpu_cores_effective: Amount | None = None
    cpu_ram: Amount | None = None
    disk_space: Amount | None = None
    dph_base: Decimal | None = None
    dph_total: Decimal | None = None
    min_bid: Decimal | None = None
    is_bid: bool = False
    geolocation: str | None = None
    hosting_type: int | None = None
    machine_id: int | None = None
    host_id: int | None = None
    rentable: bool = True
    rented: bool | None = None


def parse_offers(payloads: Sequence[bytes], observed_at: datetime) -> OfferBatch:
    """Offers of one or more searches.

    Rows of a search for ``bid`` are spot offers. Where no such search was made, the least bid that an
    on-demand row states is one.
    """
    facts = load_provider_facts(NAME)
    rows = [row for payload in payloads for row in _rows(payload)]
    bids_searched = any(isinstance(row, dict) and row.get("is_bid") is True for row in rows)
    named = ((_row_name(row), row) for row in rows)
    return collect(named, lambda row: _offers_of(row, facts, bids_searched, observed_at))


def _rows(payload: bytes) -> list[Any]:
    return as_list(NAME, as_dict(NAME, decode_json(NAME, payload), "the answer").get("offers"), "offers")


def _row_name(row: Any) -> str:
    return f"offer {row.get('id')}" if isinstance(row, dict) else "row that is no object"


def _offers_of(row: Any, facts: ProviderFacts, bids_searched: bool, observed_at: datetime) -> Iterator[Offer]:
    ask = _Ask.model_validate(row)
    sku = _sku(ask, facts)
    if ask.rented or not ask.rentable:
        raise RowRejected("already rented")
    disk = _disk_price(ask)
    if not ask.is_bid:
        price = require_price(ask.dph_total, "dph_total")
        yield _offer(ask, sku, Tier.ON_DEMAND, price, price, facts, observed_at)
    if ask.is_bid or (not bids_searched and ask.min_bid):
        bid = require_price(ask.min_bid, "min_bid")
        yield _offer(ask, sku, Tier.SPOT, bid + disk, bid, facts, observed_at)


def _disk_price(ask: _Ask) -> Decimal:
    """What the searched-for disk costs an hour: the part of the total that is not the machine."""
    if ask.dph_total is None or ask.dph_base is None:
        return Decimal(0)
    return max(Decimal(0), ask.dph_total - ask.dph_base)


def _offer(
    ask: _Ask,
    sku: Sku,
    tier: Tier,
    price: Decimal,
    quoted: Decimal,
    facts: ProviderFacts,
    observed_at: datetime,
) -> Offer:
    region = (ask.geolocation or "").strip() or UNKNOWN_REGION
    return Offer(
        offer_id=f"{NAME}/{ask.id}/{tier}",
        provider=NAME,
        sku=sku,
        region=region,
        country=_country(region),
        seller=None if ask.host_id is None else f"host {ask.host_id}",
        tier=tier,
        price_usd_per_node_hour=price,
        observed_at=observed_at,
        source=f"POST /api/v0/bundles/ {'bid' if ask.is_bid else 'on-demand'}",
        native=NativePrice(quoted, "USD", "offer-hour"),
        billing_increment_s=BILLING_INCREMENT_S,
        stock=Stock(StockLevel.LOW, 1),
        compliance=facts.compliance,
        reference={
            "ask_id": str(ask.id),
            "bid": str(quoted) if tier is Tier.SPOT else "",
            "machine_id": "" if ask.machine_id is None else str(ask.machine_id),
            "overlaps": "other offers of the same machine_id",
            "datacenter": "true" if (ask.hosting_type or 0) >= 1 else "false",
        },
    )


def _country(region: str) -> str | None:
    """The ISO code that ends a ``geolocation``."""
    found = re.search(r"(?:^|, *)([A-Z]{2})$", region)
    return found.group(1) if found else None


def _sku(ask: _Ask, facts: ProviderFacts) -> Sku:
    count = require_gpus(ask.num_gpus)
    word = (ask.gpu_name or "").replace("_", " ")
    gpu = canonical_gpu(facts, word, None if ask.gpu_ram is None else ask.gpu_ram / 1024)
    share = _host_share(ask)
    return Sku(
        name=f"{count}x {word}",
        gpu=gpu,
        gpus_per_node=count,
        gpu_memory_gb=nominal_memory_gb(gpu),
        vcpus=ask.cpu_cores_effective,
        memory_gb=None if ask.cpu_ram is None or share is None else round(ask.cpu_ram * share / 1000, 1),
        disk_gb=ask.disk_space,
        form=Form.CONTAINER,
        intra_node=_intra_node(ask, gpu, count),
    )


def _host_share(ask: _Ask) -> float | None:
    if not ask.cpu_cores or ask.cpu_cores_effective is None:
        return None
    return min(1.0, ask.cpu_cores_effective / ask.cpu_cores)


def _intra_node(ask: _Ask, gpu: str, count: int) -> IntraNode | None:
    """NVLink only where the host's own measurement shows it; its rate is that measurement.

    Measured rates (478 GB/s on H100) lie above one direction's 450, so they count both.
    """
    if ask.bw_nvlink and count > 1:
        return IntraNode(LinkKind.NVLINK, ask.bw_nvlink)
    inferred = infer_intra_node(gpu, count)
    return None if inferred is not None and inferred.kind is LinkKind.NVLINK else inferred


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded answers of searches."""
    return parse_offers([body for _, body in payloads], observed_at)


class _StillMade(InsufficientCapacity):
    """A refused order that left a stopped instance behind."""

    def __init__(self, provider: str, message: str, contract: str) -> None:
        super().__init__(provider, message)
        self.contract = contract


_ERRORS: Mapping[str, type[ProviderError]] = {
    "no_such_ask": InsufficientCapacity,
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
    )


class Vast:
    """Client of search, rent, show and destroy."""

    provider = NAME
    idempotency = Idempotency.TAG

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        self._settings = settings
        key = settings.secret("api_key")
        self._http = http_factory(
            NAME,
            settings.base_url,
            classify,
            settings.tuned(POLICY),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            secrets=settings.secrets,
        )
        self._disk_gb = int(settings.options["disk_gb"])

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

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
        reply = await self._http.request(
            "POST", "/api/v0/bundles/", operation=Operation.OFFERS, repeatable=True, json=wish
        )
        return reply.body

    def nodes_per_order(self, offer: Offer) -> int | None:
        """One: an offer is one node."""
        return 1

    async def reserve(self, order: Order) -> Lease:
        """Rents one offer, labelled by the tag; a stopped instance left by a refusal is destroyed."""
        refuse_unless_single(order, NAME, LONGEST_LABEL)
        try:
            reply = await self._http.request(
                "PUT",
                f"/api/v0/asks/{order.offer.reference['ask_id']}/",
                operation=Operation.ORDER,
                json=self._rent_body(order),
            )
            created = reply.read(_Created)
            if not created.success:
                raise self._http.error(reply)
        except _StillMade as error:
            await self._undo(error)
            raise InsufficientCapacity(NAME, str(error)) from error
        if created.new_contract is None:
            raise reply.unreadable("a rent without a contract id")
        return Lease(
            provider=NAME,
            reference=str(created.new_contract),
            state=LeaseState.PROVISIONING,
            tag=order.tag,
            sku=order.offer.sku.name,
            region=order.offer.region,
        )

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
        reply = await self._http.request("GET", f"/api/v0/instances/{reference}/", operation=Operation.LEASES)
        body = reply.json()
        if isinstance(body, dict) and body.get("instances", "absent") is None:
            raise LeaseNotFound(NAME, f"no instance {reference}")
        return _lease(reply.read(_InstanceAnswer).instances)

    async def list_leases(self) -> Sequence[Lease]:
        """Every instance of the account."""
        reply = await self._http.request("GET", "/api/v0/instances/", operation=Operation.LEASES)
        return tuple(_lease(instance) for instance in reply.read(_InstancesAnswer).instances)

    async def release(self, lease: Lease) -> None:
        """Destroys (a stopped instance would go on paying for its disk); an unknown one is a success."""
        await self._destroy(lease.reference)

    async def _destroy(self, reference: str) -> None:
        try:
            reply = await self._http.request(
                "DELETE", f"/api/v0/instances/{reference}/", operation=Operation.RELEASE, repeatable=True
            )
            if not reply.read(_Done).success:
                raise self._http.error(reply)
        except LeaseNotFound:
            return


SPEC = ProviderSpec(
    name=NAME,
    title="Vast.ai",
    base_url=BASE_URL,
    credentials={"api_key": "an API key of the account"},
    options={"image": "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-devel", "disk_gb": "50"},
    capabilities=frozenset(
        {
            Capability.OFFERS,
            Capability.AVAILABILITY,
            Capability.SPOT,
            Capability.RESERVE,
            Capability.FIND_LEASE,
            Capability.LIST_LEASES,
            Capability.RELEASE,
        }
    ),
    idempotency=Idempotency.TAG,
    adapter=Vast,
    build=Vast,
    parse=parse,
    keyless=True,
)
