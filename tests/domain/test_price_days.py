"""Prices by day: figures of what was in force, the same whether points are thinned or not."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.window import Window
from broker.domain.market.price_days import (
    DAY,
    PriceDay,
    PriceMark,
    SoldDay,
    closes,
    days_in,
    filled,
    price_day,
    price_days,
    sku_days,
    start_of,
)

FIRST = date(2026, 11, 1)
START = start_of(FIRST)
DAYS = tuple(FIRST + timedelta(days=n) for n in range(6))
HOUR = timedelta(hours=1)

marks = st.lists(
    st.tuples(st.integers(0, 6 * 86_400 - 1), st.integers(1, 50), st.booleans()),
    max_size=12,
    unique_by=lambda row: row[0],
).map(lambda rows: [PriceMark(START + timedelta(seconds=s), usd, sold) for s, usd, sold in sorted(rows)])


def by_hour(said: list[PriceMark], day: date) -> list[int]:
    """The price in force in each hour of a day in which the offer was on sale: slow and plain."""
    found = []
    for hour in range(24):
        now = start_of(day) + hour * HOUR
        last = [mark for mark in said if mark.at <= now][-1:]
        found += [mark.micro_usd for mark in last if mark.on_sale]
    return found


@given(marks)
def test_figures_of_a_day_are_of_the_prices_in_force(said: list[PriceMark]) -> None:
    hours = [mark._replace(at=mark.at.replace(minute=0, second=0)) for mark in said]
    said = list({mark.at: mark for mark in hours}.values())
    known = {day.day: day for day in price_days(said, DAYS, START + 6 * DAY)}

    for day in DAYS:
        prices = sorted(by_hour(said, day))
        found = known.get(day)
        if found is None or not found.seconds:
            assert prices == []
            continue
        assert (found.least, found.most) == (prices[0], prices[-1])
        assert found.median == prices[-(-len(prices) // 2) - 1]
        assert found.seconds == 3600 * len(prices)


@given(marks)
def test_days_between_changes_are_filled_as_if_they_were_said(said: list[PriceMark]) -> None:
    every = list(price_days(said, DAYS, START + 6 * DAY))
    changed = [day for day in every if day.changes]

    assert list(filled(changed, DAYS)) == [day for day in every if day.seconds]
    for day, end in zip(DAYS, closes(changed, DAYS), strict=True):
        last = [mark for mark in said if mark.at < start_of(day) + DAY][-1:]
        assert [end] == ([mark.micro_usd if mark.on_sale else None for mark in last] or [None])


@given(marks)
def test_the_last_point_of_each_day_keeps_last_and_what_is_in_force_at_midnight(
    said: list[PriceMark],
) -> None:
    thinned = list({mark.at.date(): mark for mark in said}.values())

    before = {d.day: (d.last, d.on_sale) for d in price_days(said, DAYS, START + 6 * DAY)}
    after = {d.day: (d.last, d.on_sale) for d in price_days(thinned, DAYS, START + 6 * DAY)}
    assert before == after


def test_a_day_that_is_not_over_counts_to_now() -> None:
    said = [PriceMark(START, 10, True), PriceMark(START + 3 * HOUR, 20, True)]

    assert price_day(FIRST, None, said, START + 4 * HOUR) == PriceDay(
        FIRST, 10, 10, 20, 20, 4 * 3600, 2, True
    )
    assert price_day(FIRST, PriceMark(START - DAY, 7, True), []) == PriceDay(
        FIRST, 7, 7, 7, 7, 86_400, 0, True
    )
    assert price_day(FIRST, PriceMark(START - DAY, 7, False), []) is None


def test_days_of_a_window_are_those_that_it_touches() -> None:
    assert days_in(Window(START + HOUR, START + DAY)) == DAYS[:1]
    assert days_in(Window(START + HOUR, START + DAY + HOUR)) == DAYS[:2]
    assert days_in(Window(datetime(2026, 11, 1, tzinfo=UTC), START + 6 * DAY)) == DAYS


def test_a_gpu_is_summed_up_per_gpu_hour_over_sellers() -> None:
    def sold(provider: str, gpus: int, *prices: int) -> SoldDay:
        least, median, most = prices
        return SoldDay(
            provider, "L4", "spot", gpus, PriceDay(FIRST, least, median, most, most, 86_400, 1, True)
        )

    closed = SoldDay("b", "L4", "spot", 1, PriceDay(FIRST, 1, 1, 1, 1, 0, 1, False))
    unknown = SoldDay("b", "", "", 1, PriceDay(FIRST, 1, 1, 1, 1, 86_400, 1, True))
    found = sku_days(
        [sold("a", 1, 3, 4, 5), sold("a", 8, 16, 24, 80), sold("b", 2, 2, 12, 14), closed, unknown]
    )

    rows = {row.provider: (row.least, row.median, row.most, row.offers, row.providers) for row in found}
    assert rows == {"a": (2, 3, 10, 2, 1), "b": (1, 6, 7, 1, 1), None: (1, 4, 10, 3, 2)}
