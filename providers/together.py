"""Together GPU Clusters: clusters of 8-GPU nodes, on demand and for scheduled windows.

Sold: clusters of any number of nodes of one GPU type in one region, until deleted (``ON_DEMAND``), or
between two times (``SCHEDULED_CAPACITY``; ``window`` offers of kind ``request``: the order is the
question). On the wire: regions with the GPU types that they support; GPUs are counted, not nodes (8 make
one). Not said: any price (published ones stand in ``config/providers/together.toml``; without one a type
is rejected), any stock, vCPUs, memory, form and the fabric's rate. One price holds in every region. There
is no idempotency key: the cluster's name is the tag, and the list is asked before a repeat.

Unverified: the words of refusals (read by meaning), that a deleted scheduled cluster stays paid, that
names are kept whole up to 63 characters. What an order without capacity becomes is not documented either:
a cluster whose acceptance tests failed is read as failed, a queued one as on its way.

A cluster is entered with the account's own credentials: the API takes no key, and the certificates of its SSH
access are signed for people who log in. An order carries no script.

Environment: ``BROKER_TOGETHER_API_KEY``; ``BROKER_TOGETHER_CLUSTER_TYPE`` (``KUBERNETES`` or ``SLURM``),
``BROKER_TOGETHER_NVIDIA_VERSION_ID`` (default: the region's first).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from broker.domain.basics.errors import InsufficientCapacity, OrderRejected, ProviderError, QuotaExceeded
from broker.domain.holding.reservation import Idempotency, Lease, LeaseState, Order
from broker.domain.market.offer import (
    CancelRule,
    NativePrice,
    Offer,
    OfferBatch,
    RejectedRow,
    Stock,
    StockLevel,
    Tier,
    WindowKind,
    WindowTerms,
)
from broker.domain.market.sku import Sku
from broker.provider_facts import ListPrice, NodeFacts, ProviderFacts, load_provider_facts
from providers.client import Entry, SellerClient, bearer, ordered, tells_all_or_fails
from providers.http import HttpFactory, HttpPolicy, Operation, Reply, classify_by_status
from providers.payload import Name, PayloadModel, RowRejected, canonical_gpu, collect, require_price, slug
from providers.rows import as_utc, gpu_node, page_by_page, rows_under, window_between
from providers.schema import Rows, Words
from providers.spec import HOLDING, Capability, ProviderSettings, ProviderSpec, refuse_long_tag

NAME = "together"
BASE_URL = "https://api.together.ai"
GPUS_PER_NODE = 8
SLURM_SHM_GIB = 64
POLICY = HttpPolicy(concurrency=4)
"""No limits of this part of the API are published."""

_TERM = re.compile(r"days_(\d{1,4})_(\d{1,4})")
_NO_CAPACITY = re.compile(
    r"capacity|not enough|out of stock|sold out|not available|unavailable", re.IGNORECASE
)
_QUOTA = re.compile(r"quota|limit exceeded|insufficient (funds|balance|credit)|billing", re.IGNORECASE)


class _Driver(PayloadModel):
    id: Name


class _Region(PayloadModel):
    name: Name
    supported_instance_types: tuple[Name, ...] = ()
    driver_versions: tuple[_Driver, ...] = ()


def parse_offers(payload: bytes, observed_at: datetime) -> OfferBatch:
    """Offers of ``GET /v1/compute/regions``: one for each region, GPU type and billing type."""
    facts = load_provider_facts(NAME)
    rows = rows_under(NAME, payload, "regions")
    named = ((str(row.get("name") if isinstance(row, dict) else row), row) for row in rows)
    return collect(named, lambda row: _offers_of(_Region.model_validate(row), facts, observed_at))


def _offers_of(region: _Region, facts: ProviderFacts, observed_at: datetime) -> Iterator[Offer | RejectedRow]:
    if not region.supported_instance_types:
        raise RowRejected("no GPU type")
    for gpu_type in dict.fromkeys(region.supported_instance_types):
        try:
            sku = _sku(gpu_type, facts)
            prices = facts.prices.get(gpu_type)
            if not prices:
                raise RowRejected("no price in the API")
            for how, price in prices.items():
                yield _offer(region, gpu_type, sku, (how, price), facts, observed_at)
        except RowRejected as error:
            yield RejectedRow(f"{gpu_type} in {region.name}", str(error))


def _sku(gpu_type: str, facts: ProviderFacts) -> Sku:
    gpu = canonical_gpu(facts, gpu_type)
    node = facts.nodes.get(gpu_type, NodeFacts())
    return gpu_node(gpu_type, gpu, GPUS_PER_NODE, node.form, fabric=node.fabric)


def _offer(
    region: _Region,
    gpu_type: str,
    sku: Sku,
    priced: tuple[str, ListPrice],
    facts: ProviderFacts,
    observed_at: datetime,
) -> Offer:
    how, price = priced
    terms = _terms(how, facts)
    usd = require_price(price.usd_per_gpu_hour, "the published price") * GPUS_PER_NODE
    driver = region.driver_versions[0].id if region.driver_versions else ""
    return Offer(
        offer_id=f"{NAME}/{slug(region.name)}/{slug(gpu_type)}/{how}",
        provider=NAME,
        sku=sku,
        region=region.name,
        country=facts.country_of(region.name),
        tier=Tier.ON_DEMAND if terms is None else Tier.WINDOW,
        price_usd_per_node_hour=usd,
        observed_at=observed_at,
        source=f"GET /v1/compute/regions; price of {price.on}: {price.source}",
        native=NativePrice(price.usd_per_gpu_hour, "USD", "GPU-hour"),
        min_hours=terms.durations_hours[0] if terms and terms.durations_hours else 0.0,
        window=terms,
        stock=Stock(StockLevel.UNKNOWN),
        billing_increment_s=facts.billed.increment_s,
        compliance=facts.compliance,
        reference={"region": region.name, "gpu_type": gpu_type, "nvidia_version_id": driver},
    )


def _terms(how: str, facts: ProviderFacts) -> WindowTerms | None:
    """The windows of a price: whole days from a whole hour; None for a cluster until it is deleted."""
    found = _TERM.fullmatch(how)
    if found is None:
        return None
    first, last = int(found.group(1)), int(found.group(2))
    return WindowTerms(
        kind=WindowKind.REQUEST,
        segments=(),
        step_hours=1.0,
        durations_hours=tuple(24.0 * days for days in range(first, last + 1)),
        cancel=CancelRule.NEVER,
        billed=facts.billed.window_billed("scheduled"),
    )


def classify(reply: Reply) -> ProviderError:
    """The typed error of ``error``, a sentence or an object with ``message``.

    Capacity and quota errors are only recognizable by words.
    """
    text = _message(reply.json_or_none())
    if reply.operation is Operation.ORDER and 400 <= reply.status < 500 and reply.status not in {401, 429}:
        if _QUOTA.search(text):
            return QuotaExceeded(NAME, text)
        if _NO_CAPACITY.search(text):
            return InsufficientCapacity(NAME, text)
    return classify_by_status(reply, text)


def _message(body: object) -> str:
    if not isinstance(body, dict):
        return ""
    error = body.get("error", body)
    found = error.get("message") if isinstance(error, dict) else error
    return found[:300] if isinstance(found, str) else ""


class _Transition(PayloadModel):
    phase: str
    transition_time: datetime


class _Cluster(PayloadModel):
    cluster_id: Name
    cluster_name: str | None = None
    status: Annotated[str, Words(lambda: _STATES)] = ""
    gpu_type: str = ""
    region: str = ""
    num_gpus: int = GPUS_PER_NODE
    cluster_type: str = ""
    phase_transitions: tuple[_Transition, ...] | None = None
    reservation_start_time: datetime | None = None
    reservation_end_time: datetime | None = None

    @property
    def phase(self) -> str:
        """The latest phase without its prefix; of several in one second, the last one."""
        passed = reversed(self.phase_transitions or ())
        latest = max(passed, key=lambda each: as_utc(each.transition_time), default=None)
        return "" if latest is None else latest.phase.removeprefix("CLUSTER_PHASE_")


class _Clusters(PayloadModel):
    clusters: tuple[_Cluster, ...]


_STATES: Mapping[str, LeaseState] = {
    "WaitingForControlPlaneNodes": LeaseState.PROVISIONING,
    "WaitingForDataPlaneNodes": LeaseState.PROVISIONING,
    "WaitingForSubnet": LeaseState.PROVISIONING,
    "WaitingForSharedVolume": LeaseState.PROVISIONING,
    "InstallingDrivers": LeaseState.PROVISIONING,
    "RunningAcceptanceTests": LeaseState.PROVISIONING,
    "Ready": LeaseState.ACTIVE,
    "Degraded": LeaseState.ACTIVE,
    "Paused": LeaseState.ACTIVE,
    "OnDemandComputePaused": LeaseState.ACTIVE,
    "Deleting": LeaseState.ENDING,
}
_PHASES: Mapping[str, LeaseState] = {
    "SCHEDULED": LeaseState.SCHEDULED,
    "ACCEPTANCE_TESTS_FAILED": LeaseState.FAILED,
    "NCCL_TESTS_FAILED": LeaseState.FAILED,
}
"""Phases that are more specific than the status."""


def _lease(cluster: _Cluster) -> Lease:
    state = _STATES.get(cluster.status, LeaseState.UNKNOWN)
    if state is LeaseState.PROVISIONING:
        state = _PHASES.get(cluster.phase, state)
    return Lease(
        provider=NAME,
        reference=cluster.cluster_id,
        state=state,
        tag=cluster.cluster_name,
        nodes=max(1, cluster.num_gpus // GPUS_PER_NODE),
        sku=cluster.gpu_type,
        region=cluster.region,
        window=window_between(cluster.reservation_start_time, cluster.reservation_end_time),
        detail=f"{cluster.status} {cluster.phase}".strip(),
        access_note=(
            f"it is a {cluster.cluster_type or 'Kubernetes'} cluster in your Together account: fetch its"
            f" credentials with `tg beta clusters get-credentials {cluster.cluster_id}`"
        ),
    )


class Together(SellerClient):
    """Client of the part of the API that makes clusters."""

    provider = NAME
    longest_tag = 63
    entry = Entry.OWN

    def __init__(self, settings: ProviderSettings, http_factory: HttpFactory) -> None:
        super().__init__(settings, http_factory, classify, POLICY, bearer(settings, "api_key"))

    async def list_offers(self, observed_at: datetime) -> OfferBatch:
        """GPU types by region, at published prices."""
        return parse_offers((await self._on_sale("/v1/compute/regions")).body, observed_at)

    def nodes_per_order(self, offer: Offer) -> int | None:
        """Any number: a cluster is one order."""
        return None

    async def reserve(self, order: Order) -> Lease:
        """Creates a cluster with the tag as name."""
        made = (await self._order("/v1/compute/clusters", self._order_body(order))).read(_Cluster)
        state = LeaseState.PROVISIONING if order.window is None else LeaseState.SCHEDULED
        return ordered(order, made.cluster_id, state, order.window)

    def _order_body(self, order: Order) -> dict[str, Any]:
        refuse_long_tag(order, NAME, self.longest_tag)
        note = order.offer.reference
        driver = self._settings.options["nvidia_version_id"] or note["nvidia_version_id"]
        cluster_type = self._settings.options["cluster_type"]
        return {
            "cluster_name": order.tag,
            "region": note["region"],
            "gpu_type": note["gpu_type"],
            "num_gpus": order.nodes * GPUS_PER_NODE,
            "cluster_type": cluster_type,
            **({"slurm_shm_size_gib": SLURM_SHM_GIB} if cluster_type == "SLURM" else {}),
            **({"nvidia_version_id": driver} if driver else {}),
            **_billing(order),
        }

    async def find_lease(self, reference: str, region: str) -> Lease:
        """One cluster."""
        return _lease((await self._held(f"/v1/compute/clusters/{reference}")).read(_Cluster))

    @tells_all_or_fails
    async def list_leases(self) -> Sequence[Lease]:
        """Every cluster of the account; the list has one page."""
        reply = await self._held("/v1/compute/clusters")
        return tuple(_lease(cluster) for cluster in reply.read(_Clusters).clusters)

    async def _give_back(self, lease: Lease) -> None:
        await self._end("DELETE", f"/v1/compute/clusters/{lease.reference}")


def _billing(order: Order) -> dict[str, str]:
    terms, window = order.offer.window, order.window
    if terms is None:
        return {"billing_type": "ON_DEMAND"}
    if window is None:
        raise OrderRejected(NAME, "scheduled capacity needs an end")
    if terms.durations_hours is not None and window.hours not in terms.durations_hours:
        first, last = terms.durations_hours[0] / 24, terms.durations_hours[-1] / 24
        raise OrderRejected(NAME, f"the price is for {first:g} to {last:g} whole days, not {window.hours} h")
    return {
        "billing_type": "SCHEDULED_CAPACITY",
        "reservation_start_time": f"{window.start:%Y-%m-%dT%H:%M:%SZ}",
        "reservation_end_time": f"{window.end:%Y-%m-%dT%H:%M:%SZ}",
    }


ROWS = (Rows("GET /v1/compute/regions", "regions[]", _Region),)


SPEC = ProviderSpec(
    name=NAME,
    title="Together",
    base_url=BASE_URL,
    credentials={"api_key": "an API key"},
    options={"cluster_type": "KUBERNETES", "nvidia_version_id": ""},
    capabilities=HOLDING | {Capability.WINDOWS, Capability.MULTI_NODE},
    idempotency=Idempotency.TAG,
    adapter=Together,
    build=Together,
    parse=page_by_page(parse_offers),
    rows=ROWS,
)
