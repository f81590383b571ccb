"""Offers, requests and plans that tests build on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.window import Segment, Window
from broker.domain.market.billing import holding_cost_usd, spread_by_day
from broker.domain.market.offer import (
    CancelRule,
    NativePrice,
    Offer,
    Stock,
    StockLevel,
    Tier,
    WindowBegin,
    WindowKind,
    WindowTerms,
)
from broker.domain.market.sku import Sku
from broker.domain.planning.plan import CandidateCounts, Placement, Plan, PlanStatus, SpendLine, Unplaced, Why
from broker.domain.planning.workload import PlanRequest, Precision, Serving, Slo, Training, WorkloadKind
from broker.domain.workloads.model_shape import Attention, ModelShape
from broker.domain.workloads.traffic import Traffic, TrafficShape
from broker.ports.planning import (
    InForce,
    PlanCall,
    PlannedAgain,
    PlanOptions,
    PlanRecord,
    PlanState,
    ReplanCall,
)
from tests.fakes.clock import NOON

ALICE = Caller("key-alice", "research", frozenset(Scope) - {Scope.ADMIN})
BOB = Caller("key-bob", "product", frozenset(Scope) - {Scope.ADMIN})
ADMIN = Caller("key-admin", "admin", frozenset(Scope))
READER = Caller("key-reader", "research", frozenset({Scope.PLANS_READ}))

TINY = ModelShape(
    name="tiny",
    attention=Attention.MHA,
    layers=2,
    hidden=64,
    heads=2,
    kv_heads=2,
    head_dim=32,
    ffn=128,
    vocab=1000,
    total_params=1e6,
    active_params=1e6,
    kv_elements_per_token=256,
    mlp_mats=3,
    experts=0,
    active_experts=0,
    shared_experts=0,
    moe_ffn=0,
    first_k_dense=0,
    moe_every=1,
    tie_embeddings=False,
    context=4096,
    source="test",
)


def an_offer(
    offer_id: str = "o-1",
    price: str = "10",
    *,
    provider: str = "fake",
    stock: int | None = 100,
    window: WindowTerms | None = None,
    upfront: str | None = None,
    increment_s: int = 3600,
    min_hours: float = 0.0,
    observed_at: datetime = NOON,
) -> Offer:
    """An offer of 8-GPU nodes; on demand, or a window when terms are given."""
    return Offer(
        offer_id=offer_id,
        provider=provider,
        sku=Sku(f"sku-{offer_id}", "H100-SXM-80GB", 8, 80.0),
        region="us-1",
        tier=Tier.ON_DEMAND if window is None else Tier.WINDOW,
        price_usd_per_node_hour=Decimal(price),
        observed_at=observed_at,
        source="test",
        native=NativePrice(Decimal(price), "USD", "node-hour"),
        upfront_usd=None if upfront is None else Decimal(upfront),
        billing_increment_s=increment_s,
        min_hours=min_hours,
        window=window,
        stock=Stock(StockLevel.HIGH, stock),
    )


def listed_terms(
    start: datetime, hours: float, nodes: int = 2, cancel: CancelRule = CancelRule.NEVER
) -> WindowTerms:
    """One listed window."""
    segment = Segment(start, start + timedelta(hours=hours), nodes)
    return WindowTerms(WindowKind.LISTED, (segment,), cancel=cancel)


def slot_terms(
    start: datetime, hours: float, nodes: int = 4, cancel: CancelRule = CancelRule.ANY_TIME
) -> WindowTerms:
    """Free hours to cut windows out of."""
    segment = Segment(start, start + timedelta(hours=hours), nodes)
    return WindowTerms(WindowKind.SLOTS, (segment,), cancel=cancel)


def waiting_terms(wait_hours: float = 2.0, **changes: Any) -> WindowTerms:
    """A window of whole hours that begins when capacity appears."""
    return WindowTerms(
        WindowKind.REQUEST,
        (),
        step_hours=0.25,
        durations_hours=tuple(float(hours) for hours in range(1, 169)),
        lead_hours=wait_hours,
        cancel=CancelRule.ANY_TIME,
        begins=WindowBegin.WHEN_AVAILABLE,
        longest_wait_hours=wait_hours,
        wait_source="a test",
        **changes,
    )


def a_segment(start_h: float, end_h: float, nodes: int = 1, origin: datetime = NOON) -> Segment:
    """Hours from ``origin``."""
    return Segment(origin + timedelta(hours=start_h), origin + timedelta(hours=end_h), nodes)


def a_placement(
    offer: Offer,
    segments: Sequence[Segment],
    workload: str = "train",
    kind: WorkloadKind = WorkloadKind.TRAINING,
) -> Placement:
    """``segments`` of ``offer`` at its price."""
    nodes = max(segment.nodes for segment in segments)
    return Placement(
        workload=workload,
        kind=kind,
        offer_id=offer.offer_id,
        provider=offer.provider,
        region=offer.region,
        zone=offer.zone,
        sku=offer.sku.name,
        gpu=offer.sku.gpu,
        tier=offer.tier,
        nodes=nodes,
        gpus=nodes * offer.sku.gpus_per_node,
        replicas=1,
        gpus_per_replica=offer.sku.gpus_per_node,
        parallelism=Parallelism(),
        precision=Precision.BF16,
        segments=tuple(segments),
        cost_usd=to_cents(holding_cost_usd(offer, segments)),
        paid_unused_usd=ZERO,
        estimate=Estimate({"hours": 1.0}, {"hours": 1.0}, {"hours": 1.0}),
        why=Why("compute", ()),
    )


def a_plan(
    *placements: Placement,
    plan_id: str = "plan-1",
    as_of: datetime = NOON,
    team: str = "research",
    unplaced: tuple[Unplaced, ...] = (),
) -> Plan:
    """A plan of ``placements``."""
    lines = [
        SpendLine(window.start, window.end, p.workload, p.provider, p.tier, usd)
        for p in placements
        for window, usd in spread_by_day(p.cost_usd, p.segments)
    ]
    return Plan(
        plan_id=plan_id,
        status=PlanStatus.OPTIMAL,
        team=team,
        created_at=as_of,
        as_of=as_of,
        seed=1,
        cost_usd=sum((p.cost_usd for p in placements), ZERO),
        bound_usd=None,
        gap=None,
        penalty_usd=ZERO,
        solve_seconds=0.0,
        candidates=CandidateCounts(1, 1),
        placements=tuple(placements),
        unplaced=unplaced,
        baselines=(),
        spend=tuple(lines),
    )


def a_record(
    plan: Plan | None, *, state: PlanState = PlanState.DONE, needs_approval: bool = False
) -> PlanRecord:
    """A stored plan, which is intended until it is reserved."""
    return PlanRecord(
        plan_id=plan.plan_id if plan is not None else "plan-1",
        team="research",
        state=state,
        document="{}",
        options=PlanOptions(),
        created_at=NOON,
        requested_by="key-alice",
        plan=plan,
        needs_approval=needs_approval,
        intended_by="key-alice",
    )


def a_request(budget: str | None = None, hours: float = 48, *, serving: bool = True) -> PlanRequest:
    """A run of ten hours and a service, over ``hours`` from noon."""
    horizon = Window(NOON, NOON + timedelta(hours=hours))
    run = Training(
        name="train",
        team="research",
        model=TINY,
        tokens=1e9,
        sequence_length=1024,
        global_batch_tokens=1e6,
        precision=Precision.BF16,
        earliest_start=NOON,
        deadline=horizon.end,
    )
    service = Serving(
        name="chat",
        team="research",
        model=TINY,
        traffic=Traffic(100, 100, TrafficShape.FLAT, 1.0),
        slo=Slo(1000, 60),
    )
    workloads = (run, service) if serving else (run,)
    return PlanRequest("research", horizon, workloads, None if budget is None else Decimal(budget))


def plan_beyond_memory(
    request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime, options: PlanOptions
) -> Plan:
    """A planner that needs 8 GiB."""
    _ = bytearray(8 * 2**30)
    return plan_on_cheapest(request, offers, as_of, options)


def plan_on_cheapest(
    request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime, options: PlanOptions
) -> Plan:
    """The fake planner: runs take ten hours, services the whole horizon, each on the cheapest offer."""
    if not offers:
        raise RuntimeError("no offers")
    cheapest = min(offers, key=lambda offer: (offer.price_usd_per_node_hour, offer.offer_id))
    start = max(request.horizon.start, as_of)
    placements = []
    for workload in request.workloads:
        hours = 10.0 if workload.kind is WorkloadKind.TRAINING else None
        end = request.horizon.end if hours is None else start + timedelta(hours=hours)
        segment = Segment(start, end, 1)
        placements.append(a_placement(cheapest, [segment], workload.name, workload.kind))
    return a_plan(*placements, plan_id="plan-fake", as_of=as_of)


def stop_early(
    request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime, options: PlanOptions
) -> Plan:
    """The fake planner, whose limit ended its search a fifth above the bound."""
    plan = plan_on_cheapest(request, offers, as_of, options)
    bound_usd = to_cents(plan.cost_usd * Decimal("0.8"))
    return replace(plan, status=PlanStatus.FEASIBLE, bound_usd=bound_usd, gap=0.2)


def anew(plan_call: PlanCall) -> ReplanCall:
    """A planner that starts from nothing, whatever is in force; what is frozen stays as it was."""

    def replan(
        request: PlanRequest,
        offers: tuple[Offer, ...],
        as_of: datetime,
        options: PlanOptions,
        in_force: InForce,
    ) -> PlannedAgain:
        new = plan_call(request, offers, as_of, options)
        stays = [p for p in in_force.plan.placements if p.workload in in_force.frozen]
        kept = [p for p in new.placements if p.workload not in in_force.frozen]
        return PlannedAgain(replace(new, placements=(*kept, *stays)))

    return replan


def refuse_to_plan(
    request: PlanRequest, offers: tuple[Offer, ...], as_of: datetime, options: PlanOptions
) -> Plan:
    """A planner with a fault of its own."""
    raise ZeroDivisionError("a fault")


PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPHh6vNjbb3DfcIbFSZrnU7R7VPwY1cLOG4zCVNTM9wX ada@laptop"
