"""A batch in parts of which one is short: what works is kept, and only the rest is planned and bought."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from broker.domain.basics.window import Window
from broker.domain.holding.reservation import Reservation, ReservationState, UnitState
from broker.domain.market.offer import Offer, Tier
from broker.domain.moving.reoptimization import MoveState, ProposalState, Reoptimization
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import Policy
from broker.ports.planning import InForce, PlannedAgain, PlanOptions
from broker.services.moving.proposals import ProposalsService
from broker.services.moving.reoptimize import ReoptimizeService
from broker.services.planning.plan_queue import PlanQueue
from optimizer.placement.replan.warm import WarmStart
from tests.fakes.clock import NOON
from tests.fakes.examples import ALICE
from tests.fakes.notifier import InlineExecutor
from tests.fakes.provider import Fault
from tests.placement import market
from tests.services.conftest import House

HOUR = timedelta(hours=1)
FULL = 4 * (10 * 3600 - 600)
"""Requests that a node answers in ten hours: four a second after ten minutes of cold start."""
OPTIONS = PlanOptions(time_limit_s=20.0, gap=0.0, baselines=False)
PLANNER = market.planner()


def offer(name: str, usd: str, nodes: int, tier: Tier = Tier.SPOT) -> Offer:
    return market.offer(
        name, usd, nodes=nodes, tier=tier, provider="fake", observed_at=NOON, billing_increment_s=1
    )


def replan(request: Any, offers: Any, as_of: datetime, options: PlanOptions, force: InForce) -> PlannedAgain:
    warm = WarmStart(
        force.plan, leaving_usd=force.leaving_usd, frozen_before=force.frozen_before, frozen=force.frozen
    )
    found = PLANNER.replan(request, offers, as_of, options, warm)
    return PlannedAgain(found.plan, found.unfinished)


class Desk:
    """A batch on one node of ``a`` and two of ``b``, both spot, for ten hours; ``dear`` costs four times as
    much."""

    def __init__(self, **changes: Any) -> None:
        self.house = House()
        self.house.provider.per_order = 1
        batch = market.batch(
            requests=3 * FULL, team="research", earliest_start=NOON, deadline=NOON + 10 * HOUR,
            policy=Policy(premium=0.0), **changes,
        )  # fmt: skip
        self.request = replace(market.request(batch), team="research", horizon=Window(NOON, NOON + 48 * HOUR))
        self.plan: Plan | None = None
        house = self.house
        units, parts = house.tables.unit_of_work, (house.clock, house.notifier)
        reader: dict[str, Any] = {"read_request": lambda document: self.request}
        self.reoptimize = ReoptimizeService(units, replan, PlanQueue(InlineExecutor()), *parts, **reader)
        self.proposals = ProposalsService(units, house.moves, *parts, **reader)

    async def hold(self, *offers: Offer) -> None:
        self.house.sell(*offers)
        plan = PLANNER.plan(self.request, offers, NOON, OPTIONS)
        self.plan = replace(plan, plan_id="plan-1")
        self.house.store_plan(self.plan)
        await self.house.reservations.reserve_plan(ALICE, "plan-1")

    async def later(self, hours: float, *offers: Offer) -> None:
        """Time goes by, the market is seen again, and the reconciler passes."""
        for _ in range(4):
            self.house.clock.advance(hours=hours / 4)
            self.house.sell(*(replace(one, observed_at=self.house.clock.now()) for one in offers))
            await self.house.reconcile.run_once()

    def rows(self, offer_id: str) -> list[Reservation]:
        return [row for row in self.house.rows() if row.offer.offer_id == offer_id]

    def open_nodes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for one in self.house.provider.open_instances():
            found[one.sku] = found.get(one.sku, 0) + one.nodes
        return found

    async def look(self) -> Reoptimization:
        (found,) = await self.reoptimize.run("a test")
        return found


A, B = offer("a", "1.00", 1), offer("b", "1.10", 2)
DEAR = offer("dear", "4.00", 50, Tier.ON_DEMAND)
SOLD_OUT = (replace(A, stock=replace(A.stock, nodes=0)), replace(B, stock=replace(B.stock, nodes=0)), DEAR)
"""The market once the nodes of ``a`` and ``b`` are sold to us."""


async def short_of_one() -> Desk:
    """The batch after two hours, when one of the nodes of ``b`` is taken away and cannot be had again."""
    desk = Desk()
    await desk.hold(A, B, DEAR)
    assert desk.plan is not None
    assert {p.offer_id: p.nodes for p in desk.plan.placements} == {"a": 1, "b": 2}
    await desk.later(2, *SOLD_OUT)
    (row,) = desk.rows("b")
    desk.house.provider.fail("reserve", *[Fault.NO_CAPACITY] * 40)
    desk.house.provider.preempt(str(row.units[0].reference))
    await desk.later(0.2, *SOLD_OUT)
    desk.house.provider.faults["reserve"].clear()
    return desk


async def test_what_works_is_kept_and_only_the_rest_is_bought() -> None:
    desk = await short_of_one()
    kept = {row.reservation_id for row in desk.rows("a") + desk.rows("b") if row.active_at}
    (refused,) = [row for row in desk.rows("b") if row.reservation_id not in kept]
    assert refused.tries
    look = await desk.look()
    assert look.state is ProposalState.PROPOSED, look.reason
    (move,) = look.moves
    assert (move.from_offers, move.to_offers) == (("b",), ("dear",))
    assert set(move.keeps) == kept
    assert move.leaves == (refused.reservation_id,)
    new = desk.house.tables.plans[str(look.new_plan_id)].plan
    assert new is not None
    parts = {(p.offer_id, p.nodes): p.requests for p in new.placements}
    assert sum(map(float, filter(None, parts.values()))) == pytest.approx(3 * FULL, rel=0.01)
    assert parts["a", 1] == pytest.approx(FULL)
    # The lost node's work: 7.9 hours are left, less than it took, so two nodes share it, each with a start.
    assert parts["dear", 2] == pytest.approx(FULL, rel=0.01)
    (placed,) = [p for p in new.placements if p.offer_id == "dear"]
    assert placed.requests is not None
    hours = 2 * (placed.requests / 4 / 2 + 600) / 3600
    assert float(placed.cost_usd) == pytest.approx(4 * hours, abs=0.02)
    assert new.cost_usd == sum(p.cost_usd for p in new.placements)
    before = 0.0
    for part in new.placements_of("batch"):
        assert part.first_request == pytest.approx(before)
        before += part.requests or 0.0

    await desk.proposals.accept(ALICE, look.reoptimization_id)
    for _ in range(3):
        await desk.proposals.act()
        await desk.later(0.1, *SOLD_OUT)
    assert desk.open_nodes() == {"BIG-x1": 4}
    assert {row.state for row in desk.rows("a")} == {ReservationState.ACTIVE}
    (ended,) = [row for row in desk.rows("b") if row.reservation_id == refused.reservation_id]
    assert not ended.is_open
    assert len(desk.rows("dear")) == 1
    desk.house.assert_agreement()
    (applied,) = [one for one in desk.house.tables.reoptimizations if one.moves]
    assert (applied.state, applied.moves[0].state) == (ProposalState.APPLIED, MoveState.DONE)
    again = await desk.look()
    assert not again.moves, "nothing is missing any more"


async def test_a_batch_that_fills_its_time_on_spot_stays_there() -> None:
    desk = Desk()
    await desk.hold(A, B, DEAR)
    for _ in range(4):
        await desk.later(1, *SOLD_OUT)
        look = await desk.look()
        assert not look.moves, look.reason


async def short_of_refused() -> tuple[Desk, str]:
    """The batch at its start: of the two nodes of ``b`` one is bought, and the other is refused."""
    desk = Desk()
    await desk.hold(A, B, DEAR)
    (row,) = desk.rows("b")
    bought, refused = row.units
    now = desk.house.clock.now()
    desk.house.provider.preempt(str(refused.reference))
    waiting = replace(refused, state=UnitState.PLANNED, reference=None, ordered_at=None)
    late = replace(row, units=(bought, waiting), tries=2, tried_at=now, reason="no stock")
    desk.house.tables.reservations[row.reservation_id] = late
    desk.house.sell(*SOLD_OUT)
    return desk, row.reservation_id


async def test_a_part_with_fewer_nodes_than_planned_is_kept_with_those() -> None:
    desk, b = await short_of_refused()
    look = await desk.look()
    (move,) = look.moves
    assert (move.to_offers, move.leaves) == (("dear",), ())
    assert set(move.keeps) == {b, desk.rows("a")[0].reservation_id}
    await desk.proposals.accept(ALICE, look.reoptimization_id)
    await desk.proposals.act()
    cut = desk.house.tables.reservations[b]
    assert (cut.nodes, cut.tries) == (1, 0)
    assert [unit.state for unit in cut.units] == [UnitState.HELD, UnitState.GONE]
    await desk.later(0.2, *SOLD_OUT)
    bought = sum(row.nodes for row in desk.rows("dear"))
    assert desk.open_nodes() == {"BIG-x1": 2 + bought}
    desk.house.assert_agreement()


async def test_a_refused_rest_leaves_the_part_waiting_as_before() -> None:
    desk, b = await short_of_refused()
    look = await desk.look()
    await desk.proposals.accept(ALICE, look.reoptimization_id)
    desk.house.provider.fail("reserve", Fault.NO_CAPACITY)
    for _ in range(2):
        await desk.proposals.act()
    row = desk.house.tables.reservations[b]
    assert (row.nodes, row.tries) == (2, 2)
    assert [unit.state for unit in row.units] == [UnitState.HELD, UnitState.PLANNED]
    (ended,) = [one for one in desk.house.tables.reoptimizations if one.moves]
    assert ended.state is ProposalState.FAILED


async def test_a_service_short_of_nodes_keeps_those_that_it_holds() -> None:
    desk = Desk()
    service = market.serving(hourly=[11.0], team="research", fleet=market.ANY_POOLS)
    desk.request = replace(desk.request, workloads=(service,))
    a, b, dear = (replace(one, tier=Tier.ON_DEMAND) for one in (A, B, DEAR))
    await desk.hold(a, b, dear)
    assert desk.plan is not None
    assert {p.offer_id: p.nodes for p in desk.plan.placements} == {"a": 1, "b": 2}
    sold_out = [replace(one, tier=Tier.ON_DEMAND) for one in SOLD_OUT]
    await desk.later(2, *sold_out)
    desk.house.provider.fail("reserve", *[Fault.NO_CAPACITY] * 40)
    for unit in desk.rows("b")[0].units:
        desk.house.provider.preempt(str(unit.reference))
    await desk.later(0.2, *sold_out)
    desk.house.provider.faults["reserve"].clear()
    look = await desk.look()
    (move,) = look.moves
    assert move.keeps == (desk.rows("a")[0].reservation_id,)
    assert "dear" in move.to_offers
    await desk.proposals.accept(ALICE, look.reoptimization_id)
    for _ in range(3):
        await desk.proposals.act()
        await desk.later(0.1, *sold_out)
    assert desk.open_nodes() == {"BIG-x1": 3}
    assert [row.state for row in desk.rows("a")] == [ReservationState.ACTIVE]
    desk.house.assert_agreement()
