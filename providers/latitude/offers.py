"""Latitude.sh's plans, and the offers in them (facts of the wire: the package's docstring)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from broker.domain.basics.money import MICRO
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, RejectedRow, Stock, StockLevel, Tier
from broker.domain.market.sku import Fabric, FabricKind, Form, Sku
from broker.provider_facts import ProviderFacts, load_provider_facts
from providers.payload import (
    Amount,
    GpuCount,
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
from providers.rows import gpu_node, page_by_page, rows_under
from providers.schema import Rows, Words

NAME = "latitude"
HOURS_PER_MONTH = 730

_LEVELS = {
    "unavailable": StockLevel.NONE,
    "unique": StockLevel.LOW,
    "low": StockLevel.LOW,
    "medium": StockLevel.MEDIUM,
    "high": StockLevel.HIGH,
}
_FABRICS = {"roce": FabricKind.ROCE, "infiniband": FabricKind.INFINIBAND}


class _Cpu(PayloadModel):
    cores: Amount | None = None
    count: Amount = 1.0


class _Memory(PayloadModel):
    total: Amount | None = None


class _Drive(PayloadModel):
    count: Amount = 1.0
    size: str = ""


class _Gpu(PayloadModel):
    count: GpuCount = 0
    type: str = ""
    vram_per_gpu: Amount | None = None
    interconnect: str | None = None


class _Specs(PayloadModel):
    cpu: _Cpu = _Cpu()
    memory: _Memory = _Memory()
    drives: tuple[_Drive, ...] = ()
    gpu: _Gpu = _Gpu()


class _Sites(PayloadModel):
    available: tuple[Name, ...] = ()
    in_stock: tuple[Name, ...] = ()
    in_stock_count: Mapping[str, GpuCount] | None = None


class _Prices(PayloadModel):
    hour: Decimal | None = None
    month: Decimal | None = None


class _Region(PayloadModel):
    name: str = ""
    locations: _Sites = _Sites()
    stock_level: Annotated[str, Words(lambda: _LEVELS)] = ""
    pricing: Mapping[str, _Prices] = {}


class _Attributes(PayloadModel):
    slug: Name
    specs: _Specs
    regions: tuple[_Region, ...] = ()
    features: tuple[str, ...] | None = None

    @property
    def takes_script(self) -> bool:
        """Whether its servers run *user data*; a plan that names no features is taken to."""
        return self.features is None or "user_data" in self.features


class _Plan(PayloadModel):
    attributes: _Attributes


def parse_offers(payload: bytes, observed_at: datetime) -> OfferBatch:
    """Offers of ``GET /plans``: one per plan, site in stock and payment term."""
    facts = load_provider_facts(NAME)
    rows = rows_under(NAME, payload, "data")
    return collect(((_row_name(row), row) for row in rows), lambda row: _offers_of(row, facts, observed_at))


def _row_name(row: Any) -> str:
    attributes = row.get("attributes") if isinstance(row, dict) else None
    return str(attributes.get("slug", "plan without slug")) if isinstance(attributes, dict) else "no plan"


def _offers_of(row: Any, facts: ProviderFacts, observed_at: datetime) -> Iterator[Offer | RejectedRow]:
    plan = _Plan.model_validate(row).attributes
    sku = _sku(plan, facts)
    if not plan.regions:
        raise RowRejected("no region")
    for region in plan.regions:
        for each in _region_offers(plan.slug, sku, region, facts, observed_at):
            if isinstance(each, Offer) and not plan.takes_script:
                yield replace(each, reference={**each.reference, "user_data": "no"})
            else:
                yield each


def _region_offers(
    plan: str, sku: Sku, region: _Region, facts: ProviderFacts, observed_at: datetime
) -> Iterator[Offer | RejectedRow]:
    usd = region.pricing.get("USD", _Prices())
    for tier, term, amount in ((Tier.ON_DEMAND, "hour", usd.hour), (Tier.COMMITTED, "month", usd.month)):
        try:
            price = require_price(amount, f"USD {term} price")
        except RowRejected as error:
            yield RejectedRow(f"{plan} {region.name} {tier}"[:200], str(error))
            continue
        for site in region.locations.in_stock:
            stock = _stock(region, site)
            if stock.nodes != 0:
                yield _offer(plan, sku, site, stock, (tier, price), facts, observed_at)
    yield from _sold_out(plan, region.locations)


def _sold_out(plan: str, sites: _Sites) -> Iterator[RejectedRow]:
    counts = sites.in_stock_count or {}
    for site in dict.fromkeys((*sites.available, *sites.in_stock)):
        if site not in sites.in_stock or counts.get(site) == 0:
            yield RejectedRow(f"{plan} {site}"[:200], "sold out")


def _stock(region: _Region, site: str) -> Stock:
    """The stock of a site.

    A site in stock has some even if its region as a whole is called unavailable.
    """
    level = _LEVELS.get(region.stock_level, StockLevel.UNKNOWN)
    nodes = (region.locations.in_stock_count or {}).get(site)
    return Stock(StockLevel.UNKNOWN if level is StockLevel.NONE else level, nodes)


def _offer(
    plan: str,
    sku: Sku,
    site: str,
    stock: Stock,
    quote: tuple[Tier, Decimal],
    facts: ProviderFacts,
    observed_at: datetime,
) -> Offer:
    tier, amount = quote
    monthly = tier is Tier.COMMITTED
    hours = HOURS_PER_MONTH if monthly else 1
    return Offer(
        offer_id=f"{NAME}/{slug(site)}/{slug(plan)}/{tier}",
        provider=NAME,
        sku=sku,
        region=site,
        country=facts.country_of(site),
        tier=tier,
        price_usd_per_node_hour=(amount / hours).quantize(MICRO) if monthly else amount,
        observed_at=observed_at,
        source="GET /plans",
        native=NativePrice(amount, "USD", "server-month" if monthly else "server-hour"),
        min_hours=float(hours) if monthly else 0.0,
        billing_increment_s=facts.billed.increment_s * hours,
        stock=stock,
        compliance=facts.compliance,
        reference={"plan": plan, "site": site, "billing": "monthly" if monthly else "hourly"},
    )


def _sku(plan: _Attributes, facts: ProviderFacts) -> Sku:
    specs, gpu = plan.specs, plan.specs.gpu
    count = require_gpus(gpu.count)
    name = _silicon(plan, count, facts)
    cores = specs.cpu.cores
    return gpu_node(
        plan.slug,
        name,
        count,
        Form.BARE_METAL,
        vcpus=None if cores is None else cores * specs.cpu.count,
        memory_gb=specs.memory.total,
        disk_gb=_disk_gb(specs.drives),
        fabric=_fabric(gpu.interconnect, facts),
    )


def _silicon(plan: _Attributes, count: int, facts: ProviderFacts) -> str:
    """The plan's configured GPU if its word omits the form, else the word's; checked against the memory."""
    gpu, known = plan.specs.gpu, facts.nodes.get(plan.slug)
    if known is None or known.gpu is None or gpu.type in facts.silicon:
        return canonical_gpu(facts, gpu.type, gpu.vram_per_gpu)
    family = known.gpu.partition("-")[0]
    if known.gpus_per_node != count or family not in gpu.type.split():
        raise RowRejected(f"{plan.slug} is known as {known.gpus_per_node} x {known.gpu}")
    stated = gpu.vram_per_gpu
    if stated is not None and abs(stated - nominal_memory_gb(known.gpu)) > 1:
        raise RowRejected(f"unknown GPU {gpu.type[:80]!r} with {stated:.4g} GB of memory")
    return known.gpu


def _fabric(text: str | None, facts: ProviderFacts) -> Fabric | None:
    """The network that the text names by kind and rate: "800Gbps Dual Plane RoCE"."""
    words = (text or "").lower()
    rate = re.search(r"(\d{1,5})\s*gbps", words)
    kind = next((kind for word, kind in _FABRICS.items() if word in words), None)
    if rate is None or kind is None:
        return None
    return Fabric(kind, float(rate.group(1)), int(facts.search["fabric_max_nodes"]))


def _disk_gb(drives: Sequence[_Drive]) -> float | None:
    """All drives together; None when one of them has no readable size."""
    sizes = [re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?) ?(GB|TB)", drive.size.strip()) for drive in drives]
    if not sizes or not all(sizes):
        return None
    each = [float(found.group(1)) * (1000 if found.group(2) == "TB" else 1) for found in sizes if found]
    return sum(drive.count * size for drive, size in zip(drives, each, strict=True))


parse = page_by_page(parse_offers)
"""Recorded answers of ``plans``."""


ROWS = (Rows("GET /plans", "data[]", _Plan),)
