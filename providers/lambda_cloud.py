"""Lambda Cloud: on-demand virtual machines.

Sold: whole machines by the hour. On the wire: integer US cents per machine and hour, memory and disk in GiB,
the GPU as text ("H100 (80 GB SXM5)"), which an answer may leave out. Not said: how much is in stock (only
which regions have some now, so a sold-out type names no region), the link between GPUs, the CPU's
architecture, and any network between machines (clusters are not orderable here), hence no fabric. Billing by
the minute is not in the API; 60 s is the documented habit.

Environment: ``BROKER_LAMBDA_API_KEY``; ``BROKER_LAMBDA_SSH_KEY`` (name of a key pair of the account, for
orders without a key of their own), ``BROKER_LAMBDA_IMAGE_FAMILY`` (default: Lambda's own).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
)
from broker.domain.basics.machines import Access, with_keys
from broker.domain.holding.reservation import Idempotency, Lease, LeaseState, Order
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, Stock, StockLevel, Tier
from broker.domain.market.sku import Form, Sku
from broker.provider_facts import ProviderFacts, load_provider_facts
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
from providers.payload import (
    Amount,
    GpuCount,
    Name,
    PayloadModel,
    RowRejected,
    as_dict,
    canonical_gpu,
    collect,
    decode_json,
    gb_of_gib,
    named_card,
    require_gpus,
    require_price,
)
from providers.rows import gpu_node, page_by_page, rate_of
from providers.schema import Rows, Words
from providers.spec import HOLDING, Capability, Need, ProviderSettings, ProviderSpec, refuse_unless_single

NAME = "lambda"
BASE_URL = "https://cloud.lambda.ai"
USER, HOME = "ubuntu", "/home/ubuntu"
_COUNTED = re.compile(r"^gpu_\d+x_")
POLICY = HttpPolicy(interval_s={Operation.ORDER: 12.0}, any_interval_s=1.0)


class _Region(PayloadModel):
    name: Name


class _Specs(PayloadModel):
    gpus: GpuCount
    vcpus: Amount | None = None
    memory_gib: Amount | None = None
    storage_gib: Amount | None = None


class _InstanceType(PayloadModel):
    name: Name
    gpu_description: str = ""
    price_cents_per_hour: Decimal | None = None
    specs: _Specs


class _TypeRow(PayloadModel):
    instance_type: _InstanceType
    regions_with_capacity_available: tuple[_Region, ...]


def parse_offers(payload: bytes, observed_at: datetime) -> OfferBatch:
    """Offers of ``GET /api/v1/instance-types``: one per type and region that has capacity now."""
    facts = load_provider_facts(NAME)
    envelope = as_dict(NAME, decode_json(NAME, payload), "the answer")
    rows = as_dict(NAME, envelope.get("data"), "data")
    return collect(rows.items(), lambda row: _offers_of(row, facts, observed_at))


def _offers_of(row: Any, facts: ProviderFacts, observed_at: datetime) -> Iterator[Offer]:
    read = _TypeRow.model_validate(row)
    kind = read.instance_type
    sku = _sku(kind, facts)
    cents = require_price(kind.price_cents_per_hour, "price_cents_per_hour")
    if not read.regions_with_capacity_available:
        raise RowRejected("sold out everywhere")
    for region in read.regions_with_capacity_available:
        yield Offer(
            offer_id=f"{NAME}/{region.name}/{kind.name}/{Tier.ON_DEMAND}",
            provider=NAME,
            sku=sku,
            region=region.name,
            country=facts.country_of(region.name),
            tier=Tier.ON_DEMAND,
            price_usd_per_node_hour=cents / 100,
            observed_at=observed_at,
            source="GET /api/v1/instance-types",
            native=NativePrice(cents, "USD", "cents per instance-hour"),
            billing_increment_s=facts.billed.increment_s,
            stock=Stock(StockLevel.SOME),
            compliance=facts.compliance,
            reference={"region_name": region.name, "instance_type_name": kind.name},
        )


def _sku(kind: _InstanceType, facts: ProviderFacts) -> Sku:
    count = require_gpus(kind.specs.gpus)
    gpu = _gpu(kind, facts)
    memory_gb, disk_gb = gb_of_gib(kind.specs.memory_gib), gb_of_gib(kind.specs.storage_gib)
    return gpu_node(
        kind.name, gpu, count, Form.VM, vcpus=kind.specs.vcpus, memory_gb=memory_gb, disk_gb=disk_gb
    )


def _gpu(kind: _InstanceType, facts: ProviderFacts) -> str:
    """The card by its description; without one, by the type's name, which Lambda uses for one card only."""
    if kind.gpu_description:
        return canonical_gpu(facts, kind.gpu_description, _stated_memory_gb(kind.gpu_description))
    known = facts.nodes.get(kind.name)
    return known.gpu if known is not None and known.gpu else named_card(_COUNTED.sub("", kind.name))


