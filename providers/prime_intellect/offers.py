"""Prime Intellect's configurations, and the offers in them (facts of the wire: the package's docstring)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field

from broker.domain.market.offer import HostKind, NativePrice, Offer, OfferBatch, Stock, StockLevel, Tier
from broker.domain.market.sku import Fabric, FabricKind, Sku, SoldAmount
from broker.provider_facts import ProviderFacts, infer_intra_node, load_provider_facts
from providers.payload import (
    Amount,
    GpuCount,
    Name,
    PayloadModel,
    RowRejected,
    as_payload,
    canonical_gpu,
    collect,
    decode_json,
    nominal_memory_gb,
    require_gpus,
    require_price,
    slug,
    sold_amount,
    source_with_rate,
    usd_of,
    without_noise,
)
from providers.schema import Rows, Words
from providers.spec import NamedPayload

NAME = "prime_intellect"
NO_GPU = "CPU_NODE"

_LEVELS = {
    "Low": StockLevel.LOW,
    "Medium": StockLevel.MEDIUM,
    "High": StockLevel.HIGH,
    "Unavailable": StockLevel.NONE,
}
_HOSTS = {"secure_cloud": HostKind.DATACENTER, "community_cloud": HostKind.COMMUNITY}
_FABRICS = {
    "infiniband": FabricKind.INFINIBAND,
    "roce": FabricKind.ROCE,
    "ethernet": FabricKind.ETHERNET,
}


class AvailabilityPage(PayloadModel):
    """One page of ``GET /api/v1/availability/…``; rows are read one by one."""

    items: tuple[Any, ...]
    totalCount: int = 0


_Count = Annotated[Decimal, Field(ge=0, le=10**9)]


class _Included(PayloadModel):
    """A resource of a configuration, whose price contains the default (``defaultIncludedInPrice`` or not)."""

    defaultCount: _Count | None = None

    @property
    def amount(self) -> float | None:
        return None if self.defaultCount is None else float(self.defaultCount)


class _Spec(_Included):
    """A resource whose amount an order may name."""

    minCount: _Count | None = None
    maxCount: _Count | None = None
    pricePerUnit: Decimal | None = None
    step: Annotated[Decimal, Field(gt=0, le=10**6)] | None = None


def _sold(spec: _Spec, currency: str, day: date, *, free: bool) -> SoldAmount | None:
    """A resource whose amount an order may name; ``free``: also where the row states no price of a unit.

    An unpriced unit costs nothing more.
    """
    if spec.amount is None or (spec.pricePerUnit is None and not free):
        return None
    found = sold_amount(
        spec.amount,
        usd_of(spec.pricePerUnit or Decimal(0), currency, day)[0],
        least=None if spec.minCount is None else float(spec.minCount),
        most=None if spec.maxCount is None else float(spec.maxCount),
    )
    whole = spec.step is not None and spec.defaultCount is not None and not spec.defaultCount % spec.step
    return replace(found, step_gb=float(spec.step)) if spec.step is not None and whole else found


class _Prices(PayloadModel):
    onDemand: Decimal | None = None
    communityPrice: Decimal | None = None
    currency: Name


class _Row(PayloadModel):
    cloudId: Name
    gpuType: Name
    socket: str | None = None
    provider: Name
    region: str | None = None
    dataCenter: str | None = None
    country: str | None = None
    gpuCount: GpuCount
    gpuMemory: Amount | None = None
    disk: _Spec = _Spec()
    vcpu: _Included = _Included()
    memory: _Spec = _Spec()
    interconnect: Amount | None = None
    interconnectType: str | None = None
    stockStatus: Annotated[str, Words(lambda: {"Available", *_LEVELS})] = "Available"
    security: str = ""
    prices: _Prices
    images: tuple[str, ...] = ()
    isSpot: bool | None = None
    prepaidTime: Amount | None = None

    @property
    def is_community(self) -> bool:
        return self.security == "community_cloud"

    @property
    def sku(self) -> str:
        """Seller, its id of the type, the GPU count, and the cloud's kind where it is not the default."""
        kind = "_community" if self.is_community else ""
        return slug(f"{self.provider}_{self.cloudId}_{self.gpuCount}x{kind}")


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of the availability lists, and which of the two it is from."""

    payload: bytes
    is_multi_node: bool


def parse_offers(pages: Sequence[Page], observed_at: datetime) -> OfferBatch:
    """Offers of ``availability/gpus`` and ``availability/multi-node``."""
    facts = load_provider_facts(NAME)
    rows = [(_row_name(row), (row, page)) for page in pages for row in read_page(page.payload).items]
    batch = collect(rows, lambda found: _offers_of(found[0], found[1], facts, observed_at))
    return OfferBatch(_clusters_joined(batch.offers), batch.rejected)


def read_page(payload: bytes) -> AvailabilityPage:
    """A page as a whole; PayloadUnreadable."""
    return as_payload(NAME, decode_json(NAME, payload), AvailabilityPage)


def _row_name(row: Any) -> str:
    if not isinstance(row, dict):
        return "row that is no object"
    words = (
        row.get("provider", "no provider"),
        row.get("cloudId", "no cloudId"),
        row.get("dataCenter") or "-",
    )
    return " ".join(str(word) for word in words)


def _offers_of(row: Any, page: Page, facts: ProviderFacts, observed_at: datetime) -> Iterator[Offer]:
    read = _Row.model_validate(row)
    if read.gpuType == NO_GPU:
        raise RowRejected("no GPU")
    gpus = require_gpus(read.gpuCount)
    gpu = canonical_gpu(facts, f"{read.gpuType} {read.socket or ''}".strip(), read.gpuMemory)
    nodes = _nodes(gpu, gpus, facts, page)
    level = _LEVELS.get(read.stockStatus, StockLevel.UNKNOWN)
    if level is StockLevel.NONE:
        raise RowRejected("sold out")
    quoted = _price(read)
    currency, day = read.prices.currency, observed_at.date()
    dollars, exchange = usd_of(without_noise(quoted), currency, day)
    tier = Tier.SPOT if read.isSpot else Tier.ON_DEMAND
    region = read.region or read.country or "any"
    yield Offer(
        offer_id=f"{NAME}/{slug(read.dataCenter or region)}/{read.sku}/{tier}",
        provider=NAME,
        sku=_sku(read, gpu, nodes),
        region=region,
        zone=read.dataCenter or None,
        country=_country(read.country),
        seller=read.provider,
        tier=tier,
        price_usd_per_node_hour=dollars / nodes,
        observed_at=observed_at,
        source=source_with_rate(_source(page), read.prices.currency, exchange),
        native=NativePrice(quoted, read.prices.currency, f"configuration-hour of {nodes} node(s)", exchange),
        min_hours=read.prepaidTime or 0.0,
        stock=Stock(level, nodes if nodes > 1 else None),
        billing_increment_s=facts.billed.increment_s,
        compliance=facts.compliance,
        reference=_reference(read, nodes, quoted / nodes),
        host=_HOSTS.get(read.security),
        disk=_sold(read.disk, currency, day, free=True) if nodes == 1 else None,
        memory=_sold(read.memory, currency, day, free=False) if nodes == 1 else None,
    )


def _clusters_joined(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Combines the sizes of one cluster at one node price into one offer; ``nodes`` in its note lists them.

    A single machine of the same type and price is the cluster's smallest size, and remains an offer of its
    own.
    """
    sizes: dict[tuple[object, ...], dict[int, Offer]] = {}
    for offer in offers:
        sizes.setdefault(_cluster_key(offer), {})[int(offer.reference["nodes"])] = offer
    joined = []
    for offer in offers:
        of_cluster = sizes[_cluster_key(offer)]
        several = sorted(nodes for nodes in of_cluster if nodes > 1)
        if int(offer.reference["nodes"]) == 1:
            joined.append(offer)
        elif offer is of_cluster[several[0]]:
            joined.append(_of_sizes(offer, sorted(of_cluster)))
    return tuple(joined)


