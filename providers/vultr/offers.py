"""Vultr's plans, and the offers in them (facts of the wire: the package's docstring)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from pydantic import Field

from broker.domain.market.offer import NativePrice, Offer, OfferBatch, RejectedRow, Stock, StockLevel, Tier
from broker.domain.market.sku import Form, Sku
from broker.provider_facts import ProviderFacts, load_provider_facts
from providers.gpu_words import MEMORY_TOLERANCE
from providers.payload import (
    Amount,
    Name,
    PayloadModel,
    RowRejected,
    as_dict,
    as_list,
    canonical_gpu,
    collect,
    decode_json,
    gb_of_gib,
    nominal_memory_gb,
    require_gpus,
    require_price,
)
from providers.rows import gpu_node, page_by_page, row_name
from providers.schema import Rows

NAME = "vultr"
VIRTUAL, METAL = "plans", "plans_metal"
"""The key of the rows in each of the two lists."""

_SOURCES = {VIRTUAL: "GET /v2/plans", METAL: "GET /v2/plans-metal"}
_ORDERED_AT = {VIRTUAL: "instances", METAL: "bare-metals"}
_METAL_ID = re.compile(r"(?:-(\d{1,2}))?-([a-z0-9]{2,12})-gpu$")
_GPU_PLAN = re.compile(r"vcg-|.*-gpu$")
"""Ids of plans with GPUs, as Vultr names them."""
_COUNT = re.compile(r"(\d{1,4})(?:/(\d{1,4}))?")


class _Cost(PayloadModel):
    hourly_cost: Decimal | None = None
    hourly_cost_preemptible: Decimal | None = None


class _Plan(_Cost):
    """A row of either list. An empty ``location_cost`` may come as a list."""

    id: Name
    vcpu_count: Amount | None = None
    cpu_threads: Amount | None = None
    ram: Amount | None = None
    disk: Amount | None = None
    disk_count: Amount | None = None
    gpu_brand: str | None = None
    gpu_type: str | None = None
    gpu_count: int | str | None = None
    gpu_vram_gb: Amount | None = None
    deploy_ondemand: bool | None = None
    deploy_preemptible: bool | None = None
    locations: tuple[str, ...] = ()
    location_cost: dict[str, _Cost] | list[None] = Field(default_factory=dict)

    @property
    def overrides(self) -> Mapping[str, _Cost]:
        """Prices of single regions."""
        return self.location_cost if isinstance(self.location_cost, dict) else {}


def parse_offers(payload: bytes, observed_at: datetime) -> OfferBatch:
    """Offers of one page of either list: one per plan and region that has it now."""
    facts = load_provider_facts(NAME)
    envelope = as_dict(NAME, decode_json(NAME, payload), "the answer")
    key = METAL if METAL in envelope else VIRTUAL
    rows = as_list(NAME, envelope.get(key), key)
    return collect(
        ((row_name(row), row) for row in rows), lambda row: _offers_of(row, key, facts, observed_at)
    )


def _offers_of(
    row: Any, key: str, facts: ProviderFacts, observed_at: datetime
) -> Iterator[Offer | RejectedRow]:
    plan = _Plan.model_validate(row)
    sku = _sku(plan, key, facts)
    regions = tuple(dict.fromkeys(region for region in plan.locations if region))
    if not regions:
        raise RowRejected("sold out everywhere")
    tier = _tier(plan)
    for region in regions:
        try:
            price = _price(plan, region, tier)
        except RowRejected as error:
            yield RejectedRow(f"{plan.id} {region}", str(error))
            continue
        yield _offer(plan, sku, key, region, tier, price, facts, observed_at)
    if tier is Tier.ON_DEMAND and plan.deploy_preemptible is not False and plan.hourly_cost_preemptible:
        yield RejectedRow(
            f"{plan.id} preemptible", "an order has no field that asks for the preemptible price"
        )


def _tier(plan: _Plan) -> Tier:
    """The tier of an order of the plan: according to its flags, where it has them."""
    if plan.deploy_ondemand is not False:
        return Tier.ON_DEMAND
    if plan.deploy_preemptible:
        return Tier.SPOT
    raise RowRejected("not deployable now, neither on demand nor preemptible")


def _price(plan: _Plan, region: str, tier: Tier) -> Decimal:
    cost = plan.overrides.get(region, plan)
    if tier is Tier.SPOT:
        return require_price(cost.hourly_cost_preemptible, "hourly_cost_preemptible")
    return require_price(cost.hourly_cost, "hourly_cost")


def _offer(
    plan: _Plan,
    sku: Sku,
    key: str,
    region: str,
    tier: Tier,
    price: Decimal,
    facts: ProviderFacts,
    observed_at: datetime,
) -> Offer:
    return Offer(
        offer_id=f"{NAME}/{region}/{plan.id}/{tier}",
        provider=NAME,
        sku=sku,
        region=region,
        country=facts.country_of(region),
        tier=tier,
        price_usd_per_node_hour=price,
        observed_at=observed_at,
        source=_SOURCES[key],
        native=NativePrice(price, "USD", "plan-hour"),
        billing_increment_s=facts.billed.increment_s,
        stock=Stock(StockLevel.SOME),
        compliance=facts.compliance,
        reference={"plan": plan.id, "region": region, "endpoint": _ORDERED_AT[key]},
    )


def _sku(plan: _Plan, key: str, facts: ProviderFacts) -> Sku:
    gpu, count = _silicon(plan, facts)
    return gpu_node(
        plan.id,
        gpu,
        count,
        Form.BARE_METAL if key == METAL else Form.VM,
        vcpus=plan.cpu_threads if key == METAL else plan.vcpu_count,
        memory_gb=gb_of_gib(None if plan.ram is None else plan.ram / 1024),
        disk_gb=None if plan.disk is None else plan.disk * (plan.disk_count or 1),
    )


def _silicon(plan: _Plan, facts: ProviderFacts) -> tuple[str, int]:
    """The card and the count: from the row, else from the id, else from the configuration."""
    node = facts.nodes.get(plan.id)
    if node is not None and node.gpu and not plan.gpu_type:
        return node.gpu, require_gpus(node.gpus_per_node)
    by_id = _METAL_ID.search(plan.id)
    word = plan.gpu_type or (by_id.group(2) if by_id else "")
    if not word:
        if plan.gpu_brand in {None, "", "none"}:
            raise RowRejected("the GPU is not stated" if _GPU_PLAN.match(plan.id) else "no GPU")
        raise RowRejected(f"a GPU of {plan.gpu_brand[:40]} that has no name")
    card = canonical_gpu(facts, word)
    in_id = int(by_id.group(1)) if by_id and by_id.group(1) else None
    counted = in_id if plan.gpu_count is None else _stated_count(plan.gpu_count)
    count = counted or _count_by_memory(plan, nominal_memory_gb(card))
    if plan.gpu_vram_gb is not None:
        canonical_gpu(facts, word, plan.gpu_vram_gb / count)
    return card, count


def _stated_count(value: int | str | None) -> int | None:
    if value is None:
        return None
    found = _COUNT.fullmatch(str(value))
    whole, parts = (int(found.group(1)), int(found.group(2) or 1)) if found else (0, 1)
    if not whole or not parts or (whole > parts and whole % parts):
        raise RowRejected(f"gpu_count {str(value)[:12]!r} is not a count")
    if whole < parts:
        raise RowRejected(f"vGPU: {whole}/{parts} of a card")
    return whole // parts


def _count_by_memory(plan: _Plan, card_gb: float) -> int:
    total = plan.gpu_vram_gb
    if not total:
        raise RowRejected("neither a GPU count nor GPU memory")
    if total < card_gb * (1 - MEMORY_TOLERANCE):
        raise RowRejected(f"vGPU: {total:g} of the card's {card_gb:g} GB")
    return min(1024, max(1, round(total / card_gb)))


parse = page_by_page(parse_offers)
"""Recorded pages of the two lists."""


ROWS = (
    Rows(
        "GET /v2/plans", "plans[]", _Plan, at_times=("cpu_threads", "location_cost.*.hourly_cost_preemptible")
    ),
    Rows("GET /v2/plans-metal", "plans_metal[]", _Plan, at_times=("vcpu_count",)),
)
