"""RunPod: container pods of the secure cloud, on demand and interruptible.

Sold: pods of 1, 2, 4 or 8 GPUs by the minute. On the wire: USD per hour and *GPU*, as JSON numbers; the
node's price is that times the GPUs. The id of a GPU type lies about the form factor ("NVIDIA H100 80GB
HBM3" is SXM), so its display name is read. REST v2 gives a stock level per data centre and for one GPU
count a call; interruptible pods are in GraphQL alone, whose catalogue is open to all and names no data
centre (region ``any``). Neither answer says how many GPUs it was asked for: a recorded file carries that
in its name (``…count8.json``), else only the price is known for more than one GPU.
Not said: the link between GPUs, the network between pods (no fabric), the host, memory of the pod.
The community cloud is left out. An exited pod keeps its disk and is billed for it until it is deleted.

Environment: ``BROKER_RUNPOD_API_KEY``; ``BROKER_RUNPOD_IMAGE``, ``BROKER_RUNPOD_DISK_GB``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from broker.catalogue import ProviderFacts, infer_intra_node, load_provider_facts
from broker.domain.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    PayloadUnreadable,
    ProviderError,
)
from broker.domain.offer import NativePrice, Offer, OfferBatch, RejectedRow, Stock, StockLevel, Tier
from broker.domain.reservation import Lease, LeaseState, Order
from broker.domain.sku import Form, Sku
from broker.ports import Idempotency
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import (
    Amount,
    GpuCount,
    Name,
    PayloadModel,
    RowRejected,
    as_dict,
    as_list,
    canonical_gpu,
    collect,
    decode_json,
    join_batches,
    nominal_memory_gb,
    require_price,
    slug,
)
from providers.spec import (
    Capability,
    NamedPayload,
    ProviderSettings,
    ProviderSpec,
    refuse_unless_single,
)

NAME = "runpod"
BASE_URL = "https://api.runpod.io"
BILLING_INCREMENT_S = 60
COUNTS = (1, 2, 4, 8)
ANY_REGION = "any"
LONGEST_NAME = 191
POLICY = HttpPolicy(concurrency=4)

_LEVELS: Mapping[str, StockLevel] = {
    "none": StockLevel.NONE,
    "low": StockLevel.LOW,
    "medium": StockLevel.MEDIUM,
    "high": StockLevel.HIGH,
}


class _Prices(PayloadModel):
    secure: Decimal | None = None


class _Ceiling(PayloadModel):
    secure: GpuCount | None = None


class _DataCenter(PayloadModel):
    id: Name
    availability: str | None = None


class _Gpu(PayloadModel):
    """A row of ``GET /v2/catalog/gpus``."""

    id: Name
    name: Name
    memory: Amount | None = None
    price: _Prices
    maxCount: _Ceiling = _Ceiling()
    dataCenters: tuple[_DataCenter, ...] = ()


class _Lowest(PayloadModel):
    minimumBidPrice: Decimal | None = None
    uninterruptablePrice: Decimal | None = None
    minVcpu: Amount | None = None
    minMemory: Amount | None = None
    stockStatus: str | None = None


class _GpuType(PayloadModel):
    """A row of GraphQL ``gpuTypes``."""

    id: Name
    displayName: Name
    memoryInGb: Amount | None = None
    lowestPrice: _Lowest | None = None


@dataclass(frozen=True, slots=True)
class _Pod:
    """What both catalogues say of one GPU type at one count."""

    gpu_type: str
    word: str
    memory_gb: float | None
    count: int
    vcpus: float | None = None
    host_memory_gb: float | None = None

    @property
    def name(self) -> str:
        """Our name of the pod's kind."""
        return f"{self.gpu_type} x{self.count}"

    def sku(self, facts: ProviderFacts) -> Sku:
        """The node."""
        gpu = canonical_gpu(facts, self.word, self.memory_gb)
        return Sku(
            name=self.name,
            gpu=gpu,
            gpus_per_node=self.count,
            gpu_memory_gb=nominal_memory_gb(gpu),
            vcpus=self.vcpus,
            memory_gb=self.host_memory_gb,
            form=Form.CONTAINER,
            intra_node=infer_intra_node(gpu, self.count),
        )


