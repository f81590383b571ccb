"""Nobody tells the planner which machine suits which phase: prices and physics do.

The market of these tests is small and plain; each test changes one figure of it and says where the
choice must go. Estimates come from the real performance core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from broker.catalogue import load_gpus, load_models
from broker.domain.basics.window import Segment, Window
from broker.domain.market.offer import (
    CancelRule,
    HostKind,
    NativePrice,
    Offer,
    Stock,
    StockLevel,
    Tier,
    WindowKind,
    WindowTerms,
)
from broker.domain.market.sku import Fabric, FabricKind, Form, Sku
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import GpuRange, PlanRequest, Precision, Serving, Slo, Training, Workload
from broker.domain.workloads.model_shape import GpuSpec
from broker.domain.workloads.traffic import Traffic, TrafficShape
from broker.ports.planning import PlanOptions
from broker.provider_facts import infer_intra_node
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.planner import JointPlanner

T0 = datetime(2026, 11, 23, tzinfo=UTC)
INFINIBAND = Fabric(FabricKind.INFINIBAND, 3200, 64)
ETHERNET = Fabric(FabricKind.ETHERNET, 100, 64)


def sku(gpu: str, gpus_per_node: int, form: Form, fabric: Fabric | None) -> Sku:
    memory = load_gpus()[gpu].memory_gb
    link = infer_intra_node(gpu, gpus_per_node)
    return Sku(
        f"{gpu}-x{gpus_per_node}", gpu, gpus_per_node, memory, form=form, intra_node=link, fabric=fabric
    )


def offer(
    name: str, kind: Sku, usd: str, tier: Tier = Tier.ON_DEMAND, window: WindowTerms | None = None
) -> Offer:
    price = Decimal(usd)
    nodes = window.segments[0].nodes if window else None
    return Offer(
        offer_id=name,
        provider=name.split("/")[0],
        sku=kind,
        region="us-east",
        zone=f"{name}-a",
        country="US",
        tier=tier,
        price_usd_per_node_hour=price,
        observed_at=T0,
        source="test",
        native=NativePrice(price, "USD", "node_hour"),
        window=window,
        stock=Stock(StockLevel.HIGH, nodes),
        host=HostKind.DATACENTER,
    )


def block(name: str, kind: Sku, usd: str, days: int, nodes: int) -> Offer:
    start = T0 + timedelta(hours=11.5)
    terms = WindowTerms(
        WindowKind.LISTED,
        (Segment(start, start + timedelta(days=days), nodes),),
        cancel=CancelRule.NEVER,
        teardown_s=1800,
    )
    whole = replace(offer(name, kind, usd, Tier.WINDOW, terms), min_hours=24.0 * days)
    return replace(whole, upfront_usd=Decimal(usd) * 24 * days * nodes)


DENSE_BLOCK = block("metal/h100-block", sku("H100-SXM-80GB", 8, Form.BARE_METAL, INFINIBAND), "20", 7, 16)
DENSE_A100 = offer("metal/a100-ib", sku("A100-SXM-80GB", 8, Form.BARE_METAL, INFINIBAND), "11")
LOOSE_H100 = offer("cloud/h100-vm", sku("H100-SXM-80GB", 8, Form.VM, None), "19")
SLOW_H100 = offer("cloud/h100-eth", sku("H100-SXM-80GB", 8, Form.VM, ETHERNET), "18")
CHEAP_L40S = offer("cloud/l40s", sku("L40S", 1, Form.VM, None), "0.90")
ONE_A100 = offer("cloud/a100-1", sku("A100-SXM-80GB", 1, Form.VM, None), "1.30")
ONE_H100 = offer("cloud/h100-1", sku("H100-SXM-80GB", 1, Form.VM, None), "2.60")
MARKET = (DENSE_BLOCK, DENSE_A100, LOOSE_H100, SLOW_H100, CHEAP_L40S, ONE_A100, ONE_H100)

RUN = Training(
    name="pretrain",
    team="t",
    model=load_models()["Llama-3.1-8B"],
    tokens=1.0e11,
    sequence_length=8192,
    global_batch_tokens=1.0e6,
    precision=Precision.BF16,
    earliest_start=T0,
    deadline=T0 + timedelta(days=12),
    gpus=GpuRange(64),
)
CHAT = Serving(
    name="chat",
    team="t",
    model=load_models()["Llama-3.1-8B"],
    traffic=Traffic(800, 200, TrafficShape.FLAT, 3.0),
    slo=Slo(ttft_p95_ms=1500, itl_p95_ms=80),
)


def planned(
    workloads: Iterable[Workload], offers: Iterable[Offer], gpus: Mapping[str, GpuSpec] | None = None
) -> Plan:
    request = PlanRequest("t", Window(T0, T0 + timedelta(days=14)), tuple(workloads))
    planner = JointPlanner(Estimator(gpus or load_gpus(), load_calibration()))
    plan = planner.plan(request, tuple(offers), T0, PlanOptions(time_limit_s=60))
    assert not plan.unplaced
    return plan


def placed(plan: Plan, workload: str) -> Placement:
    (only,) = plan.placements_of(workload)
    return only


def without(gone: Offer) -> tuple[Offer, ...]:
    return tuple(o for o in MARKET if o is not gone)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned([RUN, CHAT], MARKET)


def test_training_goes_to_dense_metal_in_a_window_that_ends(plan: Plan) -> None:
    run = placed(plan, "pretrain")
    assert run.offer_id in {DENSE_BLOCK.offer_id, DENSE_A100.offer_id}
    assert run.segments[-1].end < plan.as_of + timedelta(days=13)


def test_serving_goes_to_a_cheaper_machine_without_a_fabric(plan: Plan) -> None:
    chat = placed(plan, "chat")
    assert chat.offer_id in {CHEAP_L40S.offer_id, ONE_A100.offer_id, ONE_H100.offer_id}
    assert chat.parallelism.tp == 1, "8B fits one card: tensor parallelism would only cost"


def test_the_split_is_cheaper_than_one_shape_for_both(plan: Plan) -> None:
    single = next(b for b in plan.baselines if b.name == "single_shape")
    assert single.cost_usd is not None
    assert single.cost_usd > plan.cost_usd


def test_a_dense_machine_whose_fabric_is_removed_loses_the_run(plan: Plan) -> None:
    chosen = placed(plan, "pretrain").offer_id
    bare = [replace(o, sku=replace(o.sku, fabric=None)) if o.offer_id == chosen else o for o in MARKET]
    moved = planned([RUN], bare)
    assert placed(moved, "pretrain").offer_id != chosen
    assert moved.cost_usd >= placed(plan, "pretrain").cost_usd


def test_slower_fabric_makes_the_same_run_longer() -> None:
    only = [offer("metal/h100-ib", sku("H100-SXM-80GB", 8, Form.BARE_METAL, INFINIBAND), "20")]
    slow = [replace(only[0], sku=replace(only[0].sku, fabric=ETHERNET))]
    fast_run, slow_run = (placed(planned([RUN], market), "pretrain") for market in (only, slow))
    assert slow_run.estimate["step_s"] * slow_run.gpus > fast_run.estimate["step_s"] * fast_run.gpus


def test_halving_the_hbm_bandwidth_of_the_chosen_card_moves_the_service(plan: Plan) -> None:
    chosen = placed(plan, "chat").gpu
    before = placed(plan, "chat").estimate["requests_per_s_per_replica"]
    halved = dict(load_gpus())
    halved[chosen] = replace(halved[chosen], hbm_gbyte_s=halved[chosen].hbm_gbyte_s / 2)
    moved = planned([CHAT], MARKET, halved)
    after = placed(moved, "chat")
    assert moved.cost_usd >= placed(plan, "chat").cost_usd
    assert after.gpu != chosen or after.estimate["requests_per_s_per_replica"] < before


def test_tensor_parallelism_appears_where_memory_asks_for_it() -> None:
    big = replace(
        CHAT, model=load_models()["Llama-3.1-70B"], traffic=Traffic(800, 200, TrafficShape.FLAT, 0.5)
    )
    market = [offer("cloud/h100-8", sku("H100-SXM-80GB", 8, Form.VM, None), "19")]
    chat = placed(planned([big], market), "chat")
    assert chat.gpus_per_replica >= 2, "141 GB of bf16 weights do not fit 80 GB"


def test_a_dearer_offer_never_enters_a_cheapest_plan(plan: Plan) -> None:
    for placement in plan.placements:
        twin = next(o for o in MARKET if o.offer_id == placement.offer_id)
        usd = twin.price_usd_per_node_hour * Decimal("1.01")
        upfront = None if twin.upfront_usd is None else twin.upfront_usd * Decimal("1.01")
        dearer = replace(
            twin,
            offer_id=f"dear/{twin.offer_id}",
            provider="dear",
            price_usd_per_node_hour=usd,
            upfront_usd=upfront,
        )
        again = planned([RUN, CHAT], (*MARKET, dearer))
        assert dearer.offer_id not in {p.offer_id for p in again.placements}
        assert again.cost_usd <= plan.cost_usd