def _cluster_key(offer: Offer) -> tuple[object, ...]:
    words = ("provider", "cloudId", "gpuType", "socket", "dataCenterId", "country", "security")
    price = offer.price_usd_per_node_hour.normalize()
    return (*(offer.reference[word] for word in words), offer.tier, price, offer.min_hours)


def _of_sizes(offer: Offer, sizes: Sequence[int]) -> Offer:
    fabric = offer.sku.fabric
    return replace(
        offer,
        sku=replace(offer.sku, fabric=replace(fabric, max_nodes=sizes[-1]) if fabric else None),
        stock=Stock(offer.stock.level, sizes[-1]),
        reference={**offer.reference, "nodes": ",".join(str(nodes) for nodes in sizes)},
    )


def _nodes(gpu: str, gpus: int, facts: ProviderFacts, page: Page) -> int:
    """Nodes of a configuration: more than one if it has more GPUs than one node."""
    known = facts.nodes.get(gpu)
    size = known.gpus_per_node if known is not None else None
    if size is None:
        if page.is_multi_node:
            raise RowRejected(f"the number of {gpu} per node is unknown")
        return 1
    if gpus > size and gpus % size:
        raise RowRejected(f"{gpus} GPUs do not make whole nodes of {size}")
    return max(1, gpus // size)


def _price(row: _Row) -> Decimal:
    """The hourly price of the configuration, including its default disk, cores and memory."""
    name, value = ("communityPrice", row.prices.communityPrice)
    if not row.is_community or value is None:
        name, value = ("onDemand", row.prices.onDemand)
    return require_price(value, name)


def _sku(row: _Row, gpu: str, nodes: int) -> Sku:
    per_node = row.gpuCount // nodes
    alone = nodes == 1
    return Sku(
        name=row.sku,
        gpu=gpu,
        gpus_per_node=per_node,
        gpu_memory_gb=nominal_memory_gb(gpu),
        vcpus=row.vcpu.amount if alone else None,
        memory_gb=row.memory.amount if alone else None,
        disk_gb=row.disk.amount if alone else None,
        intra_node=infer_intra_node(gpu, per_node),
        fabric=None if alone else _fabric(row, nodes),
    )


def _fabric(row: _Row, nodes: int) -> Fabric | None:
    kind = _FABRICS.get((row.interconnectType or "").strip().lower())
    if kind is None or not row.interconnect:
        return None
    return Fabric(kind, row.interconnect, nodes)


def _country(code: str | None) -> str | None:
    return code if code is not None and len(code) == 2 and code.isascii() and code.isupper() else None


def _source(page: Page) -> str:
    return f"GET /api/v1/availability/{'multi-node' if page.is_multi_node else 'gpus'}"


def _reference(row: _Row, nodes: int, per_node: Decimal) -> Mapping[str, str]:
    """What an order must repeat word for word, and the highest price of a node (in dollars only)."""
    return {
        "provider": row.provider,
        "cloudId": row.cloudId,
        "gpuType": row.gpuType,
        "socket": row.socket or "",
        "gpus_per_node": str(row.gpuCount // nodes),
        "dataCenterId": row.dataCenter or "",
        "country": row.country or "",
        "security": row.security,
        "images": ",".join(row.images),
        "nodes": str(nodes),
        "max_price_per_node": str(per_node) if row.prices.currency.upper() == "USD" else "",
    }


def parse(payloads: Sequence[NamedPayload], observed_at: datetime) -> OfferBatch:
    """Recorded answers; which list one is from stands in the file's name (``multi``)."""
    return parse_offers([Page(body, "multi" in name) for name, body in payloads], observed_at)


ROWS = (Rows("GET /api/v1/availability/gpus, …/multi-node", "items[]", _Row),)