def _offer(
    pod: _Pod, tier: Tier, price: Decimal, region: str, level: StockLevel, source: str, observed_at: datetime
) -> Offer:
    facts = load_provider_facts(NAME)
    return Offer(
        offer_id=f"{NAME}/{region}/{slug(pod.gpu_type)}/x{pod.count}/{tier}",
        provider=NAME,
        sku=pod.sku(facts),
        region=region,
        country=facts.country_of(region),
        tier=tier,
        price_usd_per_node_hour=price * pod.count,
        observed_at=observed_at,
        source=source,
        native=NativePrice(price, "USD", "GPU-hour"),
        billing_increment_s=BILLING_INCREMENT_S,
        stock=Stock(level),
        compliance=facts.compliance,
        reference={
            "gpu_type_id": pod.gpu_type,
            "gpu_count": str(pod.count),
            "data_center_id": "" if region == ANY_REGION else region,
            "bid_per_gpu": str(price) if tier is Tier.SPOT else "",
        },
    )


def _level(word: str | None) -> StockLevel:
    if word is None:
        return StockLevel.NONE
    return _LEVELS.get(word.lower(), StockLevel.UNKNOWN)


def parse_offers(payload: bytes, asked_count: int | None, observed_at: datetime) -> OfferBatch:
    """On-demand offers of ``GET /v2/catalog/gpus?include=AVAILABILITY&product=POD``, by data centre.

    ``asked_count``: the ``count`` of the call. None: the API's default of one; larger pods are then
    offered at a stock level that is unknown.
    """
    rows = as_list(NAME, as_dict(NAME, decode_json(NAME, payload), "the answer").get("gpus"), "gpus")
    counts = COUNTS if asked_count is None else (asked_count,)
    asked = asked_count or 1
    named = ((f"{_row_name(row)} x{count}", (row, count)) for count in counts for row in rows)
    return collect(named, lambda item: _catalogue_offers(item[0], item[1], asked, observed_at))


def _row_name(row: Any) -> str:
    return str(row.get("id", "row without id")) if isinstance(row, dict) else "row that is no object"


def _catalogue_offers(row: Any, count: int, asked_count: int, observed_at: datetime) -> Iterator[Offer]:
    gpu = _Gpu.model_validate(row)
    pod = _Pod(gpu.id, gpu.name, gpu.memory, count)
    pod.sku(load_provider_facts(NAME))
    price = require_price(gpu.price.secure, "price.secure")
    ceiling = gpu.maxCount.secure
    if ceiling is not None and count > ceiling:
        raise RowRejected(f"at most {ceiling} GPUs in a pod")
    if not gpu.dataCenters:
        raise RowRejected("sold out everywhere")
    for center in gpu.dataCenters:
        level = _level(center.availability) if count == asked_count else StockLevel.UNKNOWN
        source = f"GET /v2/catalog/gpus?count={asked_count}"
        yield _offer(pod, Tier.ON_DEMAND, price, center.id, level, source, observed_at)


def parse_gpu_types(payload: bytes, asked_count: int | None, observed_at: datetime) -> OfferBatch:
    """On-demand and interruptible offers of GraphQL ``gpuTypes { lowestPrice }``, in region ``any``."""
    count = asked_count or 1
    envelope = as_dict(NAME, decode_json(NAME, payload), "the answer")
    if envelope.get("errors"):
        raise PayloadUnreadable(NAME, _graphql_message(envelope))
    data = as_dict(NAME, envelope.get("data"), "data")
    rows = as_list(NAME, data.get("gpuTypes"), "data.gpuTypes")
    named = ((f"{_row_name(row)} x{count}", row) for row in rows)
    return collect(named, lambda row: _gpu_type_offers(row, count, observed_at))


