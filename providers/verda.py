"""Verda (formerly DataCrunch): virtual machines and bare metal, on demand and spot.

Sold: instance types by location. On the wire: prices as *strings*, USD per instance and hour; GPU memory
is the *total* of the instance; the form is the last letter of the type (V virtual, M metal); the link
between GPUs is free text (``p2p``). Types and stock are two feeds: a type is in stock where
``instance-availability`` lists it, separately for spot. An order may be accepted and then fail with
status ``no_capacity``. Not said: how many are in stock, the network between instances (no fabric; clusters
are another product). Billing by ten minutes is not in the API.

Environment: ``BROKER_VERDA_CLIENT_ID`` and ``BROKER_VERDA_CLIENT_SECRET`` (OAuth2 client credentials);
``BROKER_VERDA_SSH_KEY_ID``, ``BROKER_VERDA_IMAGE``, ``BROKER_VERDA_DISK_GB``.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from pydantic import AliasChoices, Field

from broker.catalogue import ProviderFacts, infer_intra_node, load_provider_facts
from broker.domain.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.offer import NativePrice, Offer, OfferBatch, RejectedRow, Stock, StockLevel, Tier
from broker.domain.reservation import Lease, LeaseState, Order
from broker.domain.sku import Form, IntraNode, Sku
from broker.ports import Idempotency
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import (
    Amount,
    GpuCount,
    Name,
    PayloadModel,
    RowRejected,
    as_list,
    as_payload,
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

NAME = "verda"
BASE_URL = "https://api.verda.com"
BILLING_INCREMENT_S = 600
ANY_REGION = "any"
LONGEST_HOSTNAME = 63
TOKEN_MARGIN_S = 60.0
POLICY = HttpPolicy(concurrency=4)

_FORMS = {"V": Form.VM, "M": Form.BARE_METAL}


class _Cpu(PayloadModel):
    number_of_cores: Amount | None = None


class _Gpu(PayloadModel):
    description: str = ""
    number_of_gpus: GpuCount = 0


class _Memory(PayloadModel):
    size_in_gigabytes: Amount | None = None


class _InstanceType(PayloadModel):
    """A row of ``GET /v1/instance-types``."""

    instance_type: Name
    name: str | None = None
    cpu: _Cpu = _Cpu()
    gpu: _Gpu
    gpu_memory: _Memory = _Memory()
    memory: _Memory = _Memory()
    p2p: str | None = None
    price_per_hour: Decimal | None = None
    spot_price: Decimal | None = None
    currency: str = "usd"


class _Availability(PayloadModel):
    """A row of ``GET /v1/instance-availability``."""

    location_code: Name
    availabilities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AvailabilityFeed:
    """One answer of ``instance-availability`` and what it was asked for."""

    payload: bytes
    is_spot: bool


_Places = Mapping[Tier, Mapping[str, tuple[str, ...]]]


def parse_offers(
    types: Sequence[bytes], availability: Sequence[AvailabilityFeed], observed_at: datetime
) -> OfferBatch:
    """Types joined to the locations that have them now, on demand and spot.

    Without any availability the prices stand alone: region ``any``, stock unknown, not orderable.
    """
    facts = load_provider_facts(NAME)
    places = _places(availability) if availability else None
    rows = [row for body in types for row in as_list(NAME, decode_json(NAME, body), "instance types")]
    named = ((_row_name(row), row) for row in rows)
    return collect(named, lambda row: _offers_of(row, places, facts, observed_at))


def _places(feeds: Sequence[AvailabilityFeed]) -> _Places:
    """Locations by tier and instance type."""
    found: dict[Tier, dict[str, tuple[str, ...]]] = {
        Tier.ON_DEMAND: defaultdict(tuple),
        Tier.SPOT: defaultdict(tuple),
    }
    for feed in feeds:
        tier = Tier.SPOT if feed.is_spot else Tier.ON_DEMAND
        for row in as_list(NAME, decode_json(NAME, feed.payload), "availability"):
            place = as_payload(NAME, row, _Availability)
            for kind in place.availabilities:
                if place.location_code not in found[tier][kind]:
                    found[tier][kind] = (*found[tier][kind], place.location_code)
    return found


def _row_name(row: Any) -> str:
    if not isinstance(row, dict):
        return "row that is no object"
    return str(row.get("instance_type", "row without instance_type"))


def _offers_of(
    row: Any, places: _Places | None, facts: ProviderFacts, observed_at: datetime
) -> Iterator[Offer | RejectedRow]:
    kind = _InstanceType.model_validate(row)
    sku = _sku(kind, facts)
    if kind.currency.lower() != "usd":
        raise RowRejected(f"price in {kind.currency[:8]!r}, dollars were asked for")
    quotes = {
        Tier.ON_DEMAND: ("price_per_hour", kind.price_per_hour),
        Tier.SPOT: ("spot_price", kind.spot_price),
    }
    for tier, (name, value) in quotes.items():
        try:
            price = require_price(value, name)
            regions = _regions(places, tier, kind.instance_type)
        except RowRejected as error:
            yield RejectedRow(f"{kind.instance_type} {tier}", str(error))
            continue
        for region in regions:
            yield _offer(kind, sku, tier, price, region, facts, observed_at)


def _regions(places: _Places | None, tier: Tier, kind: str) -> tuple[str, ...]:
    if places is None:
        return (ANY_REGION,)
    found = places[tier].get(kind, ())
    if not found:
        raise RowRejected("sold out everywhere")
    return found


def _offer(
    kind: _InstanceType,
    sku: Sku,
    tier: Tier,
    price: Decimal,
    region: str,
    facts: ProviderFacts,
    observed_at: datetime,
) -> Offer:
    return Offer(
        offer_id=f"{NAME}/{region}/{kind.instance_type}/{tier}",
        provider=NAME,
        sku=sku,
        region=region,
        country=facts.country_of(region),
        tier=tier,
        price_usd_per_node_hour=price,
        observed_at=observed_at,
        source="GET /v1/instance-types, /v1/instance-availability",
        native=NativePrice(price, "USD", "instance-hour"),
        billing_increment_s=BILLING_INCREMENT_S,
        stock=Stock(StockLevel.UNKNOWN),
        compliance=facts.compliance,
        reference={
            "instance_type": kind.instance_type,
            "location_code": "" if region == ANY_REGION else region,
            "is_spot": "true" if tier is Tier.SPOT else "false",
        },
    )


def _sku(kind: _InstanceType, facts: ProviderFacts) -> Sku:
    count = require_gpus(kind.gpu.number_of_gpus)
    total = kind.gpu_memory.size_in_gigabytes
    gpu = canonical_gpu(facts, _gpu_word(kind), None if total is None else total / count)
    return Sku(
        name=kind.instance_type,
        gpu=gpu,
        gpus_per_node=count,
        gpu_memory_gb=nominal_memory_gb(gpu),
        vcpus=kind.cpu.number_of_cores,
        memory_gb=kind.memory.size_in_gigabytes,
        form=_FORMS.get(kind.instance_type[-1]),
        intra_node=_intra_node(kind.p2p, gpu, count),
    )


def _gpu_word(kind: _InstanceType) -> str:
    """The GPU's description without the count that leads it."""
    return re.sub(r"^\d{1,3}x ", "", kind.gpu.description)


