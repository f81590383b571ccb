"""Talks to RunPod: REST v2, and GraphQL for interruptible pods."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import ROUND_FLOOR, Decimal
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
from broker.domain.basics.machines import SSH_PORT, Access
from broker.domain.holding.reservation import Lease, LeaseState, Order
from broker.domain.market.offer import Offer, OfferBatch, Tier
from providers.client import Entry, SellerClient, bearer, ordered, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import Name, PayloadModel, ordered_units
from providers.rows import rate_of
from providers.runpod.offers import (
    COUNTS,
    DISK_GB,
    NAME,
    graphql_message,
    joined,
    parse_gpu_types,
    parse_offers,
    with_default_disk,
)
from providers.schema import Words
from providers.spec import ProviderSettings, refuse_unless_single

POLICY = HttpPolicy(concurrency=4)
BID_STEP = Decimal("0.000001")
KEYS_VARIABLE, SCRIPT_VARIABLE = "PUBLIC_KEY", "STARTUP_SCRIPT"
WITH_SCRIPT = (
    f"bash -c 'echo ${SCRIPT_VARIABLE} | base64 -d > /startup.sh; chmod +x /startup.sh; /startup.sh & "
    "[ -x /start.sh ] && exec /start.sh; sleep infinity'"
)
"""What a container runs that has a start script beside what RunPod's own images start with: ``/start.sh``."""

_NO_CAPACITY = re.compile(
    r"no longer any instances available|no instances (currently )?available|enough (disk space|resources)"
    r"|insufficient (resources|capacity)|out of (stock|capacity)|no capacity"
    r"|does not have the resources|try a different machine",
    re.IGNORECASE,
)
_NO_FUNDS = re.compile(r"balance|insufficient funds|spend(ing)? limit|quota", re.IGNORECASE)
_FAILED = re.compile(r"something went wrong|internal server error", re.IGNORECASE)


def classify(reply: Reply) -> ProviderError:
    """The typed error of an answer.

    v2 answers with problem documents: 400 is a bad order or a lack of capacity, and only ``detail``
    distinguishes them; a lack of capacity may be a 500, too. GraphQL has ``errors`` at status 200.
    """
    body = reply.json_or_none()
    if not isinstance(body, dict):
        return classify_by_status(reply)
    text = graphql_message(body) if "errors" in body and "title" not in body else _problem_text(body)
    if "pod not found" in text.lower():
        return LeaseNotFound(NAME, text)
    if reply.status == 403 and "pool" in text.lower():
        return OrderRejected(NAME, text)
    is_order = reply.operation is Operation.ORDER
    if is_order and reply.status not in {401, 402, 403, 429} and _NO_CAPACITY.search(text):
        return InsufficientCapacity(NAME, text)
    if reply.status >= 401:
        return classify_by_status(reply, text)
    if "unauthorized" in text.lower():
        return CredentialsRejected(NAME, text)
    if not is_order:
        return classify_by_status(reply, text)
    return _order_refused(text)


def _order_refused(text: str) -> ProviderError:
    """The error of a refused order, by its words.

    A service failure does not tell whether something was bought.
    """
    if _FAILED.search(text):
        return ProviderUnavailable(NAME, text)
    return QuotaExceeded(NAME, text) if _NO_FUNDS.search(text) else OrderRejected(NAME, text)


def cuda_of(image: str) -> str:
    """The CUDA version in an image's name, as ``major.minor``; empty where it has none.

    A host with an older driver cannot run the image.
    """
    found = re.search(r"cuda(\d{1,2})\.(\d{1,2})", image) or re.search(r"\bcu(\d{2})(\d)\d?\b", image)
    return f"{found[1]}.{found[2]}" if found else ""


def _problem_text(body: Mapping[str, Any]) -> str:
    return str(body.get("detail") or body.get("title") or body.get("message") or body.get("error") or "")


class _PodGpu(PayloadModel):
    id: str = ""
    count: int = 0


class _SshEndpoint(PayloadModel):
    host: Name
    port: int
    username: Name


class _Ssh(PayloadModel):
    direct: _SshEndpoint | None = None


class _Port(PayloadModel):
    private: int
    public: int | None = None
    type: str = ""


class _Runtime(PayloadModel):
    ports: tuple[_Port, ...] | None = None


class _PodRow(PayloadModel):
    id: Name
    name: str | None = None
    status: Annotated[str, Words(lambda: _STATES)] = ""
    gpu: _PodGpu | None = None
    dataCenterId: str | None = None
    cost: Decimal | None = None
    ssh: _Ssh | None = None
    runtime: _Runtime | None = None


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
        price_usd_per_node_hour=rate_of(pod.cost),
        machines=_machines(pod),
    )


def _machines(pod: _PodRow) -> tuple[Access, ...]:
    """The way to the pod's own SSH server; RunPod's proxy knows the account's keys alone. Of its other ports
    the first one is that of its server."""
    way = pod.ssh.direct if pod.ssh is not None else None
    ports = pod.runtime.ports or () if pod.runtime is not None else ()
    served = next((port.public for port in ports if port.private != SSH_PORT and port.type == "tcp"), None)
    return () if way is None else (Access(way.host, way.username, way.port, server_port=served),)


