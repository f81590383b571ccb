"""Price history in the store: the market as it was known, figures by day, thinning and forgetting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.window import Window
from broker.domain.market.offer import Offer, Stock, StockLevel, Tier
from broker.domain.market.price_days import PriceDay, days_in
from broker.services.market.prices import PricesService
from broker.store import Store
from tests.fakes.clock import FakeClock
from tests.store.examples import HOUR, NOON, offer
from tests.store.test_offers import poll, record

DAY = timedelta(days=1)
TODAY = NOON.date()
SOLD_OUT = Stock(StockLevel.NONE, 0)


async def say(store: Store, at: datetime, offers: Sequence[Offer], provider: str = "aws") -> None:
    seen = [replace(one, provider=provider, observed_at=at) for one in offers]
    await record(store, poll(len(seen), at, provider=provider), seen)


async def keep_up(store: Store, until: date) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        while (day := await unit.prices.find_next_day()) is not None and day < until:
            await unit.prices.summarise(day)
        await unit.commit()


def prices(offers: Sequence[Offer]) -> dict[str, Decimal]:
    return {one.offer_id: one.price_usd_per_node_hour for one in offers}


async def test_a_price_that_has_not_moved_keeps_its_digits(store: Store) -> None:
    """Points are kept in millionths of a dollar; the offer's own document has what its seller said."""
    await say(store, NOON, [offer("a", "0.29066667")])
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert prices(await unit.prices.find_known_at(NOON)) == {"a": Decimal("0.29066667")}
    await say(store, NOON + HOUR, [offer("a", "0.30066667")])
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert prices(await unit.prices.find_known_at(NOON)) == {"a": Decimal("0.290667")}


async def test_the_market_of_an_instant_has_what_was_known_then_and_nothing_later(store: Store) -> None:
    await say(store, NOON, [offer("a", "24"), offer("b", "20"), offer("c", "9", gpu="L40S", tier=Tier.SPOT)])
    await say(store, NOON + HOUR, [offer("a", "30"), offer("c", "9", gpu="L40S", stock=SOLD_OUT)])
    await say(store, NOON + 2 * HOUR, [offer("a", "31"), offer("b", "22", stock=Stock(StockLevel.LOW, 1))])

    async with store.unit_of_work(EVERY_TEAM) as unit:
        at = [await unit.prices.find_known_at(NOON + n * HOUR / 2) for n in (-1, 0, 1, 2, 4)]
        spot = await unit.prices.find_known_at(NOON, gpu="L40S", tier="spot", provider="aws")
        other = await unit.prices.find_known_at(NOON, provider="vast")

    assert [prices(offers) for offers in at] == [
        {},
        {"a": 24, "b": 20, "c": 9},
        {"a": 24, "b": 20, "c": 9},
        {"a": 30},
        {"a": 31, "b": 22},
    ]
    assert [one.offer_id for one in at[1]] == ["c", "b", "a"]
    assert at[1][2].stock.nodes == 4
    assert at[4][0].stock.nodes == 1
    assert {one.observed_at for one in at[2]} == {NOON}
    assert prices(spot) == {"c": 9}
    assert other == ()


SELLERS = count()
rounds = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.integers(1, 5), max_size=3), min_size=1, max_size=5
)


@settings(max_examples=5)
@given(rounds)
async def test_words_that_come_later_change_no_market_of_the_past(
    store: Store, said: list[dict[str, int]]
) -> None:
    known: list[dict[str, Decimal]] = []
    seller = f"seller-{next(SELLERS)}"
    for hour, asked in enumerate(said):
        at = NOON + hour * 5 * HOUR
        await say(store, at, [offer(f"{seller}/{key}", str(usd)) for key, usd in asked.items()], seller)
        async with store.unit_of_work(EVERY_TEAM) as unit:
            seen = [
                prices(await unit.prices.find_known_at(NOON + n * 5 * HOUR, provider=seller))
                for n in range(hour + 1)
            ]
        assert seen[:-1] == known
        assert seen[-1] == {f"{seller}/{key}": Decimal(usd) for key, usd in asked.items()}
        known = seen


