"""Forecasts of prices: quantiles in order, wider with time, in proportion to the price, and honest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.forecast import (
    DailyPrices,
    Family,
    Forecaster,
    ForecastRules,
    HistorySource,
)
from broker.domain.market.offer import Tier
from tests.depth import examples

KIN = Family("H100-SXM-80GB", Tier.SPOT, "cloud")
OTHERS = Family("L40S", Tier.ON_DEMAND, "marketplace")
MIDNIGHT = datetime(2026, 11, 1, tzinfo=UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
FEW = ForecastRules(paths=200)

pasts = st.lists(
    st.lists(st.none() | st.integers(1, 10**9), min_size=1, max_size=30).map(tuple), min_size=1, max_size=4
).map(lambda series: [DailyPrices(f"offer-{n}", KIN, prices) for n, prices in enumerate(series)])


def walk(seed: int, days: int, daily: float, offer_id: str = "a", family: Family = KIN) -> DailyPrices:
    """A price that goes up or down by the same factor every day."""
    lots, prices = Random(seed), [10_000_000.0]
    for _ in range(days):
        prices.append(prices[-1] * (daily if lots.random() < 0.5 else 1 / daily))
    return DailyPrices(offer_id, family, tuple(map(round, prices)))


@settings(max_examples=examples(15))
@given(pasts, st.integers(1, 10**9), st.lists(st.floats(0, 24 * 40), min_size=1, max_size=3))
def test_quantiles_are_in_order(past: list[DailyPrices], price: int, hours: list[float]) -> None:
    forecasts = Forecaster(past, FEW).forecasts("offer-0", KIN, price, hours)

    assert [forecast.hours for forecast in forecasts] in (hours, [])
    for forecast in forecasts:
        prices = [quantile.micro_usd for quantile in forecast.quantiles]
        assert prices == sorted(prices)


@settings(max_examples=examples(15))
@given(pasts, st.integers(1, 10**6), st.integers(2, 1000), st.integers(0, 5))
def test_they_scale_with_the_price(past: list[DailyPrices], price: int, times: int, seed: int) -> None:
    forecaster = Forecaster(past, FEW)
    once = forecaster.forecasts("offer-0", KIN, price, [100.0], seed=seed)
    scaled = forecaster.forecasts("offer-0", KIN, price * times, [100.0], seed=seed)

    for one, other in zip(once, scaled, strict=True):
        for q, p in zip(one.quantiles, other.quantiles, strict=True):
            assert p.micro_usd == pytest.approx(q.micro_usd * times, abs=times / 2 + 1, rel=1e-9)


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.floats(1.01, 1.2), st.floats(1, 200))
def test_they_widen_with_the_horizon(seed: int, daily: float, hours: float) -> None:
    # Blocks of a day of a walk without drift: four times the time is about twice the spread.
    rules = ForecastRules(block_days=1, paths=400)
    forecaster = Forecaster([walk(seed, 200, daily), walk(seed, 200, 1 / daily, "b")], rules)
    near, far = forecaster.forecasts("new", KIN, 10**7, [hours, 4 * hours + 24], seed=seed)

    assert far.at(0.9) - far.at(0.1) > near.at(0.9) - near.at(0.1)


def test_nothing_known_says_nothing() -> None:
    alone = Forecaster([DailyPrices("a", KIN, (10**6,)), DailyPrices("b", KIN, (None, 10**6, None))])

    assert alone.basis_of("a", KIN) is None
    assert alone.forecasts("a", KIN, 10**6, [24.0]) == ()
    assert alone.paths("a", KIN, 10**6, 3, 10, seed=1) == ()


def test_a_price_that_never_moved_is_expected_to_stay() -> None:
    forecaster = Forecaster([DailyPrices("a", KIN, (10**6,) * 60)])
    (forecast,) = forecaster.forecasts("a", KIN, 10**6, [24.0 * 30])

    assert {quantile.micro_usd for quantile in forecast.quantiles} == {10**6}


def test_now_is_the_price_itself() -> None:
    (forecast,) = Forecaster([walk(1, 50, 1.3)]).forecasts("a", KIN, 4_200_000, [0.0])

    assert {quantile.micro_usd for quantile in forecast.quantiles} == {4_200_000}


def test_half_a_day_has_half_of_the_changes() -> None:
    certain = Forecaster([DailyPrices("a", KIN, tuple(10**6 * 2**n for n in range(20)))])
    (half,) = certain.forecasts("a", KIN, 100, [12.0], levels=(0.49, 0.51))

    assert [quantile.micro_usd for quantile in half.quantiles] == [100, 200]


def test_the_past_is_the_offers_own_then_its_familys_then_the_markets() -> None:
    still = DailyPrices("own", KIN, (10**6,) * 91)
    kin = [walk(n, 90, 1.1, f"kin-{n}") for n in range(9)]
    others = [walk(n, 90, 1.5, f"other-{n}", OTHERS) for n in range(3)]
    forecaster = Forecaster([still, *kin, *others])

    own, new = forecaster.basis_of("own", KIN), forecaster.basis_of("new", KIN)
    strange = forecaster.basis_of("new", Family("T4", Tier.SPOT, "cloud"))
    assert own is not None
    assert new is not None
    assert strange is not None
    assert (own.basis, new.basis, strange.basis) == (
        HistorySource.OFFER,
        HistorySource.FAMILY,
        HistorySource.MARKET,
    )
    assert own.shares[HistorySource.OFFER] == pytest.approx(90 / 120)
    assert sum(new.shares.values()) == pytest.approx(1)
    assert (new.own_days, new.family_offers, new.market_offers) == (0, 10, 13)


def test_equal_seeds_draw_the_same_days_for_every_offer() -> None:
    together = [walk(7, 120, 1.1, name) for name in ("a", "b")]
    forecaster = Forecaster(together, ForecastRules(own_days=0))

    assert forecaster.factors("a", KIN, 30, 20, seed=5) == forecaster.factors("b", KIN, 30, 20, seed=5)
    assert forecaster.factors("a", KIN, 30, 20, seed=5) != forecaster.factors("a", KIN, 30, 20, seed=6)


def test_a_longer_future_begins_as_the_shorter() -> None:
    forecaster = Forecaster([walk(7, 120, 1.1)])
    short, long = (forecaster.paths("a", KIN, 10**6, days, 10, seed=1) for days in (5, 40))

    assert [path[:6] for path in long] == [*short]
    assert {len(path) for path in long} == {41}


def test_pieces_keep_what_follows_what() -> None:
    # Up by half one day, back the next, for ever: no future of whole pieces drifts away.
    seesaw = DailyPrices("a", KIN, tuple(10**6 if n % 2 else 1_500_000 for n in range(90)))
    (forecast,) = Forecaster([seesaw], ForecastRules(block_days=8)).forecasts("a", KIN, 10**6, [24.0 * 80])

    assert 600_000 < forecast.at(0.05) <= forecast.at(0.95) < 1_600_000