class RunPod(SellerClient):
    """Client of REST v2, and of GraphQL for interruptible pods."""

    provider = NAME
    longest_tag = 191
    tells_price = True
    entry = Entry.KEYS
    takes_script = True

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        super().__init__(settings, http_factory, classify, POLICY, bearer(settings, "api_key"))
        least = cuda_of(settings.options["image"])
        self._cuda = {"minCudaVersion": least} if least else {}

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """Every GPU type at every count; without a key, only the GraphQL catalogue."""
        counts = () if self._settings.keyless else COUNTS
        catalogue = [parse_offers(await self._catalogue(count), count, observed_at) for count in counts]
        graphql = [parse_gpu_types(await self._gpu_types(count), count, observed_at) for count in COUNTS]
        return with_default_disk(joined(catalogue, graphql), float(self._settings.options["disk_gb"]))

    async def _catalogue(self, count: int) -> bytes:
        params = {
            "include": "AVAILABILITY",
            "product": "POD",
            "cloud": "SECURE",
            "count": count,
            **self._cuda,
        }
        return (await self._on_sale("/v2/catalog/gpus", params)).body

    async def _gpu_types(self, count: int) -> bytes:
        variables = {"lowest": {"gpuCount": count, "secureCloud": True, **self._cuda}}
        reply = await self._graphql(_GPU_TYPES, variables, Operation.OFFERS, repeatable=True)
        return reply.body

    async def _graphql(
        self, query: str, variables: Mapping[str, Any], operation: Operation, *, repeatable: bool
    ) -> Reply:
        wish = {"query": query, "variables": variables}
        reply = await self._call("POST", "/graphql", operation, repeatable=repeatable, json=wish)
        body = reply.json()
        if isinstance(body, dict) and body.get("errors"):
            raise self._http.error(reply)
        return reply

    async def reserve(self, order: Order) -> Lease:
        """Creates one pod with the tag as name; an interruptible one at the offer's bid."""
        refuse_unless_single(order, NAME, self.longest_tag)
        return await (self._rent(order) if order.offer.tier is Tier.SPOT else self._create(order))

    async def _create(self, order: Order) -> Lease:
        note = order.offer.reference
        body: dict[str, Any] = {
            "name": order.tag,
            "image": self._image(order),
            "gpu": {"id": note["gpu_type_id"], "count": int(note["gpu_count"]), **self._cuda},
            "cloud": "SECURE",
            "disk": _disk_gb(order.offer),
            "ports": _ports(order),
            "startSsh": True,
        }
        if environment := _environment(order):
            body["env"] = environment
        if arguments := _arguments(order):
            body["args"] = arguments
        if note["data_center_id"]:
            body["dataCenterIds"] = [note["data_center_id"]]
        return _lease((await self._order("/v2/pods", body)).read(_PodRow))

    async def _rent(self, order: Order) -> Lease:
        note = order.offer.reference
        wish: dict[str, Any] = {
            "name": order.tag,
            "imageName": self._image(order),
            "cloudType": "SECURE",
            "gpuTypeId": note["gpu_type_id"],
            "gpuCount": int(note["gpu_count"]),
            "bidPerGpu": float(_bid_per_gpu(order)),
            "containerDiskInGb": _disk_gb(order.offer),
            "volumeInGb": 0,
            "ports": ",".join(_ports(order)),
            **self._cuda,
        }
        if environment := _environment(order):
            wish["env"] = [{"key": name, "value": value} for name, value in environment.items()]
        if arguments := _arguments(order):
            wish["dockerArgs"] = arguments
        if note["data_center_id"]:
            wish["dataCenterId"] = note["data_center_id"]
        reply = await self._graphql(_RENT, {"input": wish}, Operation.ORDER, repeatable=False)
        return ordered(order, reply.read(_RentAnswer).data.podRentInterruptable.id)

    def _image(self, order: Order) -> str:
        return self._settings.options["image"] if order.container is None else order.container.image

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One pod."""
        return _lease((await self._held(f"/v2/pods/{reference}")).read(_PodRow))

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every pod of the account; the list has one page."""
        return tuple(_lease(pod) for pod in (await self._held("/v2/pods")).read(_PodsAnswer).pods)

    async def _give_back(self, lease: Lease) -> None:
        await self._end("DELETE", f"/v2/pods/{lease.reference}")


def _ports(order: Order) -> list[str]:
    """The ports that RunPod maps to public ones."""
    return ["22/tcp", *([f"{order.server_port}/tcp"] if order.server_port else [])]


def _arguments(order: Order) -> str:
    """What the container runs in place of its image's own command; empty: that."""
    if order.container is not None:
        return order.container.command
    return WITH_SCRIPT if order.script else ""


def _environment(order: Order) -> dict[str, str]:
    """The variables of the container: the keys that it opens to, and its start script or its own."""
    keys = "\n".join(key.line for key in order.keys)
    if order.container is not None:
        return {**order.container.env, **({KEYS_VARIABLE: keys} if keys else {})}
    script = base64.b64encode(order.script.encode()).decode()
    wished = {KEYS_VARIABLE: keys, SCRIPT_VARIABLE: script}
    return {name: value for name, value in wished.items() if value}


def _bid_per_gpu(order: Order) -> Decimal:
    """USD per GPU and hour; what is bid is what is paid, and the disk is charged beside it."""
    offer = order.offer.at_list_price()
    gpus = int(offer.reference["gpu_count"])
    disk = offer.price_usd_per_node_hour - offer.native.amount * gpus
    return ((order.bid_usd_per_node_hour - disk) / gpus).quantize(BID_STEP, ROUND_FLOOR)


def _disk_gb(offer: Offer) -> int:
    """The container disk of an order."""
    return ordered_units(offer.disk, offer.sku.disk_gb) or DISK_GB
