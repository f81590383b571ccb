"""Shadeform: other clouds' machines through one API, on demand.

Sold: whole instances by the hour; the seller is the upstream cloud, and a type is unique only together with
it. On the wire: integer US cents per instance and hour, one price for all regions of a type; memory per GPU
in GB; the form (vm, container, baremetal) and the GPU's socket as ``interconnect``; stock as yes or no by
region and ``rental_type`` (spot alone has no price of its own and cannot be ordered here); ``nvlink`` is
optional. Bridges of PCIe cards join pairs, so ``nvlink`` makes a link of two of them only. An order may be
accepted and then end in status ``error``. Not said: how many are in stock, the network between instances (no
fabric), the CPU's architecture, how billing is rounded (whole hours are assumed). Not used: ``/clusters``.
Its price basis, its network and the body of its create call are documented inconsistently, so single
instances alone are sold.

Unverified: status and body of the errors about an unknown instance, a delete that comes too early, and a
rate limit; the longest name. The capacity error is documented: 409 ``OUT_OF_STOCK``.

An order names one registered key, and the others come with its start script, which runs once the instance
is active. Which user a cloud's machine has is known only then: the others open ``shadeform``, the user of
nearly all clouds. A key that a machine still has, or that is the account's default, cannot be removed.

Environment: ``BROKER_SHADEFORM_API_KEY``; ``BROKER_SHADEFORM_SSH_KEY_ID`` (for orders without a key of their
own), ``BROKER_SHADEFORM_OS`` (default: those of the account and of the type).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from broker.catalogue import load_gpus
from broker.domain.basics.errors import (
    InsufficientCapacity,
    LeaseNotFound,
    ProviderError,
    QuotaExceeded,
    ReleaseRefused,
)
from broker.domain.basics.machines import SSH_PORT, Access, with_keys
from broker.domain.basics.node_launch import LaunchBasis, NodeLaunch
from broker.domain.holding.reservation import Idempotency, Lease, LeaseState, Order
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, RejectedRow, Stock, StockLevel, Tier
from broker.domain.market.sku import Form, IntraNode, LinkKind, Sku
from broker.provider_facts import ProviderFacts, infer_intra_node, load_provider_facts
from providers.client import AccountKey, Entry, KeyRegister, key_line, ordered, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import (
    Amount,
    GpuCount,
    Instant,
    Name,
    PayloadModel,
    RowRejected,
    canonical_gpu,
    collect,
    nominal_memory_gb,
    require_gpus,
    require_price,
    slug,
)
from providers.rows import page_by_page, rate_of, rows_under
from providers.schema import Rows, Words
from providers.spec import HOLDING, Capability, ProviderSettings, ProviderSpec, refuse_unless_single

NAME = "shadeform"
BASE_URL = "https://api.shadeform.ai"
ON_DEMAND = "on_demand"
USER, HOME = "shadeform", "/home/shadeform"
POLICY = HttpPolicy(concurrency=4)

_FORMS = {"vm": Form.VM, "container": Form.CONTAINER, "baremetal": Form.BARE_METAL}


class _Place(PayloadModel):
    """A region appears once for each way in which the type is rented there; an older answer has no region."""

    region: Name
    available: bool = False
    rental_type: str = ON_DEMAND


class _Configuration(PayloadModel):
    num_gpus: GpuCount = 0
    gpu_type: str = ""
    interconnect: str | None = None
    nvlink: bool | None = None
    vram_per_gpu_in_gb: Amount | None = None
    vcpus: Amount | None = None
    memory_in_gb: Amount | None = None
    storage_in_gb: Amount | None = None


class _BootTime(PayloadModel):
    """Seconds from the order to a running instance."""

    min_boot_in_sec: Amount = 0
    max_boot_in_sec: Amount = 0


class _Type(PayloadModel):
    """A row of ``instance_types``."""

    cloud: Name
    shade_instance_type: Name
    hourly_price: Decimal | None = None
    deployment_type: str = ""
    configuration: _Configuration
    availability: tuple[_Place, ...] = ()
    boot_time: _BootTime | None = None

    @property
    def launch(self) -> NodeLaunch | None:
        """The middle of the stated range, as a time to launch."""
        boot = self.boot_time
        if boot is None or boot.max_boot_in_sec == 0:
            return None
        return NodeLaunch((boot.min_boot_in_sec + boot.max_boot_in_sec) / 2, LaunchBasis.STATED)

    @property
    def sku(self) -> str:
        return slug(f"{self.cloud}_{self.shade_instance_type}")


def parse_offers(payload: bytes, observed_at: datetime) -> OfferBatch:
    """Offers of ``GET /v1/instances/types``: one for each type and region that has some now."""
    facts = load_provider_facts(NAME)
    rows = rows_under(NAME, payload, "instance_types")
    return collect(((_row_name(row), row) for row in rows), lambda row: _offers_of(row, facts, observed_at))


def _row_name(row: Any) -> str:
    if not isinstance(row, dict):
        return "row that is no object"
    return f"{row.get('cloud', 'no cloud')}_{row.get('shade_instance_type', 'no type')}"


def _offers_of(row: Any, facts: ProviderFacts, observed_at: datetime) -> Iterator[Offer | RejectedRow]:
    kind = _Type.model_validate(row)
    sku = _sku(kind, facts)
    cents = require_price(kind.hourly_price, "hourly_price")
    if not kind.availability:
        raise RowRejected("no region")
    for place in kind.availability:
        named = f"{kind.sku} {place.region}"[:200]
        if place.rental_type != ON_DEMAND:
            says = f"rental_type {place.rental_type[:40]!r}, for which no price stands and no order asks"
            yield RejectedRow(named, says)
            continue
        if not place.available:
            yield RejectedRow(named, "sold out")
            continue
        yield Offer(
            offer_id=f"{NAME}/{slug(place.region)}/{kind.sku}/{Tier.ON_DEMAND}",
            provider=NAME,
            sku=sku,
            region=place.region,
            country=_country(facts, place.region),
            seller=kind.cloud,
            tier=Tier.ON_DEMAND,
            price_usd_per_node_hour=cents / 100,
            observed_at=observed_at,
            source="GET /v1/instances/types",
            native=NativePrice(cents, "USD", "cents per instance-hour"),
            stock=Stock(StockLevel.SOME),
            billing_increment_s=facts.billed.increment_s,
            compliance=facts.compliance,
            launch=kind.launch,
            reference={
                "cloud": kind.cloud,
                "region": place.region,
                "shade_instance_type": kind.shade_instance_type,
            },
        )


def _country(facts: ProviderFacts, region: str) -> str | None:
    """The country of ``city-country-number``, or of a region in the older form."""
    found = re.fullmatch(r".+-([a-z]+)-\d+", region)
    return facts.country_of(found.group(1) if found and found.group(1) in facts.countries else region)


def _sku(kind: _Type, facts: ProviderFacts) -> Sku:
    config = kind.configuration
    count = require_gpus(config.num_gpus)
    word = " ".join(part for part in (config.gpu_type, config.interconnect) if part)
    gpu = canonical_gpu(facts, word, config.vram_per_gpu_in_gb)
    return Sku(
        name=kind.sku,
        gpu=gpu,
        gpus_per_node=count,
        gpu_memory_gb=nominal_memory_gb(gpu),
        vcpus=config.vcpus,
        memory_gb=config.memory_in_gb,
        disk_gb=config.storage_in_gb,
        form=_FORMS.get(kind.deployment_type),
        intra_node=_intra_node(gpu, count, config.nvlink),
    )


def _intra_node(gpu: str, count: int, nvlink: bool | None) -> IntraNode | None:
    """The link that the GPU's form implies, unless ``nvlink`` excludes a switch or adds a bridge between two
    cards."""
    implied, spec = infer_intra_node(gpu, count), load_gpus()[gpu]
    if implied is None or nvlink is None:
        return implied
    if implied.kind is LinkKind.NVLINK and not nvlink:
        per_dir = spec.pcie_gbyte_s_per_dir
        return IntraNode(LinkKind.PCIE, 2 * per_dir) if per_dir else None
    bridged = implied.kind is LinkKind.PCIE and nvlink and count == 2 and "NVLink" in spec.scaleup_kind
    if bridged and spec.scaleup_gbyte_s_per_dir:
        return IntraNode(LinkKind.NVLINK, 2 * spec.scaleup_gbyte_s_per_dir)
    return implied


_NO_STOCK = re.compile(r"out of stock|no capacity|(not enough|insufficient) capacity|sold out", re.IGNORECASE)
_NO_QUOTA = re.compile(r"quota|limit (reached|exceeded)|balance|insufficient funds", re.IGNORECASE)
_GONE = re.compile(r"not[ _]found|does not exist|already (been )?delet|is delet", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """The typed error of ``{"error_code", "error"}``; the status is mostly 409, so code and words decide."""
    body = reply.json_or_none()
    if reply.status in {401, 403, 429} or reply.status >= 500 or not isinstance(body, dict):
        return classify_by_status(reply)
    code, message = str(body.get("error_code") or ""), str(body.get("error") or "")
    text = f"{code}: {message}".strip(": ")
    if reply.operation is Operation.ORDER:
        if code == "OUT_OF_STOCK" or _NO_STOCK.search(text):
            return InsufficientCapacity(NAME, text)
        if reply.status == 402 or _NO_QUOTA.search(text.replace("_", " ")):
            return QuotaExceeded(NAME, text)
    elif reply.operation in {Operation.LEASES, Operation.RELEASE} and _GONE.search(text):
        return LeaseNotFound(NAME, text)
    if reply.operation is Operation.RELEASE and reply.status in {400, 409, 422}:
        return ReleaseRefused(NAME, text, forever=False)
    return classify_by_status(reply, text)


class _Instance(PayloadModel):
    id: Name
    name: str | None = None
    cloud: str = ""
    region: str = ""
    shade_instance_type: str = ""
    status: Annotated[str, Words(lambda: _STATES)] = ""
    status_details: str | None = None
    tags: tuple[str, ...] | None = None
    created_at: Instant = None
    deleted_at: Instant = None
    hourly_price: Decimal | None = None
    ip: str | None = None
    ssh_user: str | None = None
    ssh_port: int | None = None


class _Instances(PayloadModel):
    instances: tuple[_Instance, ...]


class _Created(PayloadModel):
    id: Name


class _Key(PayloadModel):
    id: Name
    name: Name
    public_key: str


class _Keys(PayloadModel):
    ssh_keys: tuple[_Key, ...]


_STATES: Mapping[str, LeaseState] = {
    "creating": LeaseState.PROVISIONING,
    "pending_provider": LeaseState.PROVISIONING,
    "pending": LeaseState.PROVISIONING,
    "active": LeaseState.ACTIVE,
    "error": LeaseState.FAILED,
    "deleting": LeaseState.ENDING,
    "deleted": LeaseState.ENDED,
}


def _lease(instance: _Instance) -> Lease:
    cents = instance.hourly_price
    return Lease(
        provider=NAME,
        reference=instance.id,
        state=_STATES.get(instance.status, LeaseState.UNKNOWN),
        tag=instance.tags[0] if instance.tags else instance.name,
        sku=f"{instance.cloud}_{instance.shade_instance_type}",
        region=instance.region,
        detail=" ".join(part for part in (instance.status, instance.status_details) if part),
        began_at=instance.created_at,
        ended_at=instance.deleted_at,
        price_usd_per_node_hour=None if cents is None else rate_of(cents / 100),
        machines=_machines(instance),
    )


def _machines(instance: _Instance) -> tuple[Access, ...]:
    if not instance.ip:
        return ()
    return (Access(instance.ip, instance.ssh_user or USER, instance.ssh_port or SSH_PORT),)


class Shadeform(KeyRegister):
    """Client of the parts of the API that sell and hold instances."""

    provider = NAME
    tells_price = True
    entry = Entry.KEYS
    takes_script = True

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        key = {"X-API-KEY": settings.secret("api_key")}
        super().__init__(settings, http_factory, classify, POLICY, key)

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """All types; the list has one page."""
        return parse_offers((await self._on_sale("/v1/instances/types")).body, observed_at)

    async def reserve(self, order: Order) -> Lease:
        """Creates one instance with the tag as name and first tag; it may still fail for lack of capacity."""
        refuse_unless_single(order, NAME, self.longest_tag)
        ids = await self.registered(order.keys[:1])
        key_id = ids[0] if ids else self._settings.options["ssh_key_id"]
        reply = await self._order("/v1/instances/create", self._create_body(order, key_id))
        return ordered(order, reply.read(_Created).id)

    def _create_body(self, order: Order, key_id: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            **order.offer.reference,
            "shade_cloud": True,
            "name": order.tag,
            "tags": [order.tag],
        }
        script = with_keys(order.script, order.keys[1:], HOME)
        launch = {"type": "script", "script_configuration": {"base64_script": _base64(script)}}
        chosen = {
            "ssh_key_id": key_id,
            "os": self._settings.options["os"],
            "launch_configuration": launch if script else None,
        }
        return {**body, **{name: value for name, value in chosen.items() if value}}

    async def account_keys(self) -> Sequence[AccountKey]:
        """The keys of the account; an order names one."""
        found = (await self._key_call("GET", "/v1/sshkeys")).read(_Keys).ssh_keys
        return [AccountKey(key.id, key.name, key_line(key.public_key)) for key in found]

    async def _register_key(self, name: str, line: str) -> str:
        reply = await self._key_call("POST", "/v1/sshkeys/add", {"name": name, "public_key": line})
        return reply.read(_Created).id

    async def _unregister_key(self, key: AccountKey) -> None:
        await self._key_call("POST", f"/v1/sshkeys/{key.key_id}/delete")

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One instance."""
        return _lease((await self._held(f"/v1/instances/{reference}/info")).read(_Instance))

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every instance that is not deleted; the list has one page."""
        reply = await self._held("/v1/instances")
        return tuple(_lease(instance) for instance in reply.read(_Instances).instances)

    async def _give_back(self, lease: Lease) -> None:
        await self._end("POST", f"/v1/instances/{lease.reference}/delete")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


ROWS = (Rows("GET /v1/instances/types", "instance_types[]", _Type, at_times=("availability.rental_type",)),)


SPEC = ProviderSpec(
    name=NAME,
    title="Shadeform",
    base_url=BASE_URL,
    credentials={"api_key": "an API key of the Shadeform console"},
    options={"ssh_key_id": "", "os": ""},
    capabilities=HOLDING | {Capability.LEASE_PRICE},
    idempotency=Idempotency.TAG,
    adapter=Shadeform,
    build=Shadeform,
    parse=page_by_page(parse_offers),
    rows=ROWS,
)