async def a_week(store: Store) -> None:
    """An offer that rises by a dollar every six hours, one that stays, one that goes on the third day."""
    for step in range(28):
        at = NOON + step * 6 * HOUR
        offers = [offer("rises", str(10 + step)), offer("stays", "5", gpus_per_node=1)]
        await say(store, at, [*offers, *([offer("goes", "7")] if step < 10 else [])])


async def test_days_are_the_same_from_points_from_figures_and_after_thinning(store: Store) -> None:
    await a_week(store)
    days = days_in(Window(NOON - DAY, NOON + 8 * DAY))
    now = NOON + 7 * DAY + HOUR

    async def found() -> list[tuple[PriceDay, ...]]:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            return [await unit.prices.find_days(key, days, now) for key in ("rises", "stays", "goes", "no")]

    from_points = await found()
    await keep_up(store, TODAY + 7 * DAY)
    from_figures = await found()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.prices.find_summarised_until() == TODAY + 7 * DAY
        went = await unit.prices.thin(TODAY + 5 * DAY)
        assert await unit.prices.thin(TODAY + 5 * DAY) == 0
        await unit.commit()

    assert from_figures == from_points == await found()
    rises, stays, goes, nothing = from_points
    assert [(d.least // 10**6, d.most // 10**6, d.last // 10**6) for d in rises[:3]] == [
        (10, 11, 11),
        (12, 15, 15),
        (16, 19, 19),
    ]
    assert [d.seconds for d in rises][:2] == [12 * 3600, 86_400]
    assert {(d.least, d.most) for d in stays} == {(5 * 10**6, 5 * 10**6)}
    assert len(stays) == 8
    assert [d.seconds // 3600 for d in goes] == [12, 24, 24]
    assert nothing == ()
    assert went == 1 + 3 * 4
    async with store.unit_of_work(EVERY_TEAM) as unit:
        points = await unit.offers.find_prices("rises", Window(NOON, NOON + 3 * DAY))
        assert [p.at for p in points] == [NOON + (6 + 24 * n) * HOUR for n in range(3)]
        assert prices(await unit.prices.find_known_at(NOON + DAY + 11 * HOUR)) == {
            "goes": 7,
            "rises": 15,
            "stays": 5,
        }


async def test_a_gpu_across_sellers_by_day(store: Store) -> None:
    await say(store, NOON, [offer("a", "24"), offer("b", "16")])
    await say(store, NOON, [offer("v", "4", gpus_per_node=1)], provider="vast")
    await say(store, NOON + DAY, [offer("a", "32")])
    now = NOON + 2 * DAY
    days = days_in(Window(NOON, now))

    async def found(*, by_provider: bool) -> list[tuple[str, str | None, int, int, int, int]]:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            rows = await unit.prices.find_sku_days(
                "H100-SXM-80GB", "on_demand", days, now, by_provider=by_provider
            )
        return [
            (f"{r.day:%d}", r.provider, r.least // 10**6, r.median // 10**6, r.most // 10**6, r.offers)
            for r in rows
        ]

    live = await found(by_provider=False), await found(by_provider=True)
    await keep_up(store, TODAY + 2 * DAY)
    assert (await found(by_provider=False), await found(by_provider=True)) == live
    assert live[0] == [("23", None, 2, 3, 4, 3), ("24", None, 2, 3, 4, 3), ("25", None, 4, 4, 4, 2)]
    assert [row[:3] for row in live[1]][:2] == [("23", "aws", 2), ("23", "vast", 4)]


async def test_recent_figures_are_reckoned_once_in_five_minutes(store: Store) -> None:
    clock = FakeClock(NOON + HOUR)
    service = PricesService(store.unit_of_work, clock)
    window = Window(NOON - DAY, NOON + 6 * HOUR)

    async def found() -> list[tuple[int, int]]:
        rows = await service.find_recent_sku_days("H100-SXM-80GB", "on_demand", window)
        return [(row.least // 10**6, row.offers) for row in rows]

    assert await found() == []
    await say(store, NOON + HOUR, [offer("a", "24")])
    clock.advance(minutes=1)
    assert await found() == [(3, 1)], "nothing is five minutes old yet, so it is reckoned anew"
    clock.advance(minutes=5)
    assert await found() == [(3, 1)]
    await say(store, clock.now(), [offer("a", "8")])
    clock.advance(minutes=2)
    assert await found() == [(3, 1)]
    clock.advance(minutes=3)
    assert await found() == [(1, 1)]
    assert await found() == [
        (row.least // 10**6, row.offers)
        for row in await service.find_sku_days("H100-SXM-80GB", "on_demand", window)
    ]


async def test_what_is_too_old_is_forgotten_but_for_what_is_in_force(store: Store) -> None:
    await a_week(store)
    await keep_up(store, TODAY + 7 * DAY)
    now, days = NOON + 7 * DAY, days_in(Window(NOON, NOON + 7 * DAY))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        before = [await unit.prices.find_days(key, days[5:], now) for key in ("rises", "stays")]
        market = await unit.prices.find_known_at(now)
        assert await unit.prices.forget(days[5]) > 0
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert [await unit.prices.find_days(key, days[5:], now) for key in ("rises", "stays")] == before
        assert await unit.prices.find_known_at(now) == market
        assert await unit.prices.find_days("rises", days[:3], now) == ()
        assert await unit.prices.find_known_at(NOON + DAY) == await unit.prices.find_known_at(
            NOON + DAY, gpu="H100-SXM-80GB"
        )
        assert await unit.prices.find_closes(days, offer_ids=["goes"]) == ()


async def test_points_of_several_offers_are_led_by_those_in_force(store: Store) -> None:
    await a_week(store)
    window = Window(NOON + 5 * HOUR, NOON + 13 * HOUR)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.prices.find_points(["rises", "stays", "none"], window)
        before = await unit.prices.find_points(["rises"], Window(NOON - DAY, NOON + HOUR))
        offers = await unit.prices.find_offers_known_in(Window(NOON, NOON + DAY))
        none = await unit.prices.find_offers_known_in(Window(NOON - DAY, NOON))

    said = [(p.offer_id, (p.at - NOON) // HOUR, int(p.price_usd_per_node_hour)) for p in found]
    assert said == [("rises", 0, 10), ("rises", 6, 11), ("rises", 12, 12), ("stays", 0, 5)]
    assert [p.at for p in before] == [NOON]
    assert [one.offer_id for one in offers] == ["goes", "rises", "stays"]
    assert none == ()


async def test_closes_are_those_of_day_ends_the_same_in_every_call(store: Store) -> None:
    await a_week(store)
    await keep_up(store, TODAY + 7 * DAY)
    days = days_in(Window(NOON - DAY, NOON + 3 * DAY))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        named = {
            c.offer_id: c.micro_usd for c in await unit.prices.find_closes(days, offer_ids=["rises", "goes"])
        }
        drawn = await unit.prices.find_closes(days, limit=2)
        assert drawn == await unit.prices.find_closes(days, limit=2)
        assert await unit.prices.find_closes(days, gpu="L40S") == ()

    dollars = {key: [None if v is None else v // 10**6 for v in many] for key, many in named.items()}
    assert dollars == {"rises": [None, 11, 15, 19, 23], "goes": [None, 7, 7, 7, None]}
    assert len(drawn) == 2


async def test_days_before_the_first_point_are_not_gone_through(store: Store) -> None:
    await record(store, poll(1), [offer("a")])
    days = [(NOON - n * timedelta(days=1)).date() for n in range(30, -1, -1)]
    asked: list[str] = []

    def note(*call: object) -> None:
        asked.append(str(call[2]))

    event.listen(store._engine.sync_engine, "before_cursor_execute", note)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        (today,) = await unit.prices.find_sku_days(
            "H100-SXM-80GB", "on_demand", days, NOON + HOUR, by_provider=False
        )
    assert today.day == NOON.date()
    assert len(asked) < len(days)
