"""Tables, meters and curves say what the figures are."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from defusedxml import ElementTree
from hypothesis import given
from hypothesis import strategies as st

from api.pages.finance.budget_view import budget_rows, pace_of, running_charts, running_days
from api.pages.finance.spend_groups import group_rows
from api.pages.finance.spend_view import is_wide
from api.pages.market.market_view import breakers
from api.pages.parts.charts import Level, Overlay, Series, Step, scale_over, short_usd, stacked_bars, steps
from api.pages.parts.colours import Look, looks_of
from api.pages.parts.curves import Band, Curve, Drawing, Limit, curves
from api.pages.parts.table_links import Address, Paging, page_at, wished_sorting
from api.pages.parts.words import hours, instant, moment, offer_words, seller, sellers_named, signed_usd
from api.pages.plans.plan_view import committed_words
from api.plan_words import state_words
from api.promise_words import (
    accepted_words,
    at_start_words,
    chance_words,
    hold_now_words,
    order_promise_words,
)
from api.reserved_fleets import fleets, most_nodes, size_words, steps_words
from broker.domain.basics.window import Window, Wish
from broker.domain.holding.reservation import Reservation, ReservationState
from broker.domain.market.launch_statistics import LaunchStatistics, StatisticsLevel
from broker.domain.market.offer import Stock, StockLevel, Tier, WindowBilling
from broker.domain.market.polling import BreakerState, Polling
from broker.domain.planning.window_use import use_of
from broker.domain.planning.workload import WorkloadKind
from broker.domain.spend.budgets import Budget, BudgetPeriod, Reach, budget_outlook, budget_status
from broker.domain.spend.intervals import Quantiles
from broker.domain.spend.order_quote import quote_of_plan
from broker.domain.spend.release_estimate import ReleaseEstimate
from broker.domain.spend.spend import Charge, ChargeBasis, CostView, Interval
from broker.services.spend.settled_spend import SumKey
from tests.fakes.clock import NOON
from tests.fakes.examples import a_placement, a_plan, a_segment, an_offer, slot_terms
from tests.pages.test_views import charges, sum_by_key

EVIL = '<script>alert("x")</script>&'
usd = st.floats(-1e7, 1e7)
HOUR = timedelta(hours=1)


@given(st.integers(0, 500), st.integers(-5, 40), st.integers(1, 60))
def test_pages_hold_every_item_once(count: int, page: int, size: int) -> None:
    items, address = range(count), Address("/x", {"a": "b", "page": ""})

    def paged(number: int) -> tuple[range, Paging]:
        first, paging = page_at(count, number, size, address)
        return items[first : first + size], paging

    shown, paging = paged(page)
    assert 1 <= paging.page <= paging.pages
    assert len(shown) <= size
    whole = [one for number in range(1, paging.pages + 1) for one in paged(number)[0]]
    assert whole == list(items)
    assert (paging.earlier_url is None) == (paging.page == 1)
    assert (paging.later_url is None) == (paging.page == paging.pages)


def test_a_heading_turns_the_order_round() -> None:
    address = Address("/market", {"gpu": "L4", "sort": "price", "page": "3"})
    up = wished_sorting("price", ("price", "name"), address, "offers")
    assert (up.by, up.direction, up.url_of("price")) == ("price", "ascending", "/market?gpu=L4&sort=-price")
    down = wished_sorting("-price", ("price", "name"), address, "offers")
    assert (down.direction, down.word, down.url_of("price")) == (
        "descending",
        "-price",
        "/market?gpu=L4&sort=price",
    )
    assert wished_sorting("<evil>", ("price", "name"), address, "offers").by == "price"


def by_day(made: list[Charge]) -> dict[SumKey, Decimal]:
    return sum_by_key(made, Interval.DAY, "team", CostView.AMORTIZED)


@given(charges, st.sampled_from(["total", "-total", "name", "-spent", "reserved", "fixed", "planned"]))
def test_groups_keep_all_money(made: list[Charge], sort: str) -> None:
    sorting = wished_sorting(
        sort, ("total", "name", "spent", "reserved", "fixed", "planned"), Address("/", {}), "x"
    )
    rows = group_rows(by_day(made), "team", sorting)
    assert sum((row.total_usd for row in rows), Decimal(0)) == sum((c.usd for c in made), Decimal(0))


@given(charges, st.integers(1, 10**9))
def test_budgets_add_up_to_what_is_expected(made: list[Charge], cents: int) -> None:
    budget = Budget("*", BudgetPeriod.MONTH, Decimal(cents) / 100, (50, 100), None, "k", NOON)
    found = budget_status(budget, made, NOON)
    (row,) = budget_rows([found])
    assert row.who == "all teams"
    drawn = sum(part.length for part in row.parts)
    assert drawn == pytest.approx(min(100.0, 100 * found.expected_share), abs=1e-6)
    assert (row.tone == "bad") == (found.left_usd < 0)
    inside = [charge for charge in made if found.window.contains(charge.window.start)]
    days = running_days(by_day(inside), found.window)
    assert days[-1].expected_usd == found.expected_usd
    assert [d.expected_usd for d in days] == sorted(d.expected_usd for d in days)
    ElementTree.fromstring(str(running_charts(days, found, NOON).wide))
    for interval, periods in ((Interval.DAY, 30.0), (Interval.WEEK, 30 / 7), (Interval.MONTH, 1.0)):
        pace = pace_of([row], "*", interval)
        assert pace is not None
        assert float(pace.usd) * periods == pytest.approx(float(budget.limit_usd))
    assert pace_of([row], "research", Interval.DAY) is None


@given(st.lists(usd, min_size=1, max_size=20), usd, st.booleans())
def test_curves_stay_inside_their_plot(values: list[float], limit: float, stepped: bool) -> None:
    points = tuple((NOON + timedelta(days=i), value) for i, value in enumerate(values))
    band = tuple((at, value - 1, value + 1) for at, value in points)
    drawing = Drawing(
        NOON, NOON + timedelta(days=21), (Curve(EVIL, points, stepped=stepped),),
        (Band(EVIL, band, stepped),), (Limit(EVIL, limit),), now=NOON + timedelta(days=3),
    )  # fmt: skip
    svg = str(curves(drawing, EVIL, 640, 240))
    assert "<script>" not in svg
    root = ElementTree.fromstring(svg)
    for line in root.iter():
        for pair in (line.get("points") or "").split():
            x, y = map(float, pair.split(","))
            assert 57.9 <= x <= 626.1
            assert 25.9 <= y <= 228.1


@given(st.lists(usd, min_size=1, max_size=4), st.floats(0, 1e7))
def test_a_bridge_ends_where_it_should(changes: list[float], before: float) -> None:
    after = before + sum(changes)
    parts = [Step("a", before, True), *(Step(EVIL, c) for c in changes), Step("b", after, True)]
    svg = str(steps(parts, "t"))
    assert "<script>" not in svg
    ElementTree.fromstring(svg)
    assert svg.count("<rect") == len(parts)


@given(usd, usd)
def test_scales_hold_both_ends(a: float, b: float) -> None:
    scale = scale_over(min(a, b), max(a, b))
    slack = 1e-6 * max(1.0, abs(a), abs(b))
    assert scale.floor <= min(a, b) + slack
    assert scale.ceiling >= max(a, b) - slack
    assert 1 <= round((scale.ceiling - scale.floor) / scale.step) <= 8


def test_labels_differ_where_a_price_hardly_moves() -> None:
    for least in (0.410416, 0.999, 3.2901, 104.0):
        scale = scale_over(least, least * 1.000003)
        steps = round((scale.ceiling - scale.floor) / scale.step)
        labels = [short_usd(scale.floor + n * scale.step) for n in range(steps + 1)]
        assert len(set(labels)) == len(labels), labels


def test_a_breaker_is_told_by_the_timetable_and_by_the_client() -> None:
    def polling(state: BreakerState) -> Polling:
        return Polling(timedelta(minutes=1), 3, state, NOON)

    told = breakers({}, {"a": polling(BreakerState.CLOSED), "b": polling(BreakerState.HALF_OPEN)})
    assert told == {"a": ("closed", ""), "b": ("half_open", "next try 12:00:00")}


@pytest.mark.parametrize(("usd_", "is_drawn"), [(1.0, True), (4.9, True), (5.1, False)])
def test_a_level_far_above_the_bars_is_left_out(usd_: float, is_drawn: bool) -> None:
    over = Overlay(level=Level(f"budget {EVIL}", usd_, 0, 2), today=1)
    svg = str(stacked_bars(["a", "b"], [Series("s", (1.0, 2.0))], "t", over=over))
    ElementTree.fromstring(svg)
    assert ('class="limit"' in svg) is is_drawn
    assert EVIL not in svg
    assert 'class="now"' in svg


def test_intervals_are_drawn_where_there_are_any() -> None:
    svg = str(stacked_bars(["a", "b"], [Series("s", (1.0, 2.0))], "t", over=Overlay([None, (1.5, 9.0)])))
    assert svg.count('class="whisker"') == 1
    assert "b · P10 to P90: $1.50 to $9.00" in svg
    assert "$10</text>" in svg, "the axis holds the high end"


def test_words() -> None:
    at = datetime(2026, 11, 23, 11, 30, tzinfo=UTC)
    assert (moment(at), moment(None)) == ("2026-11-23 11:30 UTC", "–")
    assert re.fullmatch(r'<time datetime="2026-11-23T11:30:00Z">.*</time>', str(instant(at)))
    assert [signed_usd(Decimal(n)) for n in (5, 0, -5)] == ["+$5.00", "$0.00", "-$5.00"]
    assert [hours(timedelta(hours=n)) for n in (2, 71, 72)] == ["2.0 h", "71.0 h", "3.0 days"]
    assert (seller("prime_intellect"), seller("unheard")) == ("Prime Intellect", "unheard")
    assert offer_words("vast/48317589/on_demand") == "Vast.ai · 48317589 · on demand"
    told = "9 nodes of H100 at prime_intellect, run together"
    assert sellers_named(told) == "9 nodes of H100 at Prime Intellect, run together"
    assert sellers_named("runpod states no stock") == "RunPod states no stock"
    assert [short_usd(v) for v in (-14354.57, 0, 999.9)] == ["-$14.4k", "$0", "$1k"]


def held(reservation_id: str, hours_on: float = 0, **changed: Any) -> Reservation:
    start = NOON + timedelta(hours=hours_on)
    end = start + timedelta(hours=1)
    row = Reservation(
        reservation_id, "research", ReservationState.SCHEDULED, an_offer(), 1, start, end, (), NOON, "chat"
    )
    return replace(row, **changed)


BACK = ReleaseEstimate(Decimal(0), Decimal(0))


def test_a_fleets_steps_are_one_line() -> None:
    """Two nodes all day and two more in the evening, of which one hour is refused."""
    base = held("base", nodes=2, end=NOON + timedelta(hours=10), state=ReservationState.ACTIVE, plan_id="p")
    peak = [held(f"peak-{on}", on, nodes=2, plan_id="p") for on in (6, 5)]
    failed = held("f", 7, plan_id="p", state=ReservationState.FAILED, reason="no stock")
    lines = fleets([*peak, base, failed, held("a"), held("b", end=None)], NOON + timedelta(hours=1))
    assert [[one.reservation_id for one in fleet.rows] for fleet in lines] == [
        ["base", "peak-5", "peak-6"],
        ["f"],
        ["a"],
        ["b"],
    ]
    fleet = lines[0]
    assert (fleet.nodes, fleet.next, fleet.least, fleet.most) == (2, (NOON + timedelta(hours=5), 4), 2, 4)
    assert (fleet.state, fleet.start, fleet.end) == (
        ReservationState.ACTIVE,
        NOON,
        NOON + timedelta(hours=10),
    )
    assert size_words(fleet, moment) == "2 nodes now, 4 from 2026-11-23 17:00 UTC"
    assert steps_words(fleet) == "2 to 4 nodes, 3 steps: 1 held, 2 ordered at their start"
    assert lines[-1].end is None
    assert most_nodes([*peak, base]) == 4


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=8))
def test_the_size_of_a_line_is_what_its_rows_hold(drawn: list[tuple[int, int, int]]) -> None:
    rows = [
        held(f"r{n}", start, nodes=nodes, end=NOON + timedelta(hours=start + hours), plan_id="p")
        for n, (start, hours, nodes) in enumerate(drawn)
    ]
    by_hour = [sum(n for start, hours, n in drawn if start <= at < start + hours) for at in range(40)]
    for now in range(0, 40, 7):
        (fleet,) = fleets(rows, NOON + timedelta(hours=now))
        assert fleet.nodes == by_hour[now]
        later = next((at for at in range(now, 40) if by_hour[at] != by_hour[now]), None)
        assert fleet.next == (None if later is None else (NOON + timedelta(hours=later), by_hour[later]))
        assert fleet.most == max(by_hour) == most_nodes(rows)


def test_a_team_keeps_its_look_and_up_to_28_differ() -> None:
    teams = [f"team-{n}" for n in range(28)]
    looks = looks_of(teams)
    assert len(set(looks.values())) == 28
    for count in (1, 2, 10):
        assert looks_of(teams[:count]) == {name: looks[name] for name in teams[:count]}, "others change none"
    alone = {name: looks_of([name])[name] for name in teams}
    assert all(look.hatch == 0 for look in alone.values())
    assert looks[teams[0]] == alone[teams[0]], "the colour is the name's"
    assert {looks[name] for name in teams[:7]} == {Look(colour) for colour in range(7)}, "no hatch is needed"


def test_a_hatch_is_drawn_over_the_bar_of_a_team_that_shares_a_colour() -> None:
    drawn = str(stacked_bars(["1 Nov"], [Series("a", (1.0,), Look(3)), Series("b", (1.0,), Look(3, 2))], "t"))
    assert drawn.count('class="s3"') == 2
    assert drawn.count('class="hatch" fill="url(#hatch-2)"') == 1


@pytest.mark.parametrize(
    ("owed", "planned", "tone", "state", "told"),
    [
        ("10", "20", "", "within", ""),
        ("50", "0", "warn", "past 50 % (spent)", "is past 50 % (spent): $50.00 spent, $0.00 reserved"),
        ("50", "31", "warn", "past 80 % (expected)", "$50.00 spent, $0.00 reserved, $31.00 planned"),
        ("100", "0", "warn", "past 100 % (spent)", "past 100 %"),
        ("100", "0.01", "bad", "over by $0.01", "$100.00 per month, is exceeded by $0.01: $100.00 spent"),
    ],
)
def test_a_budget_says_in_words_where_it_stands(
    owed: str, planned: str, tone: str, state: str, told: str
) -> None:
    budget = Budget("research", BudgetPeriod.MONTH, Decimal(100), (50, 80, 100), None, "k", NOON)
    made = [
        Charge(
            Window(NOON, NOON + HOUR),
            "research",
            "w",
            None,
            "fake",
            "sku",
            Tier.ON_DEMAND,
            Decimal(usd),
            basis,
        )
        for usd, basis in ((owed, ChargeBasis.ACTUAL), (planned, ChargeBasis.PROJECTED))
    ]
    (row,) = budget_rows([budget_status(budget, made, NOON)])
    assert (row.tone, row.state) == (tone, state)
    assert [one.tone for one in row.warnings] == ([tone] if tone else [])
    assert all(told in one.says for one in row.warnings)


def test_each_later_period_that_will_be_exceeded_is_told_by_itself() -> None:
    """$60 in November, $150 in December, $90 in January and $101 in February, of $100 a month."""
    budget = Budget("research", BudgetPeriod.MONTH, Decimal(100), (100,), None, "k", NOON)
    starts = [NOON, *(datetime(2026 + m // 12, m % 12 + 1, 1, tzinfo=UTC) for m in (11, 12, 13))]
    made = [
        Charge(
            Window(start, start + HOUR), "research", "w", None, "fake", "sku", Tier.ON_DEMAND, Decimal(usd),
            ChargeBasis.PROJECTED, reservation_id="r", is_open_ended=usd == "150",
        )
        for start, usd in zip(starts, ("60", "150", "90", "101"), strict=True)
    ]  # fmt: skip
    reach = Reach.at(NOON, last=starts)
    present, *later = budget_outlook(budget, made, reach)
    (row,) = budget_rows([replace(present, later=tuple(later))])
    assert (row.tone, row.state) == ("", "within"), "the present period is its own"
    assert row.later_words == (
        "2026-12-01 to 2026-12-31: $150.00 expected, $50.00 over the budget.",
        "2027-02-01 to 2027-02-28: $101.00 expected, $1.00 over the budget.",
    )
    first, last = row.warnings
    assert "will be exceeded by $50.00 in 2026-12-01 to 2026-12-31" in first.says
    assert "$150.00 reserved ($150.00 of it until released)" in first.says
    assert "will be exceeded by $1.00 in 2027-02-01 to 2027-02-28" in last.says


@pytest.mark.parametrize(
    ("state", "standing", "has_begun", "words"),
    [
        ("running", None, False, "being planned"),
        ("queued", None, False, "queued"),
        ("done", "draft", False, "draft"),
        ("done", "waiting", False, "waits for approval"),
        ("done", "reserved", False, "reserved"),
        ("done", "reserved", True, "running"),
        ("done", "done", True, "released"),
        ("done", "superseded", False, "replaced"),
        ("proposed", "draft", False, "a proposal"),
        ("proposed", "waiting", False, "waits for approval"),
    ],
)
def test_a_plan_has_one_word_for_where_it_is(
    state: str, standing: str | None, has_begun: bool, words: str
) -> None:
    assert state_words(state, standing, has_begun=has_begun) == words


def test_an_interval_without_width_is_not_shown() -> None:
    flat, wide = (Quantiles(Decimal(65), Decimal(65), Decimal(high)) for high in ("65.40", "66.60"))
    assert not is_wide(flat)
    assert is_wide(wide)


def test_what_is_accepted_is_told_by_what_is_bought() -> None:
    scheduled = [
        held(f"s-{on}", on, state=ReservationState.SCHEDULED, plan_id="p", units=()) for on in (6, 5)
    ]
    bought = held("b", state=ReservationState.ACTIVE, plan_id="p")
    assert accepted_words(scheduled, moment, NOON) == (
        "Accepted. Nothing is bought yet: 2 orders are placed each at its start, the first on "
        "2026-11-23 17:00 UTC, and the seller may then have none."
    )
    early = replace(bought, requested=Wish(NOON + timedelta(hours=1), bought.end))
    assert accepted_words([bought, early, scheduled[0]], moment, NOON) == (
        "Accepted: 1 order is bought; 1 order is holding until needed; 1 order is placed at its start, "
        "2026-11-23 18:00 UTC, and the seller may then have none."
    )
    waits = held("w", state=ReservationState.PENDING, units=())
    assert accepted_words([bought, waits], moment, NOON) == (
        "Accepted: 1 order is bought; 1 order waits for the seller's answer."
    )


def test_what_a_plan_commits_says_what_is_paid_when() -> None:
    hourly = a_plan(a_placement(an_offer("h", "2"), [a_segment(0, 10)], "chat"))
    assert committed_words(hourly) == "All of it is charged by the hour as it is held."
    window = a_placement(an_offer("w", "10", window=slot_terms(NOON, 96)), [a_segment(0, 10)], "tune")
    both = a_plan(window, a_placement(an_offer("h", "2"), [a_segment(0, 4)], "chat"))
    assert committed_words(both) == (
        "$100.00 of it is for windows, ordered now and paid at the purchase; the rest is charged by the hour "
        "as it is held."
    )
    assert committed_words(a_plan(window)) == (
        "All of it is for windows, which are ordered now and paid at the purchase."
    )
    terms = replace(slot_terms(NOON, 96), billed=WindowBilling.FROM_START)
    segment = a_segment(0, 10)
    use = use_of(terms, (segment,), segment.window, Decimal(100))
    from_start = replace(a_placement(an_offer("w", "10", window=terms), [segment], "tune"), window_use=use)
    assert committed_words(a_plan(from_start)) == (
        "All of it is charged by the hour as it is held. "
        "$100.00 is for windows that are charged from their start on."
    )


def test_how_a_placement_is_ordered_is_told_with_its_chance() -> None:
    """A run that starts later, one that starts now, and a fleet of which a step waits."""
    start, now = [a_segment(5, 10)], [a_segment(0, 10)]
    offer = an_offer("h", "2")
    learned = LaunchStatistics(0.92, 4.0, 12, StatisticsLevel.OFFER)
    scarce = replace(offer, stock=Stock(StockLevel.LOW, 3), learned=learned)
    steps = [a_segment(0, 1), a_segment(5, 6)]
    plan = a_plan(*(a_placement(offer, one, "w", WorkloadKind.SERVING) for one in (start, now, steps)))
    words = [
        [order_promise_words(one) for one in quote_of_plan(plan, {"h": of}, BACK, NOON).placements]
        for of in (offer, scarce)
    ]
    assert words == [
        ["ordered at its start", "bought now", "1 bought now, 1 ordered at its start"],
        [
            "ordered at its start, low stock, 92 % of launches there succeeded",
            "bought now",
            "1 bought now, 1 ordered at its start, low stock, 92 % of launches there succeeded",
        ],
    ]
    assert chance_words(StockLevel.NONE, None) == "no stock now"
    assert chance_words(StockLevel.HIGH, None) == chance_words(None, None) == ""
    assert "on 2026-11-23 12:00 UTC, and its seller may then have none" in at_start_words(NOON, moment)
    assert hold_now_words(Decimal("12.30")).startswith("It adds $12.30: each node is bought now")
