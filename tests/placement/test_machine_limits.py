"""Memory bandwidth and fabric as what binds: found by asking the core for another machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.catalogue import load_gpus
from broker.domain.market.offer import Stock
from broker.domain.planning.plan import BindingRule, Why
from broker.domain.planning.workload import Measurement, Serving
from broker.domain.workloads.traffic import Traffic, TrafficShape
from tests.placement import market
from tests.placement.market import at, plan, request, training
from tests.placement.test_physics_moves_the_choice import CHAT, ONE_A100, placed, planned


def asked(tokens_in: int, tokens_out: int) -> Serving:
    return replace(CHAT, traffic=Traffic(tokens_in, tokens_out, TrafficShape.FLAT, 40.0))


@pytest.mark.parametrize(
    ("tokens", "rule"), [((50, 1500), BindingRule.BANDWIDTH), ((6000, 10), BindingRule.PRICE)]
)
def test_long_answers_are_bound_by_bandwidth_and_long_questions_are_not(
    tokens: tuple[int, int], rule: BindingRule
) -> None:
    many = replace(ONE_A100, stock=Stock(nodes=100))
    assert placed(planned([asked(*tokens)], [many]), "chat").why.rule is rule


def test_bandwidth_binds_beside_another_service() -> None:
    """What others hold is no reason to look at other offers, or at other rates."""
    many = replace(ONE_A100, stock=Stock(nodes=100))
    found = planned([asked(50, 1500), replace(asked(50, 1500), name="other")], [many])
    assert {one.workload: one.why.rule for one in found.placements} == {
        "chat": BindingRule.BANDWIDTH,
        "other": BindingRule.BANDWIDTH,
    }


def test_bandwidth_that_decides_nothing_does_not_bind() -> None:
    """One node is enough with and without more of it."""
    small = replace(asked(50, 1500), traffic=Traffic(50, 1500, TrafficShape.FLAT, 0.1))
    assert placed(planned([small], [ONE_A100]), "chat").why.rule is BindingRule.PRICE


def test_with_twice_the_bandwidth_the_plan_is_indeed_cheaper() -> None:
    service, gpus = asked(50, 1500), dict(load_gpus())
    gpus["A100-SXM-80GB"] = replace(gpus["A100-SXM-80GB"], hbm_gbyte_s=2 * 2039)
    now, then = planned([service], [ONE_A100]), planned([service], [ONE_A100], gpus)
    assert then.cost_usd < now.cost_usd


def test_what_was_measured_says_nothing_of_faster_memory() -> None:
    measured = replace(asked(50, 1500), measured=(Measurement("A100-SXM-80GB", 1, requests_per_s=3.0),))
    assert placed(planned([measured], [ONE_A100]), "chat").why.rule is BindingRule.PRICE


def why_of_run(joined_usd: str) -> Why:
    """A model that needs two of these nodes."""
    small = replace(market.offer("loose", "0.10"), sku=replace(market.sku(), gpu_memory_gb=10.0))
    joined = market.offer("joined", joined_usd, joined=4)
    joined = replace(joined, sku=replace(joined.sku, gpu_memory_gb=10.0))
    found = plan(request(training(deadline=at(40))), [small, joined])
    (only,) = found.placements
    assert (only.offer_id, only.nodes >= 2) == ("joined", True)
    return only.why


def test_a_run_that_pays_for_a_fabric_is_bound_by_it() -> None:
    assert why_of_run("1.00").rule is BindingRule.FABRIC


def test_a_fabric_that_costs_nothing_more_does_not_bind() -> None:
    assert why_of_run("0.10").rule is BindingRule.PRICE
