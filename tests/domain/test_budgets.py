"""Where a budget stands: its periods over the calendar, the day it runs out, and credits, edge by edge."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from broker.domain.basics.errors import InputError
from broker.domain.basics.money import LARGEST_USD
from broker.domain.basics.webhook import ALL_TEAMS
from broker.domain.basics.window import Window
from broker.domain.market.offer import Tier
from broker.domain.spend.budget_effects import BudgetEffect
from broker.domain.spend.budgets import (
    MOST_PERCENT,
    MOST_THRESHOLDS,
    Budget,
    BudgetAlert,
    BudgetPeriod,
    Reach,
    budget_status,
    furthest_end,
    require_valid,
)
from broker.domain.spend.spend import Charge, ChargeBasis
from tests.fakes.clock import NOON

INSTANT = timedelta(microseconds=1)


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]  # year, month, day, then a time


def budget(period: BudgetPeriod, usd: str = "100.00", team: str = "research") -> Budget:
    return Budget(team, period, Decimal(usd), (50, 100), None, "k", NOON)


@pytest.mark.parametrize("year", [2026, 2028])  # 2028 has a leap day
@pytest.mark.parametrize("month", range(1, 13))
def test_every_instant_of_a_year_lies_in_its_month_and_quarter(year: int, month: int) -> None:
    first = (1, 1, 1, 4, 4, 4, 7, 7, 7, 10, 10, 10)[month - 1]
    quarter = Window(at(year, first, 1), at(year + first // 10, (first + 3) % 12, 1))
    following = at(year + month // 12, month % 12 + 1, 1)
    whole = Window(at(year, month, 1), following)
    for now in (whole.start, whole.start + timedelta(days=27, hours=13), whole.end - INSTANT):
        assert budget(BudgetPeriod.MONTH).window_at(now) == whole
        assert budget(BudgetPeriod.QUARTER).window_at(now) == quarter


def test_a_leap_day_belongs_to_february() -> None:
    (february,) = {budget(BudgetPeriod.MONTH).window_at(at(2028, 2, day)) for day in (1, 28, 29)}
    assert february.duration == timedelta(days=29)
    assert budget(BudgetPeriod.QUARTER).window_at(at(2028, 2, 29)).duration == timedelta(days=31 + 29 + 31)


def charge(
    usd: str, start: datetime, *, owed: bool = True, team: str = "research", reserved: bool = False
) -> Charge:
    return Charge(
        window=Window(start, start + timedelta(hours=1)),
        team=team,
        workload="train",
        kind=None,
        provider="fake",
        sku="s",
        tier=Tier.ON_DEMAND,
        usd=Decimal(usd),
        basis=ChargeBasis.ACTUAL if owed else ChargeBasis.PROJECTED,
        reservation_id="r-1" if owed or reserved else None,
    )


@pytest.mark.parametrize(
    ("by_day", "reached", "runs_out"),
    [
        (("99.99",), None, None),
        (("100.00",), 20, None),
        (("100.01",), 20, 20),
        (("60.00", "40.00"), 21, None),
        (("60.00", "40.01"), 21, 21),
        (("60.00", "39.99", "0.01", "0.01"), 22, 23),
        (("100.01", "-0.01"), 20, None),
        (("100.01", "-0.01", "0.01"), 20, 22),
        (("100.01", "-0.02"), None, None),
        (("100.01", "-0.02", "0.01"), 22, None),
    ],
)
def test_the_day_on_which_the_limit_is_reached_for_good_and_passed_for_good(
    by_day: tuple[str, ...], reached: int | None, runs_out: int | None
) -> None:
    """At the limit exactly it is reached and does not run out; a credit that brings the sum back counts."""
    charges = [charge(usd, at(2026, 11, 20 + day, 12)) for day, usd in enumerate(by_day)]
    found = budget_status(budget(BudgetPeriod.MONTH), charges, at(2026, 11, 26))
    whole = next(one for one in found.thresholds if one.percent == 100)
    assert whole.reached_on == whole.expected_on == (None if reached is None else at(2026, 11, reached))
    assert found.runs_out_on == (None if runs_out is None else at(2026, 11, runs_out))
    assert found.expected_usd == found.owed_usd == sum(map(Decimal, by_day))


def test_what_is_expected_reaches_a_threshold_before_it_is_owed() -> None:
    charges = [
        charge("50.00", at(2026, 11, 20)),
        charge("30.00", at(2026, 11, 24), owed=False, reserved=True),
        charge("20.01", at(2026, 11, 25), owed=False),
    ]
    found = budget_status(budget(BudgetPeriod.MONTH), charges, NOON)
    half, whole = found.thresholds
    assert (half.reached_on, half.expected_on) == (at(2026, 11, 20), at(2026, 11, 20))
    assert (whole.reached_on, whole.expected_on) == (None, at(2026, 11, 25))
    told = (found.owed_usd, found.reserved_usd, found.planned_usd, found.left_usd)
    assert told == tuple(map(Decimal, ("50.00", "30.00", "20.01", "-0.01")))


@pytest.mark.parametrize(
    ("team", "usd"), [("research", "1"), ("product", "2"), (ALL_TEAMS, "3"), ("no", "0")]
)
def test_a_budget_counts_its_own_team_and_period(team: str, usd: str) -> None:
    edges = Window(at(2026, 11, 1), at(2026, 12, 1))
    charges = [
        charge("1", edges.start),
        charge("2", edges.end - INSTANT, team="product"),
        *(
            charge("100", out, team=who)
            for out in (edges.start - INSTANT, edges.end)
            for who in ("research", "product")
        ),
    ]
    assert budget_status(budget(BudgetPeriod.MONTH, team=team), charges, NOON).owed_usd == Decimal(usd)


SPAN = Window(NOON, NOON + timedelta(days=40))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"limit_usd": Decimal("0.01")}, None),
        ({"limit_usd": LARGEST_USD}, None),
        ({"limit_usd": Decimal(0)}, "/limit_usd"),
        ({"limit_usd": Decimal(-1)}, "/limit_usd"),
        ({"limit_usd": Decimal("0.015")}, "/limit_usd"),
        ({"limit_usd": LARGEST_USD + Decimal("0.01")}, "/limit_usd"),
        ({"thresholds": (1,)}, None),
        ({"thresholds": (1, MOST_PERCENT)}, None),
        ({"thresholds": tuple(range(1, MOST_THRESHOLDS + 1))}, None),
        ({"thresholds": ()}, "/thresholds"),
        ({"thresholds": (0, 50)}, "/thresholds"),
        ({"thresholds": (50, MOST_PERCENT + 1)}, "/thresholds"),
        ({"thresholds": (50, 50)}, "/thresholds"),
        ({"thresholds": (80, 50)}, "/thresholds"),
        ({"thresholds": tuple(range(1, MOST_THRESHOLDS + 2))}, "/thresholds"),
        ({"period": BudgetPeriod.QUARTER}, None),
        ({"period": BudgetPeriod.HORIZON, "horizon": SPAN}, None),
        ({"period": BudgetPeriod.HORIZON}, "/from"),
        ({"horizon": SPAN}, "/from"),
    ],
)
def test_a_budget_is_refused_by_the_field_that_is_wrong(
    changes: dict[str, object], field: str | None
) -> None:
    made = replace(budget(BudgetPeriod.MONTH), **changes)  # type: ignore[arg-type]
    if field is None:
        require_valid(made)
        return
    with pytest.raises(InputError) as refused:
        require_valid(made)
    (problem,) = refused.value.problems
    assert problem.pointer == field
    if field == "/from":
        assert problem.found == ("2026-11-23T12:00:00Z" if made.horizon else "nothing")


def test_the_last_of_all_periods_ends_last() -> None:
    now = at(2026, 11, 26, 12)
    month, quarter = budget(BudgetPeriod.MONTH), budget(BudgetPeriod.QUARTER)
    long = replace(month, period=BudgetPeriod.HORIZON, horizon=Window(now, at(2027, 2, 1)))
    reach = Reach.at(now)
    assert furthest_end([], reach) is None
    assert furthest_end([month], reach) == at(2027, 1, 1), "the whole next month"
    assert furthest_end([quarter, month], reach) == furthest_end([month, quarter], reach) == at(2027, 4, 1)
    assert furthest_end([month, long], reach) == at(2027, 2, 1)
    assert furthest_end([month], Reach.at(now, last=[at(2027, 3, 5)])) == at(2027, 4, 1)
    assert furthest_end([month], Reach.at(now, [at(2027, 3, 5)])) == at(2027, 5, 1), "it starts in March"


def test_a_team_s_budget_looks_as_far_as_its_own_money_goes_and_that_of_all_teams_as_far_as_anybody_s() -> (
    None
):
    now = at(2026, 11, 26, 12)
    own, everybody = budget(BudgetPeriod.MONTH), replace(budget(BudgetPeriod.MONTH), team=ALL_TEAMS)
    reach = Reach.at(now, team=own.team).lasting([("other", at(2027, 5, 5))])
    assert reach.counted_until(own) == at(2027, 1, 1)
    assert reach.counted_until(everybody) == at(2027, 6, 1)
    opened = reach.opening([("other", at(2027, 6, 5)), (own.team, at(2026, 12, 5))])
    assert opened.counted_until(own) == at(2027, 2, 1)
    assert opened.counted_until(everybody) == at(2027, 8, 1)


@pytest.mark.parametrize(
    ("basis", "word"), [(ChargeBasis.ACTUAL, "spent"), (ChargeBasis.PROJECTED, "expected")]
)
def test_an_alert_says_whether_it_is_owed_or_expected(basis: ChargeBasis, word: str) -> None:
    month = budget(BudgetPeriod.MONTH)
    told = str(BudgetAlert(month, month.window_at(at(2026, 11, 26)), 50, basis, Decimal("51.5")))
    assert told == f"50 % of $100.00 for 2026-11-01 to 2026-12-01: $51.50 {word}"


@pytest.mark.parametrize(
    ("adds", "told"),
    [
        ("30.00", "would have $0.00 left of its budget of $100.00 per month"),
        ("30.01", "would exceed its budget of $100.00 per month by $0.01"),
        ("29.50", "would have $0.50 left of its budget of $100.00 per month"),
        ("-20.00", "would have $50.00 left of its budget of $100.00 per month"),
    ],
)
def test_what_a_plan_does_to_a_budget_is_told_as_one_sum(adds: str, told: str) -> None:
    """$70 count already; the last day of November is the last of the period."""
    now = at(2026, 11, 20)
    counted = [charge("70.00", now)]
    before, after = (
        budget_status(budget(BudgetPeriod.MONTH), charges, now)
        for charges in (counted, [*counted, charge(adds, now, owed=False)])
    )
    effect = BudgetEffect(before, after)
    assert (effect.counted_usd, effect.added_usd) == (Decimal(70), Decimal(adds))
    assert effect.left_usd == 100 - Decimal(70) - effect.added_usd
    words = f"team research {told} (2026-11-01 to 2026-11-30): $70.00 counts already, and this plan adds"
    assert str(effect).startswith(words)