def _stated_memory_gb(description: str) -> float | None:
    found = re.search(r"\((\d{1,4}) GB", description)
    return float(found.group(1)) if found else None


_ERRORS: Mapping[str, type[ProviderError]] = {
    "instance-operations/launch/insufficient-capacity": InsufficientCapacity,
    "instance-operations/launch/file-system-in-wrong-region": OrderRejected,
    "global/quota-exceeded": QuotaExceeded,
    "global/invalid-parameters": OrderRejected,
    "global/invalid-api-key": CredentialsRejected,
    "global/account-inactive": CredentialsRejected,
    "global/invalid-address": CredentialsRejected,
}


def classify(reply: Reply) -> ProviderError:
    """The typed error of an answer: capacity, quota and bad requests are all HTTP 400 and differ in
    ``code``."""
    body = reply.json_or_none()
    error = body.get("error") if isinstance(body, dict) else None
    if reply.status == 429 or not isinstance(error, dict):
        return classify_by_status(reply)
    code, message = str(error.get("code", "")), str(error.get("message", ""))
    text = f"{code}: {message}"
    if code in _ERRORS:
        return _ERRORS[code](NAME, text)
    if code == "global/object-does-not-exist":
        return OrderRejected(NAME, text) if reply.operation is Operation.ORDER else LeaseNotFound(NAME, text)
    if code.startswith("provider/"):
        return ProviderUnavailable(NAME, text)
    return classify_by_status(reply, text)


class _InstanceKind(PayloadModel):
    name: str = ""
    price_cents_per_hour: Decimal | None = None


class _Instance(PayloadModel):
    id: Name
    status: Annotated[str, Words(lambda: _STATES)] = ""
    name: str | None = None
    region: _Region | None = None
    instance_type: _InstanceKind | None = None
    ip: str | None = None
    private_ip: str | None = None
    jupyter_url: str | None = None


class _InstanceAnswer(PayloadModel):
    data: _Instance


class _InstancesAnswer(PayloadModel):
    data: tuple[_Instance, ...]


class _Key(PayloadModel):
    id: Name
    name: Name
    public_key: str


class _KeyAnswer(PayloadModel):
    data: _Key


class _KeysAnswer(PayloadModel):
    data: tuple[_Key, ...]


class _Launched(PayloadModel):
    instance_ids: tuple[Name, ...]


class _LaunchAnswer(PayloadModel):
    data: _Launched


_STATES: Mapping[str, LeaseState] = {
    "booting": LeaseState.PROVISIONING,
    "active": LeaseState.ACTIVE,
    "unhealthy": LeaseState.ACTIVE,
    "terminating": LeaseState.ENDING,
    "terminated": LeaseState.ENDED,
    "preempted": LeaseState.ENDED,
}


def _lease(instance: _Instance) -> Lease:
    """An instance as a lease, with the price of its type; the launch answer has no price."""
    cents = instance.instance_type.price_cents_per_hour if instance.instance_type else None
    return Lease(
        provider=NAME,
        reference=instance.id,
        state=_STATES.get(instance.status, LeaseState.UNKNOWN),
        tag=instance.name,
        sku=instance.instance_type.name if instance.instance_type else "",
        region=instance.region.name if instance.region else "",
        detail=instance.status,
        price_usd_per_node_hour=None if cents is None else rate_of(cents / 100),
        machines=_machines(instance),
    )


