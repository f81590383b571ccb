"""Why a plan is as it is: the next ways with their money and time, the rule, what more stock is worth."""

from __future__ import annotations

from decimal import Decimal

from broker.domain.planning.plan import BindingRule, Obstacle, Why
from broker.domain.planning.workload import Policy
from tests.placement.market import at, offer, plan, request, serving, training


def _why(found: object, name: str) -> Why:
    placed = found.placements_of(name)[0]  # type: ignore[attr-defined]
    return placed.why  # type: ignore[no-any-return]


def test_the_three_next_ways_come_cheapest_first_with_money_and_time() -> None:
    offers = [offer(name, usd) for name, usd in (("a", "1.00"), ("b", "1.10"), ("c", "1.30"), ("d", "2.00"))]
    offers.append(offer("slow", "0.60", gpu="MID"))
    why = _why(plan(request(training("run", 10)), offers), "run")
    assert [way.offer_id for way in why.next_best] == ["b", "c", "slow"]
    assert [way.more_usd for way in why.next_best] == [Decimal("1.00"), Decimal("3.00"), Decimal("5.00")]
    assert [way.later_hours for way in why.next_best] == [0.0, 0.0, 15.0]
    assert why.rule is BindingRule.PRICE


def test_stock_that_another_holds_is_the_rule_and_has_a_price() -> None:
    offers = [offer("cheap", "1.00", nodes=1), offer("dear", "3.00")]
    due = {"deadline": at(12)}
    found = plan(request(training("large", 10, **due), training("small", 8, **due)), offers)
    assert _why(found, "small").rule is BindingRule.STOCK
    (scarce,) = found.scarcity
    assert (scarce.offer_id, scarce.nodes, scarce.workloads) == ("cheap", 1, ("small",))
    assert scarce.saves_usd == Decimal("16.00")
    assert scarce.text == "another 1 node of cheap would save $16.00: small would move there"


def test_more_stock_saves_what_the_plan_says() -> None:
    due = {"deadline": at(12)}
    asked = request(training("large", 10, **due), training("small", 8, **due))
    dear = offer("dear", "3.00")
    before = plan(asked, [offer("cheap", "1.00", nodes=1), dear])
    after = plan(asked, [offer("cheap", "1.00", nodes=1 + before.scarcity[0].nodes), dear])
    assert before.cost_usd - after.cost_usd == before.scarcity[0].saves_usd


def test_a_service_left_out_for_stock_says_what_a_node_would_save() -> None:
    offers = [offer("only", "1.00", nodes=1)]
    rich = serving("rich", [3.0], unplaced_usd=Decimal(500))
    poor = serving("poor", [3.0], unplaced_usd=Decimal(100))
    found = plan(request(rich, poor, hours=10), offers)
    (scarce,) = found.scarcity
    assert (scarce.nodes, scarce.workloads, scarce.saves_usd) == (1, ("poor",), Decimal("90.00"))


def test_the_deadline_is_the_rule_where_a_later_one_is_cheaper() -> None:
    offers = [offer("slow", "0.10", gpu="TINY"), offer("fast", "2.00")]
    found = plan(request(training("run", 10, deadline=at(20))), offers)
    assert _why(found, "run").rule is BindingRule.DEADLINE


def test_residency_is_the_rule_where_elsewhere_is_cheaper() -> None:
    offers = [offer("home", "2.00", country="DE"), offer("away", "1.00", country="US")]
    why = _why(plan(request(training("run", 10, policy=Policy(countries=("DE",)))), offers), "run")
    assert why.rule is BindingRule.RESIDENCY
    assert why.filtered == ((Obstacle.RESIDENCY, 1),)


def test_what_is_filtered_is_counted_by_gate() -> None:
    offers = [offer("a", "1.00"), offer("none", "0.10", nodes=0), offer("odd", "0.10", gpu="NEVER-SEEN")]
    why = _why(plan(request(training("run", 10)), offers), "run")
    assert dict(why.filtered) == {Obstacle.STOCK: 1, Obstacle.GPU_UNKNOWN: 1}
