"""Services that wait for a run: a later start is never a saving, and what it costs is told and checked."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import Offer, Tier, WindowKind
from broker.domain.planning.plan import Plan
from broker.domain.planning.workload import PlanRequest, Policy
from tests.placement.market import at, offer, plan, planner, request, serving, training, window

HOURS = 48
NODE = offer("node", "1.00", nodes=8)
demands = st.lists(st.sampled_from([0.5, 3.0, 6.0, 9.0]), min_size=24, max_size=24)


def block(name: str, start: float, usd: str) -> Offer:
    """A window of ten hours, bought whole."""
    terms = window(WindowKind.LISTED, (start, start + 10, 1), durations_hours=(10.0,))
    made = offer(name, f"{Decimal(usd) / 10}", tier=Tier.WINDOW, window=terms)
    return replace(made, upfront_usd=Decimal(usd))


def asked(hourly: list[float] | None = None, **changes: Any) -> PlanRequest:
    """A run of ten hours in a window, and a service after it."""
    run = training("run", 10, policy=Policy(tiers=(Tier.WINDOW,)))
    return request(run, serving("chat", hourly or [3.0], starts_after="run", **changes), hours=HOURS)


def end_of(found: Plan) -> float:
    """Hours from the horizon's start to the end of the run."""
    (wait,) = found.waits
    return (wait.start - at(0)) / timedelta(hours=1)


def test_of_two_windows_at_one_price_the_earlier_is_taken() -> None:
    found = plan(asked(), [NODE, block("late", 24, "20.00"), block("early", 0, "20.00")])
    assert end_of(found) == pytest.approx(10)
    assert found.delay_usd == 0
    assert found.gap == 0


def test_a_window_that_costs_a_little_more_and_ends_earlier_is_equal() -> None:
    windows = [block("late", 24, "20.00"), block("early", 0, "20.04")]
    document = asked(delay_usd_per_hour=Decimal("1.00"))
    assert end_of(plan(document, [NODE, *windows], gap=0.01)) == pytest.approx(10)
    dearer = [block("late", 24, "20.00"), block("early", 0, "20.90")]
    assert end_of(plan(document, [NODE, *dearer], gap=0.01)) == pytest.approx(34)


def test_an_hour_of_delay_costs_twice_the_average_of_the_plan() -> None:
    found = plan(asked(), [NODE, block("late", 24, "20.00"), block("early", 0, "80.00")])
    (wait,) = found.waits
    cost = sum(p.cost_usd for p in found.placements if p.workload == "chat")
    assert end_of(found) == pytest.approx(34)
    assert wait.earliest_start == at(10)
    assert wait.usd_per_hour == pytest.approx(2 * cost / 14)
    assert found.delay_usd == wait.delay_usd == pytest.approx(2 * cost / 14 * 24, abs=Decimal("0.01"))
    assert found.objective_usd == found.cost_usd + found.delay_usd
    assert found.bound_usd is not None
    assert found.bound_usd <= found.objective_usd


def test_a_wait_without_a_price_pays_only_where_the_run_itself_saves_more_than_the_service_costs() -> None:
    """24 hours of delay save 24.00 of nodes and count for 48.00 or more."""
    windows = [block("late", 24, "20.00"), block("early", 0, "30.00")]
    found = plan(asked(), [NODE, *windows])
    assert end_of(found) == pytest.approx(10)
    assert found.delay_usd == 0
    assert found.gap == 0


@pytest.mark.parametrize(("usd_per_hour", "ends"), [("2.50", 10), ("1.50", 34)])
def test_a_price_of_delay_decides_what_an_earlier_run_is_worth(usd_per_hour: str, ends: float) -> None:
    """24 hours of delay save 24.00 of nodes and cost 60.00 or 36.00; the earlier window costs 20.00 more."""
    windows = [block("late", 24, "20.00"), block("early", 0, "40.00")]
    found = plan(asked(delay_usd_per_hour=Decimal(usd_per_hour)), [NODE, *windows])
    assert end_of(found) == pytest.approx(ends)
    assert found.delay_usd == Decimal(usd_per_hour) * Decimal(round(ends - 10))
    assert found.gap == 0


@settings(derandomize=True, deadline=None, max_examples=12)
@given(demands, st.sampled_from([None, Decimal("0.10"), Decimal("4.00")]), st.integers(1, 30))
def test_an_earlier_window_at_the_same_price_never_delays(
    hourly: list[float], usd_per_hour: Decimal | None, start: int
) -> None:
    document = asked(hourly, delay_usd_per_hour=usd_per_hour)
    later = block("late", start + 1, "20.00")
    without = plan(document, [NODE, later], time_limit_s=5.0)
    found = plan(document, [NODE, later, block("early", start, "20.00")], time_limit_s=5.0)
    assert end_of(found) <= end_of(without) - 0.9


def _damaged(found: Plan, **changes: Any) -> Plan:
    (wait,) = found.waits
    return replace(found, waits=(replace(wait, **changes),))


def test_the_checker_rejects_a_wait_that_is_not_so() -> None:
    offers = [NODE, block("late", 24, "20.00"), block("early", 0, "80.00")]
    document = asked()
    found = plan(document, offers)
    check = planner().check
    assert check(found, document, offers) == ()
    (wait,) = found.waits
    cheaper = wait.delay_usd - Decimal(1)
    wrong = {
        "delay_usd is": replace(found, delay_usd=cheaper),
        "expected": replace(_damaged(found, delay_usd=cheaper), delay_usd=cheaper),
        "usd_per_hour": _damaged(found, usd_per_hour=wait.usd_per_hour / 2),
        "its run ends": _damaged(found, start=wait.start - timedelta(hours=1)),
        "is outside the possible starts": _damaged(found, earliest_start=wait.start + timedelta(hours=1)),
        "waits for 'other'": _damaged(found, after="other"),
        "does not state": replace(found, waits=(), delay_usd=Decimal(0)),
        "told twice": replace(found, waits=(wait, wait), delay_usd=2 * wait.delay_usd),
        "is no placed service": _damaged(found, workload="run"),
        "lies above": replace(found, bound_usd=found.objective_usd + 1),
        "gap is": replace(found, gap=(found.gap or 0.0) + 0.01),
    }
    for words, plan_ in wrong.items():
        assert any(words in sentence for sentence in check(plan_, document, offers)), words
