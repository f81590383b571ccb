"""A proposal is held to its team's budgets as a plan is."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.account import Scope
from broker.domain.basics.money import ZERO
from broker.domain.basics.window import Window
from broker.domain.holding.cost_of_keeping import held_of
from broker.domain.holding.reservation import Reservation, ReservationState, Unit, UnitState
from broker.domain.market.offer import Offer, Tier
from broker.domain.moving.move_charges import charges_with_moves
from broker.domain.moving.reoptimization import Move, MovingCost, ProposalState, Reoptimization
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.budgets import Budget, BudgetPeriod, Reach
from broker.domain.spend.charging import reservation_charges
from broker.domain.spend.spend import Charge, ChargeBasis
from broker.services.spend.budget_gate import BudgetBooks
from tests.api.house import OFFERS, Home
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import ALICE, a_placement, a_plan, a_record, a_segment, an_offer
from tests.services.conftest import House as Broker

FINANCE = [Scope.PLANS_READ, Scope.SPEND_READ, Scope.SPEND_APPROVE]


async def on_sale(home: Home, *offers: Offer) -> dict[str, Any]:
    """Polls a market of these, and looks again; the newest look."""
    assert isinstance(home.house.clock, FakeClock)
    home.house.clock.advance(minutes=1)
    home.house.provider.offers = offers
    await home.product.offers.refresh()
    (look,) = await home.product.reoptimize.run("a test")
    found: dict[str, Any] = (await home.client().get(f"/v1/reoptimizations/{look.reoptimization_id}")).json()
    return found


async def test_a_proposal_over_a_budget_says_so_and_waits_for_finance(home: Home) -> None:
    team, finance = await home.team("research"), await home.team("research", FINANCE)
    await team.put("/v1/budgets/research/month", json={"limit_usd": "220"})
    plan = await home.plan(team)
    assert not plan["needs_approval"]
    look = await on_sale(home, OFFERS[0])
    assert look["state"] == "proposed"
    words = "team research would exceed its budget of $220.00 per month by $20.00 (2026-11-01 to 2026-11-30)"
    words += ": $205.00 counts already, and this plan adds $35.00 in that time"
    assert words in look["reason"]
    assert "finance has to approve" in look["reason"]
    told = (await team.get(f"/v1/plans/{look['new_plan_id']}")).json()
    assert (told["needs_approval"], told["approval_reason"]) == (True, words)
    path = f"/v1/reoptimizations/{look['reoptimization_id']}/accept"
    refused = await team.post(path)
    assert (refused.status_code, refused.json()["code"]) == (409, "approval-required")
    (asked,) = (await finance.get("/v1/approvals?state=waiting")).json()["items"]
    assert asked["plan_id"] == look["new_plan_id"]
    assert (await finance.post(f"/v1/plans/{look['new_plan_id']}/approve", json={})).status_code == 200
    assert (await team.post(path)).status_code < 300


async def test_a_budget_set_after_the_proposal_is_looked_at_when_it_is_accepted(home: Home) -> None:
    team, finance = await home.team("research"), await home.team("research", FINANCE)
    await home.plan(team)
    look = await on_sale(home, OFFERS[0])
    assert "budget" not in look["reason"]
    await team.put("/v1/budgets/research/quarter", json={"limit_usd": "230"})
    path = f"/v1/reoptimizations/{look['reoptimization_id']}/accept"
    refused = await team.post(path)
    assert refused.json()["code"] == "approval-required"
    assert "would exceed its budget of $230.00 per quarter by $10.00" in refused.json()["detail"]
    assert (await finance.post(f"/v1/plans/{look['new_plan_id']}/approve", json={})).status_code == 200
    assert (await team.post(path)).status_code < 300


async def test_a_saving_in_a_budget_that_is_passed_already_needs_no_word(home: Home) -> None:
    team = await home.team("research")
    await home.plan(team)
    await team.put("/v1/budgets/research/month", json={"limit_usd": "100"})
    look = await on_sale(home, replace(OFFERS[0], price_usd_per_node_hour=Decimal(11)), OFFERS[1])
    assert look["state"] == "proposed"
    assert "budget" not in look["reason"]
    path = f"/v1/reoptimizations/{look['reoptimization_id']}/accept"
    assert (await team.post(path)).status_code < 300


@pytest.mark.parametrize(
    ("usd", "passes_usd"),
    [("205", "35.00"), ("204", "36.00"), ("239.99", "0.01"), ("240", None), ("300", None)],
)
async def test_moves_that_worsen_a_budget_need_a_word_whether_it_is_passed_already_or_not(
    home: Home, usd: str, passes_usd: str | None
) -> None:
    """What is planned costs $205, what is proposed $240."""
    team = await home.team("research")
    assert Decimal((await home.plan(team))["cost_usd"]) == 205
    await team.put("/v1/budgets/research/month", json={"limit_usd": usd})
    look = await on_sale(home, OFFERS[0])
    assert look["state"] == "proposed"
    words = f"would exceed its budget of ${Decimal(usd):.2f} per month by ${passes_usd}"
    assert (words in look["reason"]) is (passes_usd is not None)
    assert ("budget" in look["reason"]) is (passes_usd is not None)


async def test_a_budget_of_another_time_needs_no_word_though_it_is_passed(home: Home) -> None:
    """Two days ago four hours were owed, $40 of $1. Neither the plan nor its moves cost anything then."""
    span = {"from": "2026-11-21T00:00:00Z", "to": "2026-11-22T00:00:00Z"}
    begun = NOON - timedelta(days=2)
    gone = Unit(0, "t", 1, UnitState.GONE, "i-1", begun, gone_at=begun + timedelta(hours=4))
    row = Reservation(
        "rsv-old", "research", ReservationState.RELEASED, an_offer("old", "10"), 1, begun, gone.gone_at,
        (gone,), begun, released_at=gone.gone_at,
    )  # fmt: skip
    async with home.product.store.unit_of_work(EVERY_TEAM) as uow:
        await uow.reservations.add(row)
        await uow.commit()
    team = await home.team("research")
    told = await team.put("/v1/budgets/research/horizon", json={"limit_usd": "1", **span})
    assert told.json()["left_usd"] == "-39.00", told.text
    assert not (await home.plan(team))["needs_approval"]
    look = await on_sale(home, OFFERS[0])
    assert look["state"] == "proposed"
    assert "budget" not in look["reason"]


def a_charge(usd: int, **changes: Any) -> Charge:
    base = Charge(
        Window(NOON, NOON + timedelta(hours=1)), "research", "train", None, "fake", "s", Tier.ON_DEMAND,
        Decimal(usd), ChargeBasis.PROJECTED, plan_id="plan-2",
    )  # fmt: skip
    return replace(base, **changes)


def test_a_plan_counts_instead_of_what_it_takes_the_place_of() -> None:
    """The plan costs $100. Its own charges, and another draft of its workload, go."""
    plan = a_plan(a_placement(an_offer(price="10"), [a_segment(0, 10)], "train"))
    gone = [
        a_charge(1, plan_id="plan-1"),
        a_charge(2, plan_id="plan-1", workload="chat"),
        a_charge(4, plan_id="plan-1", reservation_id="r-1"),
        a_charge(8),
        a_charge(16, team="product"),
    ]
    kept = [a_charge(1000, workload="chat"), a_charge(2000, reservation_id="r-2")]
    budget = Budget("research", BudgetPeriod.MONTH, Decimal(1), (100,), None, "k", NOON)
    books = BudgetBooks((budget,), (*gone, *kept), Reach.at(NOON))
    (found,) = books.effects_of_plan(a_record(plan), plan)
    assert found.after.expected_usd == 3000 + 100


async def left_after_two_hours(old: Offer, cost: MovingCost) -> tuple[list[Charge], list[Charge]]:
    """Charges of a service on ``old`` for ten hours, and once it moves after two to half the price."""
    house = Broker()
    house.sell(old)
    house.store_plan(a_plan(a_placement(old, [a_segment(0, 10)], "chat", WorkloadKind.SERVING)))
    (row,) = await house.reservations.reserve_plan(ALICE, "plan-1")
    house.clock.advance(hours=2)
    now = house.clock.now()
    before = reservation_charges([row], {"chat": WorkloadKind.SERVING}, now)
    new = a_plan(a_placement(an_offer("new", "5"), [a_segment(2, 10)], "chat"), plan_id="plan-2")
    move = Move("chat", ("old",), ("new",), ZERO, "cheaper", cost=cost, leaves=(row.reservation_id,))
    look = Reoptimization("l", row.team, "plan-1", "a test", NOON, ProposalState.PROPOSED, moves=(move,))
    held = held_of(row)
    assert held is not None
    return list(before), list(charges_with_moves(before, look, new, [held], [], now))


def usd(charges: list[Charge]) -> Decimal:
    return sum((charge.usd for charge in charges), ZERO)


async def test_what_is_left_costs_what_has_run_and_the_overlap() -> None:
    before, after = await left_after_two_hours(
        an_offer("old", "10"), MovingCost(overlap_usd=Decimal("1.50"), egress_usd=Decimal(3))
    )
    assert usd(before) == Decimal(100)
    assert usd(after) == Decimal(20) + Decimal("1.50") + Decimal(3) + 8 * Decimal(5)


async def test_a_minimum_term_is_owed_after_the_move_too() -> None:
    before, after = await left_after_two_hours(
        replace(an_offer("old", "10"), tier=Tier.COMMITTED, min_hours=7.0), MovingCost()
    )
    assert usd(before) == Decimal(100)
    assert usd(after) == 7 * Decimal(10) + 8 * Decimal(5)


async def test_a_part_that_is_kept_counts_once() -> None:
    house = Broker()
    old, dear = an_offer("old", "10"), an_offer("dear", "20")
    house.sell(old)
    part = a_placement(old, [a_segment(0, 10)], "batch", WorkloadKind.BATCH)
    house.store_plan(a_plan(part))
    (row,) = await house.reservations.reserve_plan(ALICE, "plan-1")
    house.clock.advance(hours=2)
    now = house.clock.now()
    before = reservation_charges([row], {"batch": WorkloadKind.BATCH}, now)
    rest = a_placement(dear, [a_segment(3, 8)], "batch", WorkloadKind.BATCH)
    move = Move("batch", (), ("dear",), ZERO, "short of nodes", keeps=(row.reservation_id,))
    look = Reoptimization("l", row.team, "plan-1", "a test", NOON, ProposalState.PROPOSED, moves=(move,))
    held = held_of(row)
    assert held is not None
    after = charges_with_moves(before, look, a_plan(part, rest, plan_id="plan-2"), [], [held], now)
    assert sum(charge.usd for charge in after) == Decimal(10 * 10 + 5 * 20)
