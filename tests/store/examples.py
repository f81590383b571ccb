"""Plain examples of what is stored, to be changed with ``dataclasses.replace``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import NativePrice, Offer, Stock, StockLevel, Tier
from broker.domain.market.sku import Sku
from broker.ports.planning import PlanOptions, PlanRecord, PlanState

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
PLENTY = Stock(StockLevel.HIGH, 4)


def offer(
    offer_id: str = "aws-1",
    usd: str = "24.00",
    *,
    provider: str = "aws",
    gpus_per_node: int = 8,
    observed_at: datetime = NOON,
    stock: Stock = PLENTY,
    gpu: str = "H100-SXM-80GB",
    region: str = "us-east-1",
    tier: Tier = Tier.ON_DEMAND,
) -> Offer:
    price = Decimal(usd)
    return Offer(
        offer_id=offer_id,
        provider=provider,
        sku=Sku("p5.48xlarge", gpu, gpus_per_node, 80.0),
        region=region,
        tier=tier,
        price_usd_per_node_hour=price,
        observed_at=observed_at,
        source="test",
        native=NativePrice(price, "USD", "hour"),
        stock=stock,
    )


def plan_record(
    plan_id: str,
    *workloads: str,
    team: str = "research",
    state: PlanState = PlanState.DONE,
    created_at: datetime = NOON,
    supersedes: str | None = None,
) -> PlanRecord:
    return PlanRecord(
        plan_id=plan_id,
        team=team,
        state=state,
        document=json.dumps({"team": team, "workloads": [{"name": name} for name in workloads]}),
        options=PlanOptions(),
        created_at=created_at,
        requested_by="key-1",
        supersedes=supersedes,
    )


def reservation(
    reservation_id: str,
    *,
    state: ReservationState = ReservationState.ACTIVE,
    team: str = "research",
    start: datetime = NOON,
    end: datetime | None = NOON + 2 * HOUR,
    created_at: datetime = NOON,
    reference: str | None = "i-1",
    plan_id: str | None = None,
) -> Reservation:
    unit = Unit(0, f"broker-ab-{reservation_id}-0-1", 1, UnitState.HELD, reference, NOON)
    return Reservation(
        reservation_id=reservation_id,
        team=team,
        state=state,
        offer=offer(),
        nodes=1,
        start=start,
        end=end,
        units=(unit,),
        created_at=created_at,
        plan_id=plan_id,
    )
