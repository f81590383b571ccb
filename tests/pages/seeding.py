"""A broker with something to show: two teams' plans, spend over three months, reservations, a proposal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from api.bootstrap import Product
from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import Caller, Scope
from broker.domain.basics.estimate import Estimate, Parallelism, Provenance
from broker.domain.basics.window import Segment
from broker.domain.market.market import PollRound
from broker.domain.market.offer import NativePrice, Offer, RejectedRow, Stock, StockLevel, Tier
from broker.domain.market.round_news import round_news
from broker.domain.market.sku import Fabric, FabricKind, Form, IntraNode, LinkKind, Sku
from broker.domain.moving.reoptimization import Move, ProposalState, Reoptimization
from broker.domain.planning.plan import (
    Baseline,
    Obstacle,
    Placement,
    Plan,
    PlanStatus,
    RunnerUp,
    Unplaced,
    Why,
)
from broker.domain.planning.workload import Precision, WorkloadKind
from broker.ports.planning import PlanOptions, PlanRecord, PlanState
from broker.ports.unit_of_work import UnitOfWork
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, listed_terms

ADMIN = Caller("seed", "admin", frozenset(Scope))
RESEARCH_PLAN = "plan-01jdc0a7x3research"
PRODUCT_PLAN = "plan-01jdc0b91kproduct"
RUN_HOURS = 212
PRICED_DAYS, DRIFT_USD = 12, Decimal("0.17")


def _offer(offer_id: str, sku: Sku, price: str, tier: Tier, region: str, stock: int | None = 40) -> Offer:
    usd = Decimal(price)
    return Offer(
        offer_id=offer_id,
        provider=offer_id.split(":")[0],
        sku=sku,
        region=region,
        zone=f"{region}-a",
        tier=tier,
        price_usd_per_node_hour=usd,
        observed_at=NOON,
        source="seed",
        native=NativePrice(usd, "USD", "node-hour"),
        stock=Stock(StockLevel.HIGH, stock),
    )


FABRIC = Fabric(FabricKind.INFINIBAND, 3200.0, 64, "pod-1")
METAL = Sku(
    "8x-h100-sxm-metal", "H100-SXM-80GB", 8, 80.0, form=Form.BARE_METAL,
    intra_node=IntraNode(LinkKind.NVLINK, 900.0), fabric=FABRIC,
)  # fmt: skip
H200 = Sku("gpu_8x_h200", "H200-SXM-141GB", 8, 141.0, intra_node=IntraNode(LinkKind.NVLINK, 900.0))
L40S = Sku("4x-l40s", "L40S", 4, 48.0, form=Form.VM, intra_node=IntraNode(LinkKind.PCIE, 64.0))

BLOCK = replace(
    _offer("sfcompute:yerba-h100i-2026-11-24", METAL, "15.9200", Tier.WINDOW, "us-west-yerba", None),
    window=replace(listed_terms(NOON + timedelta(hours=12), 240, nodes=16)),
    upfront_usd=Decimal("61132.80"),
)
STEADY = _offer("lambda:gpu_8x_h200:us-east-3", H200, "27.92", Tier.ON_DEMAND, "us-east-3")
CHEAP = _offer("runpod:4x-l40s:eu-ro-1", L40S, "3.16", Tier.ON_DEMAND, "eu-ro-1")
SPOT = _offer("vast:h100:offer-81231172", replace(METAL, fabric=None), "12.08", Tier.SPOT, "se-stockholm", 3)
OFFERS = (BLOCK, STEADY, CHEAP, SPOT)


def _fleet(offer: Offer, days: int, low: int, high: int, start: datetime) -> tuple[Segment, ...]:
    """More nodes by day than by night."""
    found = []
    for day in range(days):
        morning = start + timedelta(days=day)
        found.append(Segment(morning, morning + timedelta(hours=9), low))
        found.append(Segment(morning + timedelta(hours=9), morning + timedelta(hours=21), high))
        found.append(Segment(morning + timedelta(hours=21), morning + timedelta(hours=24), low))
    return tuple(found)


def _training(start: datetime) -> Placement:
    segment = Segment(start, start + timedelta(hours=240), 16)
    value = {"hours": RUN_HOURS, "tokens_per_s": 1_482_300.0, "mfu": 0.43, "goodput": 0.962}
    told = Estimate(value, value, value, Provenance.CALIBRATED)
    why = Why(
        "compute",
        (
            "needs a fabric: 128 GPUs do not fit one node",
            "the deadline of 2026-12-05 rules out fewer than 12 nodes",
            "bare metal in one InfiniBand domain keeps 96 % of the step in compute",
        ),
        RunnerUp("aws:p5.48xlarge:capacity-block:us-east-2", Decimal("75120.40"), "22.9 % dearer"),
        fitting=412,
    )  # fmt: skip
    placed = a_placement(BLOCK, [segment], "pretrain-8b")
    return replace(
        placed, estimate=told, why=why, gpus_per_replica=128, parallelism=Parallelism(1, 1, 128),
        paid_unused_usd=Decimal("7132.16"),
    )  # fmt: skip


def _service(offer: Offer, workload: str, segments: tuple[Segment, ...], rate: float) -> Placement:
    value = {
        "requests_per_s_per_replica": rate,
        "ttft_p95_ms": 412.0,
        "itl_p95_ms": 38.0,
        "usd_per_million_tokens": 1.34,
    }
    why = Why(
        "HBM bandwidth",
        ("two zones are wanted", "TP 2 because the weights need 141 GB and a GPU has 48 GB"),
        RunnerUp(STEADY.offer_id, Decimal("31212.55"), "bandwidth per dollar is 31 % lower"),
    )
    placed = a_placement(offer, segments, workload, WorkloadKind.SERVING)
    return replace(
        placed, estimate=Estimate(value, value, value), why=why, replicas=2 * placed.nodes,
        gpus_per_replica=2, parallelism=Parallelism(2), precision=Precision.FP8,
    )  # fmt: skip


def _finished(plan: Plan, strategies: tuple[tuple[str, str | None, str], ...]) -> Plan:
    baselines = tuple(Baseline(n, None if usd is None else Decimal(usd), why) for n, usd, why in strategies)
    bound = plan.cost_usd * Decimal("0.994")
    return replace(plan, baselines=baselines, bound_usd=bound, gap=0.006, solve_seconds=11.4)


def research_plan(start: datetime) -> Plan:
    """A run in a window, then two fleets; one workload found no place."""
    after = start + timedelta(hours=240)
    plan = a_plan(
        _training(start),
        _service(CHEAP, "chat-70b", _fleet(CHEAP, 20, 4, 9, after), 1.84),
        _service(STEADY, "chat-70b", _fleet(STEADY, 20, 1, 2, after), 7.2),
        plan_id=RESEARCH_PLAN,
        unplaced=(
            Unplaced("nightly-eval", Obstacle.RESIDENCY, "allow country SE or NO: vast and verda sell there"),
        ),
    )
    strategies: tuple[tuple[str, str | None, str], ...] = (
        ("single_shape", "128410.12", "8 × H100-SXM-80GB bare metal for training and serving alike"),
        ("single_provider", "117890.00", "lambda sells no block: on demand for the whole horizon"),
        ("cheapest_gpu_hour", None, "vast has no fabric: the run does not fit one node"),
        ("converged", "141020.77", "one always-on pool of 16 nodes, sized for the peak"),
    )
    return replace(_finished(plan, strategies), status=PlanStatus.FEASIBLE)


def product_plan(start: datetime) -> Plan:
    """A service for ten weeks."""
    placement = _service(CHEAP, "assistant-8b", _fleet(CHEAP, 70, 2, 5, start), 3.1)
    plan = a_plan(placement, plan_id=PRODUCT_PLAN, team="product")
    return _finished(plan, (("single_shape", "28110.40", "H100 for everything"),))


def _record(plan: Plan, workloads: list[str], state: PlanState = PlanState.DONE) -> PlanRecord:
    return PlanRecord(
        plan_id=plan.plan_id,
        team=plan.team,
        state=state,
        document=json.dumps({"team": plan.team, "workloads": [{"name": name} for name in workloads]}),
        options=PlanOptions(),
        created_at=NOON,
        requested_by="seed",
        plan=plan,
        intended_by="seed",
    )


UNREAD = tuple(RejectedRow(f"pod-type-{number}", "no GPU of this name is known") for number in range(14))


async def _polled(uow: UnitOfWork, provider: str, offers: Sequence[Offer], at: datetime) -> None:
    news = round_news(await uow.offers.open_round(provider), offers, at)
    rejected = UNREAD if provider == "runpod" else ()
    await uow.offers.record_round(PollRound(provider, at, 0.42, len(offers), rejected), news)


async def seed(product: Product) -> None:
    """Stores all of it."""
    start = NOON + timedelta(hours=12)
    research = research_plan(start)
    better = replace(research, plan_id="plan-01jdc0q5proposal", created_at=NOON)
    move = Move(
        "chat-70b", (STEADY.offer_id,), (CHEAP.offer_id,), Decimal("2310.18"),
        "runpod's L40S fell by 14 % and now carries the evening peak too",
    )  # fmt: skip
    look = Reoptimization(
        "reopt-1", "research", RESEARCH_PLAN, "market: price of runpod:4x-l40s:eu-ro-1 and 3 more", NOON,
        ProposalState.PROPOSED, Decimal("98210.02"), Decimal("95899.84"), better.plan_id, (move,),
        "saves 2.4 %, above the threshold of 2 %",
    )  # fmt: skip
    quiet = replace(
        look, reoptimization_id="reopt-2", state=ProposalState.UNCHANGED, before_usd=None, after_usd=None,
        new_plan_id=None, moves=(), reason="nothing better was found", trigger="timetable",
    )  # fmt: skip
    async with product.store.unit_of_work(EVERY_TEAM) as uow:
        for days_ago in range(PRICED_DAYS, 0, -1):
            past = replace(
                STEADY, price_usd_per_node_hour=STEADY.price_usd_per_node_hour + DRIFT_USD * days_ago
            )
            await _polled(uow, "lambda", (past,), NOON - timedelta(days=days_ago))
        for provider in ("sfcompute", "lambda", "runpod", "vast"):
            await _polled(uow, provider, [offer for offer in OFFERS if offer.provider == provider], NOON)
        await uow.offers.record_round(PollRound("verda", NOON, 50.0, 0, error="verda: no answer"), None)
        await uow.plans.add(_record(research, ["pretrain-8b", "chat-70b", "nightly-eval"]))
        await uow.plans.add(_record(product_plan(start), ["assistant-8b"]))
        await uow.plans.add(_record(better, ["pretrain-8b", "chat-70b", "nightly-eval"], PlanState.PROPOSED))
        await uow.reoptimizations.add(quiet)
        await uow.reoptimizations.add(look)
        await uow.commit()
