"""Intervals of spend: ordered, repeatable, certain where nothing may move, and wider the more may."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.basics.estimate import Estimate
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.charging import plan_charges
from broker.domain.spend.intervals import (
    IntervalRules,
    PriceRule,
    RiskLine,
    Simulated,
    duration_range,
    risk_lines,
)
from optimizer.spend_interval import MonteCarlo, simulate_days
from tests.depth import examples
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer, slot_terms

FEW = IntervalRules(paths=64)
FLAT = (100.0,) * 10


def a_line(**changes: object) -> RiskLine:
    whole: dict[str, object] = {
        "job": "plan-1/train",
        "offer_id": "o-1",
        "first_day": 2,
        "usd_by_day": FLAT,
        "price": PriceRule.FIXED,
        "duration": None,
        "follows_traffic": False,
    }
    return RiskLine(**{**whole, **changes})  # type: ignore[arg-type]


def run(line: RiskLine, rules: IntervalRules = FEW, days: int = 60, seed: int = 1) -> Simulated:
    futures = {"o-1": [[1.5**day for day in range(days)], [1.0] * days]}
    return MonteCarlo().simulate([line], futures, [day // 30 for day in range(days)], rules, seed)


lines = st.builds(
    a_line,
    job=st.text(max_size=5),
    first_day=st.integers(0, 70),
    usd_by_day=st.lists(st.floats(0, 1e6), min_size=1, max_size=40).map(tuple),
    price=st.sampled_from(PriceRule),
    duration=st.none() | st.tuples(st.floats(0.3, 1), st.floats(1, 3)),
    follows_traffic=st.booleans(),
    done_usd=st.floats(0, 1e6),
)


@settings(max_examples=examples(20))
@given(lines, st.integers(0, 2**31))
def test_quantiles_are_in_order_and_repeatable(line: RiskLine, seed: int) -> None:
    found = run(line, seed=seed)
    assert found == run(line, seed=seed)
    for one in (found.total, *found.by_period, *found.running):
        assert 0 <= one.p10_usd <= one.p50_usd <= one.p90_usd
    assert found.running[-1] == found.total


def test_what_cannot_move_is_certain() -> None:
    found = run(a_line())
    assert found.total.p10_usd == found.total.p90_usd == 1000
    assert [one.p50_usd for one in found.by_period] == [1000, 0]


def test_a_price_is_that_of_the_start_or_of_each_day() -> None:
    at_start = simulate_days([a_line(price=PriceRule.AT_START)], {"o-1": [[1.0, 1.0, 3.0, 9.0]]}, 12, FEW, 1)
    assert at_start.sum(axis=1).tolist() == pytest.approx([3000.0] * FEW.paths)
    daily = simulate_days([a_line(price=PriceRule.FLOATING)], {"o-1": [[1.0, 1.0, 3.0, 9.0]]}, 12, FEW, 1)
    assert daily[0].tolist() == pytest.approx([0, 0, 300] + [900] * 9)
    unknown = simulate_days([a_line(price=PriceRule.FLOATING)], {}, 12, FEW, 1)
    assert unknown.sum(axis=1).tolist() == pytest.approx([1000.0] * FEW.paths)


def test_a_run_takes_as_long_as_the_core_says_and_pays_for_it() -> None:
    many = IntervalRules(paths=4000)
    found = run(a_line(duration=(0.8, 1.25)), many).total
    assert float(found.p10_usd) == pytest.approx(800, rel=0.02)
    assert float(found.p90_usd) == pytest.approx(1250, rel=0.02)
    begun = run(a_line(duration=(0.8, 1.25), done_usd=1000.0), many).total
    assert float(begun.p90_usd) == pytest.approx(2 * 1250 - 1000, rel=0.03), "all of a run is longer"


def test_traffic_grows_by_the_setting() -> None:
    line = a_line(follows_traffic=True, first_day=0, usd_by_day=(10.0,) * 60)
    sure = run(line, IntervalRules(traffic_growth=0.2, traffic_spread=0.0, paths=8)).total
    assert sure.p10_usd == sure.p90_usd == sure.p50_usd > 600
    wide = run(line, IntervalRules(traffic_spread=0.5, paths=400)).total
    assert wide.p10_usd < 600 < wide.p90_usd


def test_lines_know_what_may_move() -> None:
    hours = Estimate({"hours": 10.0}, {"hours": 8.0}, {"hours": 12.0})
    run_, fleet = an_offer("run"), an_offer("fleet")
    slot = an_offer("slot", window=slot_terms(NOON, 48))
    plan = a_plan(
        a_placement(run_, [a_segment(24, 34)]),
        a_placement(fleet, [a_segment(0, 72)], "chat", WorkloadKind.SERVING),
        a_placement(slot, [a_segment(0, 10)], "tune"),
    )
    object.__setattr__(plan.placements[0], "estimate", hours)
    chat, train, tune = risk_lines(plan_charges(plan, "research", "plan-1"), {"plan-1": plan}, NOON)
    assert (train.price, train.first_day, train.duration) == (PriceRule.AT_START, 1, (0.8, 1.2))
    assert (chat.price, chat.follows_traffic, len(chat.usd_by_day)) == (PriceRule.FLOATING, True, 4)
    assert (tune.price, tune.duration) == (PriceRule.FIXED, None)
    rates = {"requests_per_s_per_replica": 4.0}
    batch = Estimate(rates, {"requests_per_s_per_replica": 2.0}, {"requests_per_s_per_replica": 5.0})
    assert duration_range(batch) == (0.8, 2.0)
    assert duration_range(Estimate({}, {}, {})) is None


def test_the_seed_changes_the_draw() -> None:
    line = a_line(duration=(0.5, 2.0))
    assert run(line, seed=1) != run(line, seed=2)
    assert run(line).total.p50_usd.as_tuple().exponent == Decimal("0.01").as_tuple().exponent
