"""The market in the store: current offers, their history, health of feeds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.errors import NotFound
from broker.domain.basics.window import Window
from broker.domain.market.market import ChangeKind, OfferChange, PollRound, diff_rounds
from broker.domain.market.offer import Offer, RejectedRow, Stock, StockLevel, Tier
from broker.domain.market.round_news import round_news
from broker.store import Store
from tests import strategies
from tests.depth import examples
from tests.store.examples import HOUR, NOON, offer


def poll(
    offers: int,
    at: datetime = NOON,
    *,
    provider: str = "aws",
    error: str | None = None,
    changes: tuple[OfferChange, ...] = (),
) -> PollRound:
    return PollRound(provider, at, 0.5, offers, changes=changes, error=error)


async def record(store: Store, round_: PollRound, offers: Sequence[Offer] | None) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        marks = await unit.offers.open_round(round_.provider)
        news = None if offers is None else round_news(marks, offers, round_.started_at)
        await unit.offers.record_round(round_, news)
        await unit.commit()


async def test_a_round_replaces_the_offers_of_its_provider_only(store: Store) -> None:
    await record(store, poll(2), [offer("a"), offer("b")])
    await record(store, poll(1, provider="vast"), [offer("v", provider="vast")])
    await record(store, poll(2, NOON + HOUR), [offer("b", "25"), offer("c")])

    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.offers.find_current()

    assert {o.offer_id: o.price_usd_per_node_hour for o in found} == {
        "b": Decimal(25),
        "c": Decimal(24),
        "v": Decimal(24),
    }


async def test_an_empty_round_leaves_nothing_and_a_failed_one_everything(store: Store) -> None:
    await record(store, poll(1), [offer("a")])
    await record(store, poll(0, error="timeout"), None)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        kept = await unit.offers.find_current()
    await record(store, poll(0), [])
    async with store.unit_of_work(EVERY_TEAM) as unit:
        left = await unit.offers.find_current()

    assert kept == (offer("a"),)
    assert left == ()


async def test_offers_come_cheapest_per_gpu_hour_first(store: Store) -> None:
    eight = offer("eight", "16.00")
    one = offer("one", "2.50", gpus_per_node=1)
    tie = offer("also-eight", "16.00")
    await record(store, poll(3), [one, eight, tie])

    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.offers.find_current()

    assert [o.offer_id for o in found] == ["also-eight", "eight", "one"]


@pytest.mark.parametrize(
    "filters",
    [{"gpu": "L40S"}, {"region": "eu-west-1"}, {"tier": Tier.SPOT}, {"gpu": "L40S", "region": "eu-west-1"}],
)
async def test_filters_narrow(store: Store, filters: dict[str, str]) -> None:
    wanted = offer("wanted", gpu="L40S", region="eu-west-1", tier=Tier.SPOT)
    await record(store, poll(2), [offer("other"), wanted])

    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.offers.find_current(**filters) == (wanted,)
        assert await unit.offers.find_current(provider="vast", **filters) == ()


async def test_one_offer_by_id(store: Store) -> None:
    await record(store, poll(1), [offer("a")])

    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.offers.find_offer("a") == offer("a")
        with pytest.raises(NotFound, match="offer 'b' not found"):
            await unit.offers.find_offer("b")


async def test_as_of_is_the_newest_observation(store: Store) -> None:
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.offers.find_as_of() is None
    await record(store, poll(2), [offer("a"), offer("b", observed_at=NOON + HOUR)])

    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.offers.find_as_of() == NOON + HOUR


async def test_equal_parts_of_read_offers_are_one_object_and_unequal_ones_are_not(store: Store) -> None:
    offers = [offer(str(nodes), stock=Stock(StockLevel.HIGH, nodes // 2)) for nodes in (6, 7, 8)]
    await record(store, poll(3), offers)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = sorted(await unit.offers.find_current(), key=lambda one: one.offer_id)
    assert found == offers
    assert found[0].stock is found[1].stock
    assert found[0].sku is found[2].sku


async def test_a_point_of_history_is_kept_only_when_something_changed(store: Store) -> None:
    seen = [
        [offer("a", observed_at=NOON)],
        [offer("a", observed_at=NOON + 1 * HOUR)],
        [offer("a", "30", observed_at=NOON + 2 * HOUR)],
        [offer("a", "30", observed_at=NOON + 3 * HOUR, stock=Stock(StockLevel.LOW, 1))],
        [],
        [],
        [offer("a", "30", observed_at=NOON + 6 * HOUR, stock=Stock(StockLevel.NONE))],
    ]
    for hour, offers in enumerate(seen):
        await record(store, poll(len(offers), NOON + hour * HOUR), offers)

    async with store.unit_of_work(EVERY_TEAM) as unit:
        points = await unit.offers.find_prices("a", Window(NOON, NOON + 24 * HOUR))

    hours = [(p.at - NOON) / HOUR for p in points]
    prices = [p.price_usd_per_node_hour for p in points]
    assert hours == [0, 2, 3, 4, 6]
    assert prices == [Decimal(24), Decimal(30), Decimal(30), Decimal(30), Decimal(30)]
    assert [(p.stock_nodes, p.available) for p in points] == [
        (4, True),
        (4, True),
        (1, True),
        (0, False),
        (None, False),
    ]


async def test_history_is_led_by_the_point_in_force_and_ends_before_the_end(store: Store) -> None:
    for hour in range(5):
        at = NOON + hour * HOUR
        await record(store, poll(1, at), [offer("a", str(10 + hour), observed_at=at)])

    async with store.unit_of_work(EVERY_TEAM) as unit:
        window = Window(NOON + 1.5 * HOUR, NOON + 3 * HOUR)
        points = await unit.offers.find_prices("a", window)
        nothing = await unit.offers.find_prices("b", window)

    assert [p.price_usd_per_node_hour for p in points] == [Decimal(11), Decimal(12)]
    assert nothing == ()


async def test_changes_come_oldest_first_after_an_instant(store: Store) -> None:
    first, second = [offer("a"), offer("b")], [offer("b", "30")]
    for at, before, after in ((NOON, [], first), (NOON + HOUR, first, second)):
        changes = diff_rounds(before, after, at)
        await record(store, poll(len(after), at, changes=changes), after)

    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.offers.find_changes(NOON, 10)
        limited = await unit.offers.find_changes(NOON - HOUR, 1)

    assert found == diff_rounds(first, second, NOON + HOUR)
    assert [change.kind for change in limited] == [ChangeKind.NEW]


async def test_a_feed_is_stale_since_the_first_failure_after_a_success(store: Store) -> None:
    await record(store, replace(poll(1), rejected=(RejectedRow("row", "no price"),)), [offer()])
    await record(store, poll(0, NOON + 1 * HOUR, error="HTTP 500"), None)
    await record(store, poll(0, NOON + 2 * HOUR, error="timeout"), None)

    async with store.unit_of_work(EVERY_TEAM) as unit:
        (feed,) = await unit.offers.find_feeds()

    assert (feed.provider, feed.last_success_at) == ("aws", NOON)
    assert (feed.last_error_at, feed.last_error) == (NOON + 2 * HOUR, "timeout")
    assert feed.stale_since == NOON + HOUR
    assert (feed.offers, feed.rejected, feed.seconds) == (1, 1, 0.5)

    await record(store, poll(1, NOON + 3 * HOUR), [offer()])
    async with store.unit_of_work(EVERY_TEAM) as unit:
        (feed,) = await unit.offers.find_feeds()

    assert (feed.stale_since, feed.last_success_at) == (None, NOON + 3 * HOUR)
    assert feed.last_error == "timeout"


async def test_failures_in_a_row_and_the_wait_are_kept_until_a_good_round(store: Store) -> None:
    await record(store, poll(1), [offer("a", "1")])
    for minute in (1, 2):
        await record(store, poll(0, NOON + minute * HOUR / 60, error="down"), None)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        await unit.offers.hold_back("aws", NOON + HOUR)
        await unit.commit()
    async with store.unit_of_work(EVERY_TEAM) as unit:
        (feed,) = await unit.offers.find_feeds()
    assert (feed.failures, feed.not_before) == (2, NOON + HOUR)
    await record(store, poll(1, NOON + HOUR), [offer("a", "1")])
    async with store.unit_of_work(EVERY_TEAM) as unit:
        (feed,) = await unit.offers.find_feeds()
    assert (feed.failures, feed.not_before) == (0, None)


async def test_price_lists_can_be_left_out(store: Store) -> None:
    await record(store, poll(1), [offer("a", "1")])
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert [one.offer_id for one in await unit.offers.find_current(without={"gpuhunt"})] == ["a"]
        assert await unit.offers.find_current(without={"aws"}) == ()


async def test_a_feed_that_never_worked_is_stale_since_its_first_poll(store: Store) -> None:
    await record(store, poll(0, error="refused"), None)

    async with store.unit_of_work(EVERY_TEAM) as unit:
        (feed,) = await unit.offers.find_feeds()

    assert (feed.last_success_at, feed.stale_since) == (None, NOON)


async def test_the_last_round_comes_with_its_rejected_rows_and_changes(store: Store) -> None:
    rejected = (RejectedRow('{"gpu": "H\x00"}', "unknown GPU"),)
    first = replace(poll(0), rejected=rejected * 2)
    last = replace(poll(1, NOON + HOUR), rejected=rejected, changes=diff_rounds([], [offer()], NOON + HOUR))
    await record(store, first, [])
    await record(store, last, [offer()])

    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.offers.find_rejected("aws")
        none = await unit.offers.find_rejected("vast")

    assert found == replace(last, rejected=(RejectedRow('{"gpu": "H\ufffd"}', "unknown GPU"),))
    assert none is None


async def test_one_id_twice_in_a_round_is_stored_once(store: Store) -> None:
    await record(store, poll(2), [offer("a", "10"), offer("a", "11")])

    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.offers.find_current() == (offer("a", "11"),)


@settings(max_examples=examples(8))
@given(st.lists(strategies.offers, max_size=5, unique_by=lambda o: o.offer_id))
async def test_any_offers_come_back_exactly(store: Store, offers: list[Offer]) -> None:
    mine = [replace(o, provider="aws") for o in offers]
    await record(store, poll(len(mine)), mine)

    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.offers.find_current()

    assert {o.offer_id: o for o in found} == {o.offer_id: o for o in mine}


async def test_what_did_not_change_is_not_written_and_counts_as_seen_again(store: Store) -> None:
    def at(hour: int) -> list[Offer]:
        now = NOON + hour * HOUR
        dated = offer("dated", observed_at=NOON - HOUR)
        price = "24" if hour < 2 else "25"
        return [offer("a", observed_at=now), offer("b", price, observed_at=now), dated]

    for hour in range(3):
        round_ = poll(3, NOON + hour * HOUR)
        async with store.unit_of_work(EVERY_TEAM) as unit:
            marks = await unit.offers.open_round("aws")
            news = round_news(marks, at(hour), round_.started_at)
            await unit.offers.record_round(round_, news)
            await unit.commit()
        assert [one.offer_id for one in news.offers] == [["a", "b", "dated"], [], ["b"]][hour]
        async with store.unit_of_work(EVERY_TEAM) as unit:
            found = await unit.offers.find_current()
            assert {one.offer_id: one for one in found} == {one.offer_id: one for one in at(hour)}
            assert {one.offer_id for one in await unit.offers.find_many(["a", "b", "x"])} == {"a", "b"}
            assert await unit.offers.find_as_of() == NOON + hour * HOUR

    await record(store, poll(0, NOON + 3 * HOUR, error="down"), None)
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert (await unit.offers.find_offer("a")).observed_at == NOON + 2 * HOUR


async def test_two_rounds_of_one_provider_queue_up(store: Store) -> None:
    """The second compares with what the first left, whoever began earlier."""
    await record(store, poll(1), [offer("a")])

    async def round_of(offers: list[Offer], hour: int) -> None:
        async with store.unit_of_work(EVERY_TEAM) as unit:
            marks = await unit.offers.open_round("aws")
            await asyncio.sleep(0.05)
            now = NOON + hour * HOUR
            await unit.offers.record_round(poll(len(offers), now), round_news(marks, offers, now))
            await unit.commit()

    both = [offer("a", "30"), offer("b")]
    await asyncio.gather(round_of([offer("b")], 1), round_of(both, 2), round_of([offer("b")], 3))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        last = (await unit.offers.find_feeds())[0].last_success_at
        left = {one.offer_id for one in await unit.offers.find_current()}
    assert left == ({"a", "b"} if last == NOON + 2 * HOUR else {"b"})


@contextmanager
def statements_of(store: Store) -> Iterator[list[str]]:
    """The statements that are sent to the database meanwhile."""
    engine, sent = store._engine.sync_engine, list[str]()

    def hear(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    event.listen(engine, "before_cursor_execute", hear)
    yield sent
    event.remove(engine, "before_cursor_execute", hear)


async def test_a_round_of_3000_offers_is_written_in_few_statements(store: Store) -> None:
    """Their number grows with batches, never with rows."""
    counts = []
    for few in (30, 3000):
        many = [offer(f"offer-{n}", str(10 + n)) for n in range(few)]
        dearer = [offer(o.offer_id, str(o.price_usd_per_node_hour + 1)) for o in many]
        changes = diff_rounds(many, dearer, NOON + HOUR)
        await record(store, poll(few), many)
        with statements_of(store) as sent:
            await record(store, poll(few, NOON + HOUR, changes=changes), dearer)
        counts.append(len(sent))
    assert counts[1] <= 2 * counts[0]