def _machines(instance: _Instance) -> tuple[Access, ...]:
    if not instance.ip:
        return ()
    return (
        Access(instance.ip, USER, private_host=instance.private_ip, console_url=instance.jupyter_url or None),
    )


class LambdaCloud(KeyRegister):
    """Client of the parts of the API that sell and hold machines."""

    provider = NAME
    longest_tag = 64
    tells_price = True
    entry = Entry.KEYS
    takes_script = True

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        super().__init__(settings, http_factory, classify, POLICY, bearer(settings, "api_key"))

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Types with capacity, by region."""
        return parse_offers((await self._on_sale("/api/v1/instance-types")).body, observed_at)

    async def reserve(self, order: Order) -> Lease:
        """Launches one machine named by the tag."""
        refuse_unless_single(order, NAME, self.longest_tag)
        names = await self.registered(order.keys[:1])
        key_name = names[0] if names else self._settings.options["ssh_key"]
        reply = await self._order("/api/v1/instance-operations/launch", self._launch_body(order, key_name))
        ids = reply.read(_LaunchAnswer).data.instance_ids
        if not ids:
            raise reply.unreadable("a launch without an instance id")
        return ordered(order, ids[0])

    def _launch_body(self, order: Order, key_name: str) -> dict[str, Any]:
        """The order. It names one key, so that the others come with the script of the first start."""
        script = with_keys(order.script, order.keys[1:], HOME)
        body: dict[str, Any] = {
            "region_name": order.offer.reference["region_name"],
            "instance_type_name": order.offer.reference["instance_type_name"],
            "ssh_key_names": [key_name],
            "name": order.tag,
            **({"user_data": script} if script else {}),
        }
        family = self._settings.options["image_family"]
        return {**body, "image": {"family": family}} if family else body

    async def account_keys(self) -> Sequence[AccountKey]:
        """The key pairs of the account; an order names one."""
        found = (await self._key_call("GET", "/api/v1/ssh-keys")).read(_KeysAnswer).data
        return [AccountKey(key.name, key.name, key_line(key.public_key)) for key in found]

    async def _register_key(self, name: str, line: str) -> str:
        reply = await self._key_call("POST", "/api/v1/ssh-keys", {"name": name, "public_key": line})
        return reply.read(_KeyAnswer).data.name

    async def _unregister_key(self, key: AccountKey) -> None:
        found = (await self._key_call("GET", "/api/v1/ssh-keys")).read(_KeysAnswer).data
        for one in found:
            if one.name == key.name:
                await self._key_call("DELETE", f"/api/v1/ssh-keys/{one.id}")

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One machine."""
        return _lease((await self._held(f"/api/v1/instances/{reference}")).read(_InstanceAnswer).data)

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every machine of the account; the list has one page."""
        reply = await self._held("/api/v1/instances")
        return tuple(_lease(instance) for instance in reply.read(_InstancesAnswer).data)

    async def _give_back(self, lease: Lease) -> None:
        wish = {"instance_ids": [lease.reference]}
        await self._end("POST", "/api/v1/instance-operations/terminate", wish)


ROWS = (Rows("GET /api/v1/instance-types", "data.*", _TypeRow),)


SPEC = ProviderSpec(
    name=NAME,
    title="Lambda Cloud",
    base_url=BASE_URL,
    credentials={"api_key": "an API key of the Cloud dashboard"},
    options={"ssh_key": "", "image_family": ""},
    needs=(Need(("ssh_key",), "the name of a key pair of the account", "broker", in_order=True),),
    capabilities=HOLDING | {Capability.LEASE_PRICE},
    idempotency=Idempotency.TAG,
    adapter=LambdaCloud,
    build=LambdaCloud,
    parse=page_by_page(parse_offers),
    rows=ROWS,
)
