"""What the tools answer: figures of offers, plans and reservations. Pure."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

from pydantic import BaseModel, Field

from api.schemas.base.parts import Money
from api.schemas.base.times import Instant
from api.schemas.holding.reservation import ReservationForm
from api.schemas.plans.comparison import ComparisonForm
from broker.domain.market.offer import Offer
from broker.domain.planning.cost_estimate import CostEstimate
from broker.domain.planning.plan import Placement, Plan

Result = TypeVar("Result", bound=BaseModel)
METRICS = (
    "hours",
    "tokens_per_s",
    "mfu",
    "requests_per_s_per_replica",
    "ttft_p95_ms",
    "itl_p95_ms",
    "usd_per_million_tokens",
)
"""Of an estimate, those that people decide by."""
NEXT_BEST = 3
MOST_KINDS = 6


class OfferResult(BaseModel):
    """One offer. ``nodes_in_stock`` null: the seller does not say how many there are."""

    offer_id: str
    provider: str
    region: str
    country: str | None
    gpu: str
    gpus_per_node: int
    tier: str
    usd_per_gpu_hour: Money
    usd_per_node_hour: Money
    stock: str
    nodes_in_stock: int | None
    fabric: str | None


class OffersResult(BaseModel):
    """Offers, cheapest per GPU-hour first. ``more``: there are further ones."""

    offers: list[OfferResult]
    more: bool


class PlacementResult(BaseModel):
    """Where one workload runs. ``nodes`` is the most that is held at once, ``estimate`` has medians."""

    workload: str
    kind: str
    provider: str
    place: str
    gpu: str
    nodes: int
    gpus: int
    tier: str
    held_from: Instant
    held_until: Instant
    cost_usd: Money
    estimate: dict[str, float]
    why: list[str]
    next_best: list[str] = Field(
        description="Other places, what they would cost, and what speaks against them"
    )


class GpuResult(BaseModel):
    """A kind of GPU that fits, for the cheaper half of its sellers."""

    gpu: str
    gpus_least: int
    gpus_most: int
    hours_least: float
    hours_most: float
    cheapest_usd: Money
    median_usd: Money


class WorkloadCostResult(BaseModel):
    """What one workload would cost alone; costs are null where no offer fits, and ``says`` why."""

    workload: str
    says: str
    cheapest_usd: Money | None
    median_usd: Money | None
    gpus: list[GpuResult]


class EstimateResult(BaseModel):
    """What workloads would cost, each alone, from the cheapest that can be had to the median of sellers."""

    cheapest_usd: Money
    median_usd: Money
    workloads: list[WorkloadCostResult]


class FixResult(BaseModel):
    """A change of the workloads document that places the workload, and the cost with it."""

    says: str
    cost_usd: Money


class UnplacedResult(BaseModel):
    """A workload that has no place, and why."""

    workload: str
    obstacle: str
    nearest_fix: str
    fixes: list[FixResult]


class PlanResult(BaseModel):
    """A plan. ``state`` is queued, running, failed or cancelled while there is none, and then the rest is
    empty. ``gap`` is the share by which a better plan could be cheaper at most."""

    plan_id: str
    state: str
    status: str | None = None
    standing: str | None = None
    problem: str | None = None
    needs_approval: bool = False
    cost_usd: Money | None = None
    gap: float | None = None
    holding: str | None = Field(None, description="What is held of the nodes of a reserved plan")
    placements: list[PlacementResult] = []
    unplaced: list[UnplacedResult] = []


class ComparisonResult(BaseModel):
    """Two plans side by side: the first is the base, and ``plans`` has the second."""

    comparison: ComparisonForm


class ReservationResult(BaseModel):
    """One reservation."""

    reservation_id: str
    state: str
    promise: str | None
    workload: str | None
    provider: str
    region: str
    gpu: str | None
    nodes: int
    nodes_held: int
    start: Instant
    end: Instant | None
    usd_per_node_hour: Money | None
    reason: str


class OrderResult(BaseModel):
    """What reserving came to. Without ``reserved`` nothing was bought: ``confirmation`` is to be given in a
    second call once a person has agreed to ``would_buy``."""

    reserved: bool
    plan_id: str
    cost_usd: Money
    would_buy: list[str]
    confirmation: str | None = None
    told: str
    reservations: list[ReservationResult] = []


class SpendLine(BaseModel):
    """Spend of one group in one period, by how certain it is."""

    period: Instant
    group: str
    basis: str
    usd: Money


class SpendResult(BaseModel):
    """Projected and actual spend."""

    total_usd: Money
    lines: list[SpendLine]


def result_of(form: type[Result], source: object, **others: Any) -> Result:
    """``form`` with the values of ``source`` that have its names, and ``others``."""
    named = {name: getattr(source, name) for name in form.model_fields if hasattr(source, name)}
    return form(**{**named, **others})


def offer_result(offer: Offer) -> OfferResult:
    """The figures of an offer."""
    sku, price = offer.sku, offer.price_usd_per_node_hour
    return result_of(
        OfferResult,
        offer,
        gpu=sku.gpu,
        gpus_per_node=sku.gpus_per_node,
        usd_per_gpu_hour=(price / sku.gpus_per_node).quantize(Decimal("0.0001")),
        usd_per_node_hour=price,
        stock=str(offer.stock.level),
        nodes_in_stock=offer.stock.nodes,
        fabric=None if sku.fabric is None else str(sku.fabric.kind),
    )


def estimate_result(found: CostEstimate) -> EstimateResult:
    """An estimate as a tool answers it."""
    workloads = [
        result_of(
            WorkloadCostResult, one, gpus=[result_of(GpuResult, kind) for kind in one.gpus[:MOST_KINDS]]
        )
        for one in found.workloads
    ]
    return result_of(EstimateResult, found, workloads=workloads)


def plan_result(
    plan: Plan, *, state: str, standing: str | None, needs_approval: bool, holding: str | None = None
) -> PlanResult:
    """A plan as a tool answers it."""
    return result_of(
        PlanResult,
        plan,
        state=state,
        standing=standing,
        holding=holding,
        needs_approval=needs_approval,
        placements=[_placement(one) for one in plan.placements],
        unplaced=[
            result_of(
                UnplacedResult,
                one,
                obstacle=str(one.reason),
                fixes=[result_of(FixResult, fix) for fix in one.fixes],
            )
            for one in plan.unplaced
        ],
    )


def _held(placement: Placement) -> tuple[datetime, datetime]:
    """From when and until when any of its nodes is held."""
    starts, ends = zip(*((one.start, one.end) for one in placement.segments), strict=True)
    return min(starts), max(ends)


def _place(placement: Placement) -> str:
    return f"{placement.provider} {placement.zone or placement.region}"


def _placement(placement: Placement) -> PlacementResult:
    start, end = _held(placement)
    return result_of(
        PlacementResult,
        placement,
        place=_place(placement),
        held_from=start,
        held_until=end,
        estimate={
            name: placement.estimate.value[name] for name in METRICS if name in placement.estimate.value
        },
        why=list(placement.why.sentences[:NEXT_BEST]),
        next_best=[
            f"{one.offer_id} for ${one.cost_usd:,.2f}: {one.because}"
            for one in placement.why.next_best[:NEXT_BEST]
        ],
    )


def would_buy(plan: Plan) -> list[str]:
    """What reserving a plan orders, a line each."""
    return [
        f"{one.workload}: {one.nodes} × {one.gpus // one.nodes} {one.gpu} at {_place(one)} "
        f"({str(one.tier).replace('_', ' ')}), {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, "
        f"${one.cost_usd:,.2f}"
        for one in plan.placements
        for start, end in (_held(one),)
    ]


def reservation_result(row: ReservationForm) -> ReservationResult:
    """The figures of a reservation."""
    return result_of(ReservationResult, row, usd_per_node_hour=row.price_usd_per_node_hour)
