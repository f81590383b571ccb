"""Small markets and workloads for tests of placement. Time counts in hours from the horizon's start."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

from broker.catalogue import load_models
from broker.domain.basics.window import Segment, Window
from broker.domain.market.offer import HostKind, NativePrice, Offer, Stock, Tier, WindowKind, WindowTerms
from broker.domain.market.sku import Fabric, FabricKind, Sku
from broker.domain.moving.moving_costs import MovingTerms
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import (
    NO_LIMIT,
    Batch,
    FleetLimits,
    PlanRequest,
    Precision,
    Redundancy,
    Serving,
    Slo,
    Starts,
    Training,
    Workload,
)
from broker.domain.workloads.traffic import Traffic, TrafficShape
from broker.ports.planning import PlanOptions
from optimizer.performance.estimator import Estimator
from optimizer.planner import JointPlanner
from tests.placement.fake_estimator import FakeEstimator

ANY_POOLS = FleetLimits(NO_LIMIT, NO_LIMIT)
T0 = datetime(2026, 11, 23, tzinfo=UTC)
MODEL = load_models()["Llama-3.1-8B"]


def at(hours: float) -> datetime:
    return T0 + timedelta(hours=hours)


def sku(gpu: str = "BIG", gpus: int = 1, joined: int = 0, name: str = "") -> Sku:
    fabric = Fabric(FabricKind.INFINIBAND, 3200.0, joined) if joined else None
    return Sku(name or f"{gpu}-x{gpus}", gpu, gpus, 80.0, fabric=fabric)


def offer(name: str, usd: str, **changes: Any) -> Offer:
    """An on-demand offer of one BIG GPU a node, which can always be had; ``gpu``, ``gpus``, ``joined`` and
    ``nodes`` are short forms.
    """
    kind = sku(changes.pop("gpu", "BIG"), changes.pop("gpus", 1), changes.pop("joined", 0))
    nodes = changes.pop("nodes", None)
    made = Offer(
        offer_id=name,
        provider=changes.pop("provider", "lambda"),
        sku=kind,
        region=changes.pop("region", "us-east"),
        tier=changes.pop("tier", Tier.ON_DEMAND),
        price_usd_per_node_hour=Decimal(usd),
        observed_at=T0,
        source="test",
        native=NativePrice(Decimal(usd), "USD", "node_hour"),
        stock=Stock(nodes=nodes),
        host=HostKind.DATACENTER,
    )
    changes.setdefault("place", "")
    changes.setdefault("launch_chance", 1.0)
    return replace(made, **changes)


def window(kind: WindowKind, *stretches: tuple[float, float, int], **changes: Any) -> WindowTerms:
    segments = tuple(Segment(at(a), at(b), n) for a, b, n in stretches)
    return WindowTerms(kind, segments, **changes)


def training(name: str = "run", gpu_hours: float = 10, **changes: Any) -> Training:
    """A run that takes ``gpu_hours`` on BIG GPUs."""
    base = Training(
        name=name,
        team="team",
        model=MODEL,
        tokens=gpu_hours * 3600 * 1000.0,
        sequence_length=2048,
        global_batch_tokens=1e6,
        precision=Precision.BF16,
        earliest_start=at(0),
        deadline=at(48),
    )
    return replace(base, **changes)


def serving(name: str = "chat", hourly: Sequence[float] = (3.0,), **changes: Any) -> Serving:
    """A service with an hourly demand list that repeats."""
    traffic = Traffic(100, 100, TrafficShape.HOURLY, max(hourly), hourly=tuple(hourly))
    base = Serving(name=name, team="team", model=MODEL, traffic=traffic, slo=Slo(1000, 50))
    zones, spare = changes.pop("zones", 1), changes.pop("spare", 0)
    told = ("starts_after", "starts_at", "delay_usd_per_hour")
    changes.setdefault("starts", Starts(*(changes.pop(name, None) for name in told)))
    return replace(base, redundancy=Redundancy(zones, spare), **changes)


def batch(name: str = "batch", requests: float = 100_000, **changes: Any) -> Batch:
    base = Batch(
        name=name,
        team="team",
        model=MODEL,
        requests=requests,
        input_tokens=100,
        output_tokens=100,
        earliest_start=at(0),
        deadline=at(48),
    )
    return replace(base, **changes)


def request(*workloads: Workload, hours: float = 48, **changes: Any) -> PlanRequest:
    return PlanRequest("team", Window(at(0), at(hours)), tuple(workloads), **changes)


def planner(
    estimator: FakeEstimator | None = None,
    terms: MovingTerms | None = None,
    wall: Callable[[], float] = time.monotonic,
) -> JointPlanner:
    return JointPlanner(cast("Estimator", estimator or FakeEstimator()), terms, wall)


def plan(
    asked: PlanRequest,
    offers: Sequence[Offer],
    as_of: datetime = T0,
    estimator: FakeEstimator | None = None,
    terms: MovingTerms | None = None,
    **options: Any,
) -> Plan:
    """A checked plan without baselines, as near to the optimum as can be proven."""
    chosen = {"time_limit_s": 120.0, "gap": 0.0, "baselines": False, **options}
    return planner(estimator, terms).plan(asked, offers, as_of, PlanOptions(**chosen))


def total(found: Plan) -> Decimal:
    return found.objective_usd


def weekly(count: int) -> tuple[PlanRequest, list[Offer]]:
    """So many services over weekly commitments of scarce stock, on any number of pools."""
    terms: dict[str, Any] = {"tier": Tier.COMMITTED, "min_hours": 168.0, "billing_increment_s": 3600}
    offers = [
        offer("week", "0.80", nodes=2, **terms),
        offer("dearer", "1.10", nodes=4, **terms),
        offer("free", "1.90", nodes=8, billing_increment_s=3600),
        offer("small", "0.70", gpu="TINY", billing_increment_s=3600),
    ]
    day = [2.6 + 1.4 * (1 + math.cos(2 * math.pi * (hour - 14) / 24)) for hour in range(24)]
    services = (serving(f"s{i}", day, fleet=ANY_POOLS) for i in range(count))
    return request(*services, hours=336), offers