def _intra_node(p2p: str | None, gpu: str, count: int) -> IntraNode | None:
    """The kind that the GPU's form implies, at the rate that ``p2p`` states where it does."""
    inferred = infer_intra_node(gpu, count)
    stated = re.match(r"\s*(\d{1,5}(?:\.\d{1,3})?)\s*GB/s", p2p or "")
    if inferred is None or stated is None:
        return inferred
    return IntraNode(inferred.kind, float(stated.group(1)))


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded answers: availability is told by its rows, spot by the word in the file's name."""
    types: list[bytes] = []
    availability: list[AvailabilityFeed] = []
    for name, body in payloads:
        rows = as_list(NAME, decode_json(NAME, body), name)
        if "availab" in name or (rows and isinstance(rows[0], dict) and "availabilities" in rows[0]):
            availability.append(AvailabilityFeed(body, "spot" in name))
        else:
            types.append(body)
    return parse_offers(types, availability, observed_at)


_ERRORS: Mapping[str, type[ProviderError]] = {
    "unauthorized_request": CredentialsRejected,
    "forbidden_action": CredentialsRejected,
    "insufficient_funds": QuotaExceeded,
    "server_error": ProviderUnavailable,
    "service_unavailable": ProviderUnavailable,
}
_NO_CAPACITY = re.compile(
    r"capacity|out of stock|(instance|gpu|resource)\S* .{0,40}(not (currently )?available|unavailable)",
    re.IGNORECASE,
)
_GONE = re.compile(r"invalid instance id|discontinue a discontinued|not found", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """JSON ``{"code", "message"}``; capacity and "already gone" have no code, only words."""
    body = reply.json_or_none()
    if reply.status == 429 or not isinstance(body, dict):
        return classify_by_status(reply)
    return _error(str(body.get("code") or ""), str(body.get("message") or ""), reply)


def _error(code: str, message: str, reply: Reply) -> ProviderError:
    text = f"{code}: {message}"
    if code in _ERRORS:
        return _ERRORS[code](NAME, text)
    if reply.operation is Operation.RELEASE:
        if "provisioning" in message.lower():
            return ReleaseRefused(NAME, text, forever=False)
        if code == "not_found" or _GONE.search(message):
            return LeaseNotFound(NAME, text)
    if reply.operation is Operation.ORDER and _NO_CAPACITY.search(message):
        return InsufficientCapacity(NAME, text)
    if reply.operation is Operation.TOKEN and reply.status < 500:
        return CredentialsRejected(NAME, text)
    if reply.operation is Operation.ORDER and code in {"invalid_request", "not_found"}:
        return OrderRejected(NAME, text)
    if reply.operation is Operation.LEASES and _GONE.search(message):
        return LeaseNotFound(NAME, text)
    return classify_by_status(reply, text)


class _Token(PayloadModel):
    access_token: Name | None = None
    expires_in: Amount = 0.0


class _Instance(PayloadModel):
    id: Name
    status: str = ""
    instance_type: str = ""
    description: str | None = None
    hostname: str | None = None
    location: str = Field(default="", validation_alias=AliasChoices("location", "location_code"))
    os_volume_id: str | None = None


class _Action(PayloadModel):
    """A row of the answer to an action on several instances."""

    status: str = ""
    error: str | None = None
    statusCode: int | None = None


_STATES: Mapping[str, LeaseState] = {
    "ordered": LeaseState.PROVISIONING,
    "provisioning": LeaseState.PROVISIONING,
    "validating": LeaseState.PROVISIONING,
    "new": LeaseState.PROVISIONING,
    "running": LeaseState.ACTIVE,
    "offline": LeaseState.ACTIVE,
    "hibernating": LeaseState.ACTIVE,
    "deleting": LeaseState.ENDING,
    "discontinued": LeaseState.ENDED,
    "error": LeaseState.FAILED,
    "no_capacity": LeaseState.FAILED,
}


def _lease(instance: _Instance) -> Lease:
    return Lease(
        provider=NAME,
        reference=instance.id,
        state=_STATES.get(instance.status, LeaseState.UNKNOWN),
        tag=instance.description or instance.hostname,
        sku=instance.instance_type,
        region=instance.location,
        detail=instance.status,
    )


class Verda:
    """Client of instances, behind an access token that is fetched when needed."""

    provider = NAME
    idempotency = Idempotency.TAG

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        self._settings = settings
        self._http = http_factory(
            NAME, settings.base_url, classify, settings.tuned(POLICY), secrets=settings.secrets
        )
        self._token = ""
        self._token_until_s = 0.0
        self._token_lock = asyncio.Lock()

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Types, and where each is in stock."""
        types = await self._call("GET", "/v1/instance-types", Operation.OFFERS, params={"currency": "usd"})
        feeds = [
            AvailabilityFeed(await self._availability(is_spot=spot), is_spot=spot) for spot in (False, True)
        ]
        return parse_offers([types.body], feeds, observed_at)

    async def _availability(self, *, is_spot: bool) -> bytes:
        params = {"is_spot": "true" if is_spot else "false"}
        reply = await self._call("GET", "/v1/instance-availability", Operation.OFFERS, params=params)
        return reply.body

    async def _call(
        self,
        method: str,
        path: str,
        operation: Operation,
        *,
        repeatable: bool | None = None,
        params: Mapping[str, str] | None = None,
        json: Any = None,
    ) -> Reply:
        """One call with a token; a token that was refused is fetched anew, once."""
        for renew in (False, True):
            headers = {"Authorization": f"Bearer {await self._fresh_token(renew=renew)}"}
            try:
                return await self._http.request(
                    method,
                    path,
                    operation=operation,
                    repeatable=repeatable,
                    params=params,
                    json=json,
                    headers=headers,
                )
            except CredentialsRejected:
                if renew:
                    raise
        raise CredentialsRejected(NAME, "no token was accepted")

    async def _fresh_token(self, *, renew: bool) -> str:
        async with self._token_lock:
            if renew or time.monotonic() >= self._token_until_s:
                await self._fetch_token()
            return self._token

    async def _fetch_token(self) -> None:
        reply = await self._http.request(
            "POST",
            "/v1/oauth2/token",
            operation=Operation.TOKEN,
            repeatable=True,
            json={
                "grant_type": "client_credentials",
                "client_id": self._settings.secret("client_id"),
                "client_secret": self._settings.secret("client_secret"),
            },
        )
        token = reply.read(_Token)
        if token.access_token is None:
            raise reply.unreadable("a token answer without a token")
        self._http.add_secret(token.access_token)
        self._token = token.access_token
        self._token_until_s = time.monotonic() + max(0.0, token.expires_in - TOKEN_MARGIN_S)

    def nodes_per_order(self, offer: Offer) -> int | None:
        """One: a call makes one instance."""
        return 1

    async def reserve(self, order: Order) -> Lease:
        """Orders one instance, described by the tag; capacity may still fail later."""
        refuse_unless_single(order, NAME, LONGEST_HOSTNAME)
        if not order.offer.reference["location_code"]:
            raise OrderRejected(NAME, "the offer names no location")
        reply = await self._call("POST", "/v1/instances", Operation.ORDER, json=self._order_body(order))
        return Lease(
            provider=NAME,
            reference=_new_id(reply),
            state=LeaseState.PROVISIONING,
            tag=order.tag,
            sku=order.offer.sku.name,
            region=order.offer.region,
        )

    def _order_body(self, order: Order) -> dict[str, Any]:
        note, options = order.offer.reference, self._settings.options
        spot = note["is_spot"] == "true"
        volume: dict[str, Any] = {"name": order.tag, "size": int(options["disk_gb"])}
        if spot:
            volume["on_spot_discontinue"] = "delete_permanently"
        return {
            "instance_type": note["instance_type"],
            "image": options["image"],
            "hostname": re.sub(r"[^a-z0-9-]", "-", order.tag.lower()),
            "description": order.tag,
            "ssh_key_ids": [options["ssh_key_id"]] if options["ssh_key_id"] else [],
            "location_code": note["location_code"],
            "os_volume": volume,
            "is_spot": spot,
            "contract": "SPOT" if spot else "PAY_AS_YOU_GO",
            "pricing": "FIXED_PRICE",
        }

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One instance."""
        return _lease(await self._instance(reference))

    async def _instance(self, reference: str) -> _Instance:
        reply = await self._call("GET", f"/v1/instances/{reference}", Operation.LEASES)
        return reply.read(_Instance)

    async def list_leases(self) -> Sequence[Lease]:
        """Every instance of the account; the list has one page."""
        reply = await self._call("GET", "/v1/instances", Operation.LEASES)
        rows = as_list(NAME, reply.json(), "instances")
        return tuple(_lease(as_payload(NAME, row, _Instance)) for row in rows)

    async def release(self, lease: Lease) -> None:
        """Deletes the instance with its system volume, which would go on being billed."""
        try:
            instance = await self._instance(lease.reference)
            if _STATES.get(instance.status) is LeaseState.ENDED:
                return
            await self._delete(instance)
        except LeaseNotFound:
            return

    async def _delete(self, instance: _Instance) -> None:
        reply = await self._call(
            "PUT",
            "/v1/instances",
            Operation.RELEASE,
            repeatable=True,
            json={
                "id": [instance.id],
                "action": "delete",
                "volume_ids": [instance.os_volume_id] if instance.os_volume_id else None,
                "delete_permanently": True,
            },
        )
        if reply.status in {202, 207} and reply.body.strip():
            _require_done(reply)


def _require_done(reply: Reply) -> None:
    """Raises what the first failed row of a partial answer means."""
    for row in as_list(NAME, reply.json(), "actions"):
        action = as_payload(NAME, row, _Action)
        if action.error or (action.statusCode or 0) >= 400:
            raise _error("", action.error or action.status, reply)


def _new_id(reply: Reply) -> str:
    """The id of a new instance: plain text, a JSON string, or an object with ``id``."""
    body = reply.json_or_none()
    found = body.get("id") if isinstance(body, dict) else body
    text = found if isinstance(found, str) else reply.text.strip()
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text):
        raise reply.unreadable("an order without an instance id")
    return text


SPEC = ProviderSpec(
    name=NAME,
    title="Verda",
    base_url=BASE_URL,
    credentials={
        "client_id": "id of OAuth2 client credentials",
        "client_secret": "their secret",
    },
    options={"ssh_key_id": "", "image": "ubuntu-24.04", "disk_gb": "100"},
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
    adapter=Verda,
    build=Verda,
    parse=parse,
)