def _gpu_type_offers(row: Any, count: int, observed_at: datetime) -> Iterator[Offer | RejectedRow]:
    kind = _GpuType.model_validate(row)
    lowest = kind.lowestPrice or _Lowest()
    pod = _Pod(kind.id, kind.displayName, kind.memoryInGb, count, lowest.minVcpu, lowest.minMemory)
    pod.sku(load_provider_facts(NAME))
    level = _level(lowest.stockStatus)
    if level is StockLevel.NONE:
        raise RowRejected("sold out everywhere")
    prices = {
        Tier.ON_DEMAND: ("lowestPrice.uninterruptablePrice", lowest.uninterruptablePrice),
        Tier.SPOT: ("lowestPrice.minimumBidPrice", lowest.minimumBidPrice),
    }
    for tier, (name, value) in prices.items():
        try:
            price = require_price(value, name)
        except RowRejected as error:
            yield RejectedRow(f"{pod.name} {tier}", str(error))
            continue
        yield _offer(pod, tier, price, ANY_REGION, level, "POST /graphql gpuTypes", observed_at)


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded answers of the v2 catalogue and of GraphQL, told apart by their form."""
    catalogue: list[tuple[int | None, bytes]] = []
    graphql: list[tuple[int | None, bytes]] = []
    for name, body in payloads:
        envelope = as_dict(NAME, decode_json(NAME, body), name)
        (catalogue if "gpus" in envelope else graphql).append((_count_in(name), body))
    return _joined(
        [parse_offers(body, count, observed_at) for count, body in catalogue],
        [parse_gpu_types(body, count, observed_at) for count, body in graphql],
    )


def _count_in(file_name: str) -> int | None:
    found = re.search(r"count[_=-]?(\d{1,2})", file_name)
    return int(found.group(1)) if found else None


def _joined(catalogue: Sequence[OfferBatch], graphql: Sequence[OfferBatch]) -> OfferBatch:
    """The catalogue's data centres take the place of GraphQL's on-demand offers without one."""
    if not catalogue:
        return join_batches(graphql)
    spot = [
        OfferBatch(tuple(offer for offer in batch.offers if offer.tier is Tier.SPOT), batch.rejected)
        for batch in graphql
    ]
    return join_batches((*catalogue, *spot))


_NO_CAPACITY = re.compile(
    r"no longer any instances available|no instances (currently )?available|enough (disk space|resources)"
    r"|insufficient (resources|capacity)|out of (stock|capacity)|no capacity",
    re.IGNORECASE,
)


def _graphql_message(envelope: Mapping[str, Any]) -> str:
    errors = envelope.get("errors")
    first = errors[0] if isinstance(errors, list) and errors else {}
    return str(first.get("message", "error without message")) if isinstance(first, dict) else str(first)


def classify(reply: Reply) -> ProviderError:
    """v2: problem documents whose 400 is a bad order or no capacity, told apart by ``detail`` alone;
    GraphQL: ``errors`` behind a status of 200."""
    body = reply.json_or_none()
    if not isinstance(body, dict):
        return classify_by_status(reply)
    text = _graphql_message(body) if "errors" in body and "title" not in body else _problem_text(body)
    if "pod not found" in text.lower():
        return LeaseNotFound(NAME, text)
    if reply.status == 403 and "pool" in text.lower():
        return OrderRejected(NAME, text)
    if reply.status >= 401:
        return classify_by_status(reply, text)
    if _NO_CAPACITY.search(text):
        return InsufficientCapacity(NAME, text)
    if "unauthorized" in text.lower():
        return CredentialsRejected(NAME, text)
    return (
        OrderRejected(NAME, text) if reply.operation is Operation.ORDER else classify_by_status(reply, text)
    )


def _problem_text(body: Mapping[str, Any]) -> str:
    return str(body.get("detail") or body.get("title") or body.get("message") or "")


class _PodGpu(PayloadModel):
    id: str = ""
    count: int = 0


class _PodRow(PayloadModel):
    id: Name
    name: str | None = None
    status: str = ""
    gpu: _PodGpu | None = None
    dataCenterId: str | None = None


class _PodsAnswer(PayloadModel):
    pods: tuple[_PodRow, ...]


class _RentedPod(PayloadModel):
    id: Name


class _RentData(PayloadModel):
    podRentInterruptable: _RentedPod


class _RentAnswer(PayloadModel):
    data: _RentData


_STATES: Mapping[str, LeaseState] = {
    "PROVISIONING": LeaseState.PROVISIONING,
    "STARTING": LeaseState.PROVISIONING,
    "RUNNING": LeaseState.ACTIVE,
    "EXITED": LeaseState.FAILED,
    "ERROR": LeaseState.FAILED,
    "TERMINATED": LeaseState.ENDED,
}

_GPU_TYPES = """query GpuTypes($lowest: GpuLowestPriceInput) {
  gpuTypes {
    id displayName memoryInGb
    lowestPrice(input: $lowest) {
      minimumBidPrice uninterruptablePrice minVcpu minMemory stockStatus
    }
  }
}"""
_RENT = """mutation Rent($input: PodRentInterruptableInput!) {
  podRentInterruptable(input: $input) { id }
}"""


def _lease(pod: _PodRow) -> Lease:
    return Lease(
        provider=NAME,
        reference=pod.id,
        state=_STATES.get(pod.status, LeaseState.UNKNOWN),
        tag=pod.name,
        sku=f"{pod.gpu.id} x{pod.gpu.count}" if pod.gpu else "",
        region=pod.dataCenterId or "",
        detail=pod.status,
    )


class RunPod:
    """Client of REST v2, and of GraphQL for interruptible pods."""

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

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._http.aclose()

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Every GPU type at every count; without a key only what GraphQL shows."""
        counts = () if self._settings.keyless else COUNTS
        catalogue = [parse_offers(await self._catalogue(count), count, observed_at) for count in counts]
        graphql = [parse_gpu_types(await self._gpu_types(count), count, observed_at) for count in COUNTS]
        return _joined(catalogue, graphql)

    async def _catalogue(self, count: int) -> bytes:
        params = {"include": "AVAILABILITY", "product": "POD", "cloud": "SECURE", "count": count}
        reply = await self._http.request("GET", "/v2/catalog/gpus", operation=Operation.OFFERS, params=params)
        return reply.body

    async def _gpu_types(self, count: int) -> bytes:
        variables = {"lowest": {"gpuCount": count, "secureCloud": True}}
        reply = await self._graphql(_GPU_TYPES, variables, Operation.OFFERS, repeatable=True)
        return reply.body

    async def _graphql(
        self, query: str, variables: Mapping[str, Any], operation: Operation, *, repeatable: bool
    ) -> Reply:
        reply = await self._http.request(
            "POST",
            "/graphql",
            operation=operation,
            repeatable=repeatable,
            json={"query": query, "variables": variables},
        )
        body = reply.json()
        if isinstance(body, dict) and body.get("errors"):
            raise self._http.error(reply)
        return reply

    def nodes_per_order(self, offer: Offer) -> int | None:
        """One: a call makes one pod."""
        return 1

    async def reserve(self, order: Order) -> Lease:
        """Makes one pod named by the tag; interruptible ones at the offer's bid."""
        refuse_unless_single(order, NAME, LONGEST_NAME)
        return await (self._rent(order) if order.offer.tier is Tier.SPOT else self._create(order))

    async def _create(self, order: Order) -> Lease:
        note = order.offer.reference
        body: dict[str, Any] = {
            "name": order.tag,
            "image": self._settings.options["image"],
            "gpu": {"id": note["gpu_type_id"], "count": int(note["gpu_count"])},
            "cloud": "SECURE",
            "disk": int(self._settings.options["disk_gb"]),
            "ports": ["22/tcp"],
            "startSsh": True,
        }
        if note["data_center_id"]:
            body["dataCenterIds"] = [note["data_center_id"]]
        reply = await self._http.request("POST", "/v2/pods", operation=Operation.ORDER, json=body)
        return _lease(reply.read(_PodRow))

    async def _rent(self, order: Order) -> Lease:
        note = order.offer.reference
        wish: dict[str, Any] = {
            "name": order.tag,
            "imageName": self._settings.options["image"],
            "cloudType": "SECURE",
            "gpuTypeId": note["gpu_type_id"],
            "gpuCount": int(note["gpu_count"]),
            "bidPerGpu": float(note["bid_per_gpu"]),
            "containerDiskInGb": int(self._settings.options["disk_gb"]),
            "volumeInGb": 0,
            "ports": "22/tcp",
        }
        if note["data_center_id"]:
            wish["dataCenterId"] = note["data_center_id"]
        reply = await self._graphql(_RENT, {"input": wish}, Operation.ORDER, repeatable=False)
        pod = reply.read(_RentAnswer).data.podRentInterruptable
        return Lease(
            provider=NAME,
            reference=pod.id,
            state=LeaseState.PROVISIONING,
            tag=order.tag,
            sku=order.offer.sku.name,
            region=order.offer.region,
        )

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One pod."""
        reply = await self._http.request("GET", f"/v2/pods/{reference}", operation=Operation.LEASES)
        return _lease(reply.read(_PodRow))

    async def list_leases(self) -> Sequence[Lease]:
        """Every pod of the account; the list has one page."""
        reply = await self._http.request("GET", "/v2/pods", operation=Operation.LEASES)
        return tuple(_lease(pod) for pod in reply.read(_PodsAnswer).pods)

    async def release(self, lease: Lease) -> None:
        """Deletes the pod; an unknown pod is a success."""
        try:
            await self._http.request(
                "DELETE", f"/v2/pods/{lease.reference}", operation=Operation.RELEASE, repeatable=True
            )
        except LeaseNotFound:
            return


SPEC = ProviderSpec(
    name=NAME,
    title="RunPod",
    base_url=BASE_URL,
    credentials={"api_key": "an API key with read and write access to pods"},
    options={"image": "runpod/pytorch:2.8.0-py3.11-cuda12.8.1-cudnn-devel-ubuntu22.04", "disk_gb": "50"},
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
    adapter=RunPod,
    build=RunPod,
    parse=parse,
    keyless=True,
)
