"""Prices over time over HTTP: days, the market of the past, a GPU across sellers, forecasts."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from broker.domain.market.offer import Offer
from tests.api.house import Home, House
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import an_offer

H100 = {"gpu": "H100-SXM-80GB", "tier": "on_demand"}


async def after_days(home: Home, days: int, house: House, clock: FakeClock) -> None:
    """Every six hours a poll; one price rises by a tenth a day, the other stays."""
    for step in range(4 * days):
        clock.advance(hours=6)
        rising = str(round(24 * 1.1 ** ((step + 1) / 4), 6))
        house.provider.offers = (an_offer("fake/rising", rising), an_offer("fake/still", "20"))
        await home.product.offers.refresh()
    await home.product.prices.keep_up()


async def test_history_by_day_across_sellers_and_of_the_past(tmp_path: Path) -> None:
    clock = FakeClock()
    house = House(tmp_path / "b.db", clock=clock, offers=(an_offer("fake/rising", "24"),))
    async with house.open() as home:
        await after_days(home, 3, house, clock)
        client = home.client()
        days = (await client.get("/v1/offers/fake/rising/prices", params={"interval": "day"})).json()["items"]
        whole = (await client.get("/v1/prices", params=H100)).json()["items"]
        each = (await client.get("/v1/prices", params=H100 | {"by": "provider"})).json()["items"]
        then = NOON + timedelta(hours=13)
        market = (await client.get("/v1/market", params={"at": then.isoformat()})).json()

    assert [day["day"] for day in days] == ["2026-11-23", "2026-11-24", "2026-11-25", "2026-11-26"]
    assert (days[0]["min_usd"], days[0]["hours_on_sale"], days[0]["changes"]) == ("24.000000", 12, 2)
    assert [(row["offers"], row["providers"], row["provider"]) for row in whole] == [(2, 1, None)] * 4
    assert whole[1]["min_usd_per_gpu_hour"] == "2.500000"
    assert {row["provider"] for row in each} == {"fake"}
    assert market["as_of"] == "2026-11-24T01:00:00Z"
    prices = {row["offer_id"]: Decimal(row["price_usd_per_node_hour"]) for row in market["offers"]}
    assert prices == {"fake/rising": Decimal("25.171412"), "fake/still": 20}


async def test_a_forecast_says_what_it_rests_on_or_that_there_is_no_history(tmp_path: Path) -> None:
    clock = FakeClock()
    house = House(tmp_path / "b.db", clock=clock, offers=(an_offer("fake/rising", "24"),))
    async with house.open() as home:
        client = home.client()
        young = (await client.get("/v1/offers/fake/rising/forecast")).json()
        await after_days(home, 12, house, clock)
        rising = (await client.get("/v1/offers/fake/rising/forecast", params={"hours": [24, 240]})).json()
        again = (await client.get("/v1/offers/fake/rising/forecast", params={"hours": [24, 240]})).json()
        missing = await client.get("/v1/offers/fake/none/forecast")

    assert (young["basis"], young["grounds"], young["horizons"]) == ("no history", None, [])
    assert rising == again
    assert missing.status_code == 404
    assert rising["grounds"]["own_days"] == 11
    assert sum(rising["grounds"]["shares"].values()) == pytest.approx(1, abs=1e-3)
    assert [horizon["hours"] for horizon in rising["horizons"]] == [24, 240]
    last = {q["share"]: Decimal(q["price_usd_per_node_hour"]) for q in rising["horizons"][1]["quantiles"]}
    now = Decimal(rising["price_usd_per_node_hour"])
    assert last[0.05] == now
    assert last[0.95] == pytest.approx(now * Decimal("1.1") ** 10, rel=Decimal("1e-4"))


@pytest.mark.parametrize(
    ("path", "params", "pointer"),
    [
        ("/v1/prices", {"gpu": "L4"}, "/tier"),
        ("/v1/prices", H100 | {"tier": "cheap"}, "/tier"),
        ("/v1/prices", H100 | {"interval": "hour"}, "/interval"),
        ("/v1/prices", H100 | {"from": "2026-01-01"}, "/to"),
        ("/v1/prices", H100 | {"from": "2001-01-01", "to": "2026-01-01"}, "/from"),
        ("/v1/market", {}, "/at"),
        ("/v1/market", {"at": "2100-01-01"}, "/at"),
        ("/v1/market", {"at": "2026-11-23", "gpu": "H1000"}, "/gpu"),
        ("/v1/market", {"at": "2026-11-23", "provider": "lamda"}, "/provider"),
        ("/v1/market", {"at": "2026-11-23", "tier": "ondemand"}, "/tier"),
        ("/v1/quarantine", {"provider": "lamda"}, "/provider"),
        ("/v1/offers/h100-a/forecast", {"hours": "0"}, "/hours/0"),
        ("/v1/offers/h100-a/forecast", {"hours": "nan"}, "/hours/0"),
        ("/v1/offers/h100-a/prices", {"interval": "week"}, "/interval"),
    ],
)
async def test_bad_questions_are_named(home: Home, path: str, params: dict[str, str], pointer: str) -> None:
    answer = await home.client().get(path, params=params)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-input")
    assert answer.json()["errors"][0]["pointer"] == pointer


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        ({"gpu": "h100"}, 3),
        ({"gpu": "H100*", "tier": "spot,on_demand"}, 3),
        ({"tier": "spot"}, 0),
        ({"gpu": "L4,B200"}, 0),
    ],
)
async def test_a_past_market_takes_families_and_patterns(
    home: Home, words: dict[str, str], offers: int
) -> None:
    answer = await home.client().get("/v1/market", params={"at": NOON.isoformat()} | words)
    assert len(answer.json()["offers"]) == offers, answer.text


async def test_the_past_of_an_offer_that_is_gone_is_told(tmp_path: Path) -> None:
    clock = FakeClock()
    gone: Offer = replace(an_offer("fake/gone", "9"), region="mars-1")
    house = House(tmp_path / "b.db", clock=clock, offers=(gone,))
    async with house.open() as home:
        clock.advance(hours=1)
        house.provider.offers = ()
        await home.product.offers.refresh()
        client = home.client()
        market = (await client.get("/v1/market", params={"at": NOON.isoformat()})).json()
        now = (await client.get("/v1/market", params={"at": clock.now().isoformat()})).json()
    assert [(row["offer_id"], row["region"]) for row in market["offers"]] == [("fake/gone", "mars-1")]
    assert now["offers"] == []
