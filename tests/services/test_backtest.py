"""Backtests with the real planner: what falls in price is moved to, and nobody undercuts the bound."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from api.planning.planning_call import plan_call, replan_call
from api.schemas.market.market import read_market
from api.schemas.workloads.workloads import read_workloads
from broker.domain.market.market import PricePoint
from broker.domain.market.market_history import MarketHistory
from broker.domain.planning.workload import PlanRequest, Serving
from broker.domain.workloads.bursts import Burst
from broker.ports.planning import PlanOptions
from broker.services.moving.all_knowing import all_knowing
from broker.services.moving.backtest import BacktestRules, LookPolicy, Outcome, replay
from tests.cli.running import market_document, offer

START = datetime(2026, 11, 23, tzinfo=UTC)
HOUR = timedelta(hours=1)
OPTIONS = PlanOptions(2.0, 0.01, 1, baselines=False)
CALLS = (plan_call, replan_call)
WORKLOADS = """
team: a
horizon: {start: now, days: 4}
workloads:
  - name: chat
    kind: serving
    model: Llama-3.1-8B
    traffic: {shape: flat, peak_requests_per_s: 4, input_tokens: 1200, output_tokens: 250}
    slo: {ttft_p95_ms: 2000, itl_p95_ms: 100}
  - name: finetune
    kind: training
    model: Llama-3.1-8B
    tokens: 1.0e9
    sequence_length: 8192
    global_batch_tokens: 1.0e6
    precision: bf16
    gpus: {max: 8}
    deadline: +3d
    interruptible: true
"""
Said = tuple[float, str, str, bool]


def request() -> PlanRequest:
    return read_workloads(WORKLOADS, source="w", base=None, now=START)


def history(*said: Said) -> MarketHistory:
    """The small market at ``START``; then at an hour an offer at another price, or not on sale."""
    document = market_document()
    document["offers"].append(offer("spot", tier="spot", price_usd_per_node_hour="9.00"))
    market = read_market(json.dumps(document), "m")
    points = [
        PricePoint(o.offer_id, START, o.price_usd_per_node_hour, o.stock.nodes, True) for o in market.offers
    ]
    points += [
        PricePoint(key, START + hour * HOUR, Decimal(usd), 8 if on_sale else 0, on_sale)
        for hour, key, usd, on_sale in said
    ]
    return MarketHistory({o.offer_id: o for o in market.offers}, tuple(points))


def run(policy: LookPolicy, *said: Said) -> Outcome:
    rules = BacktestRules(OPTIONS, 1.0)
    return replay(request(), history(*said), policy, CALLS, rules)


FALLS: tuple[Said, ...] = (
    (6, "card-b", "2.05", True),
    (12, "card-b", "0.70", True),
    (30, "card-b", "0.69", True),
    (50, "card-b", "0.70", True),
)


def test_policies_differ_by_what_they_see_and_none_undercuts_the_bound() -> None:
    outcomes = {policy: run(policy, *FALLS) for policy in LookPolicy}
    known = all_knowing(request(), history(*FALLS), plan_call, OPTIONS)

    never, hourly = outcomes[LookPolicy.NEVER], outcomes[LookPolicy.HOURLY]
    assert (never.looks, never.moves, never.switching_usd) == (0, 0, Decimal(0))
    assert hourly.moves == 1
    assert hourly.looks == 4
    assert outcomes[LookPolicy.DAILY].looks == 1
    assert hourly.total_usd <= outcomes[LookPolicy.DAILY].total_usd <= never.total_usd
    assert hourly.total_usd < never.total_usd
    assert hourly.switching_usd > 0
    assert all(known.bound_usd <= outcome.total_usd for outcome in outcomes.values())
    assert known.bound_usd <= known.cost_usd


def test_the_bound_holds_for_a_service_with_bursts_that_ends() -> None:
    service, finetune = request().workloads
    assert isinstance(service, Serving)
    traffic = replace(service.traffic, bursts=(Burst("09:00", 90, 9.0),), time_zone="Europe/Berlin")
    asked = replace(
        request(), workloads=(replace(service, traffic=traffic, ends=START + 60 * HOUR), finetune)
    )
    never = replay(asked, history(), LookPolicy.NEVER, CALLS, BacktestRules(OPTIONS, 1.0))
    known = all_knowing(asked, history(), plan_call, OPTIONS)
    assert known.plans == 4
    assert 0 < known.bound_usd <= never.total_usd


def test_prices_that_stay_change_nothing() -> None:
    plain, looked = run(LookPolicy.NEVER, (5, "card-b", "2.10", True)), run(LookPolicy.HOURLY)

    assert (looked.looks, looked.moves) == (0, 0)
    assert looked.total_usd == plain.total_usd > 0


@pytest.mark.parametrize("policy", [LookPolicy.NEVER, LookPolicy.ON_CHANGE])
def test_what_is_taken_away_is_replaced_under_every_policy(policy: LookPolicy) -> None:
    kept = run(policy)
    taken = run(policy, (3, "spot", "9.00", False))

    assert (kept.forced, taken.forced) == (0, 1)
    assert taken.total_usd > kept.total_usd
    assert taken.unplaced == ()
