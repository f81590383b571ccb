"""Pages, counts and prices by the store's indexes are those of the whole market, sorted and counted here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from broker.domain.basics.access import EVERY_TEAM
from broker.domain.basics.money import from_micro_usd, to_micro_usd
from broker.domain.holding.launches import LaunchBook
from broker.domain.market.offer import GpuPool, Offer, Stock, StockLevel, Tier
from broker.domain.market.offer_pages import (
    Names,
    OfferCount,
    OfferFilter,
    OfferOrder,
    OfferPlace,
    OfferSlice,
    choices_of,
    matching,
    price_rank,
    slices_of,
)
from broker.domain.market.round_news import round_news
from broker.domain.market.stock_pools import shared
from broker.services.market.offers import OffersService
from broker.store import Store, create_store
from tests import strategies
from tests.depth import examples
from tests.fakes.clock import FakeClock
from tests.postgres import PostgresServer
from tests.store.examples import HOUR, NOON, offer
from tests.store.test_offers import poll, record

WORDS = {"gpu": ("H100-SXM-80GB", "L40S"), "region": ("eu", "us"), "provider": ("aws", "vast", "verda")}
PRICES = ("8", "8.0000001", "8.00000010", "16", "2.5", "0.000001", "3", "1e3")


@st.composite
def markets(draw: st.DrawFn) -> list[Offer]:
    """Offers with many equal prices, words and pools; an id names its provider, as all ids do."""
    return [
        replace(
            offer(
                f"{provider}/o-{number}",
                draw(st.sampled_from(PRICES)),
                provider=provider,
                gpus_per_node=draw(st.sampled_from([1, 3, 8])),
                observed_at=draw(st.sampled_from([NOON, NOON, NOON - HOUR, NOON + HOUR])),
                gpu=draw(st.sampled_from(WORDS["gpu"])),
                region=draw(st.sampled_from(WORDS["region"])),
                tier=draw(st.sampled_from(Tier)),
            ),
            stock=Stock(
                StockLevel.SOME,
                draw(st.none() | st.integers(0, 3)),
                draw(
                    st.none() | st.builds(GpuPool, st.sampled_from(["p", "q"]), st.none() | st.integers(0, 9))
                ),
            ),
        )
        for number, provider in enumerate(draw(st.lists(st.sampled_from(WORDS["provider"]), max_size=14)))
    ]


def words(name: str) -> st.SearchStrategy[Names | None]:
    one = st.sampled_from([*WORDS[name], "nowhere"])
    return st.none() | one | st.tuples(one, one)


filters = st.builds(
    OfferFilter, words("provider"), words("gpu"), words("region"), st.none() | st.sampled_from(list(Tier))
)


async def poll_all(store: Store, market: Sequence[Offer], at: datetime = NOON) -> None:
    for provider in WORDS["provider"]:
        mine = [one for one in market if one.provider == provider]
        await record(store, poll(len(mine), at, provider=provider), mine)


def place(one: Offer) -> tuple[Decimal, str]:
    return one.price_usd_per_node_hour / one.sku.gpus_per_node, one.offer_id


def _each(word: Names) -> tuple[str, ...]:
    return (word,) if isinstance(word, str) else word


def fitting(market: Sequence[Offer], wanted: OfferFilter) -> list[Offer]:
    """Those of the whole market that fit, cheapest first, sorted here."""
    named = {"provider": wanted.provider, "region": wanted.region, "tier": wanted.tier}
    return sorted(
        (
            one
            for one in market
            if all(word is None or getattr(one, name) in _each(word) for name, word in named.items())
            and (wanted.gpu is None or one.sku.gpu in _each(wanted.gpu))
        ),
        key=place,
    )


@settings(max_examples=examples(25))
@given(markets(), filters, st.integers(1, 5))
async def test_pages_are_the_whole_market_in_parts(
    store: Store, market: list[Offer], wanted: OfferFilter, limit: int
) -> None:
    await poll_all(store, market)
    service = OffersService(store.unit_of_work, {}, FakeClock(NOON))
    pages: list[Offer] = []
    after, more = None, True
    while more:
        page, more = await service.find_page(wanted, after, limit)
        assert len(page) == limit or not more
        pages += page
        after = OfferPlace(*place(page[-1])) if page else None

    whole = LaunchBook((), NOON).with_statistics(fitting(market, wanted))
    asked_alone = wanted == OfferFilter(gpu=wanted.gpu)
    assert pages == list(shared(whole) if asked_alone else whole)
    assert pages == sorted(await service.find_offers(wanted), key=place)


@settings(max_examples=examples(25))
@given(st.data(), markets(), filters, st.sampled_from(list(OfferOrder)), st.booleans())
async def test_slices_and_prices_are_those_of_the_sorted_market(
    store: Store,
    data: st.DataObject,
    market: list[Offer],
    wanted: OfferFilter,
    order: OfferOrder,
    descending: bool,
) -> None:
    await poll_all(store, market)
    keys: dict[OfferOrder, Callable[[Offer], tuple[object, ...]]] = {
        OfferOrder.GPU_HOUR: place,
        OfferOrder.NODE_HOUR: lambda o: (to_micro_usd(o.price_usd_per_node_hour), o.offer_id),
        OfferOrder.NODES: lambda o: (-1 if o.stock.nodes is None else o.stock.nodes, o.offer_id),
    }
    mine = fitting(market, wanted)
    ordered = sorted(mine, key=keys[order], reverse=descending)
    first, limit = data.draw(st.integers(0, 15)), data.draw(st.integers(1, 6))
    async with store.unit_of_work(EVERY_TEAM) as unit:
        found = await unit.offers.find_slice(OfferSlice(wanted, first, limit), order, descending=descending)
        prices = await unit.offers.find_price_range(wanted, len(mine))
        cheapest = await unit.offers.find_cheapest_of_sellers(wanted)
        as_of = await unit.offers.find_as_of()

    assert list(found) == [one.offer_id for one in ordered[first : first + limit]]
    asked = sorted(from_micro_usd(to_micro_usd(place(one)[0])) for one in mine)
    assert prices is None if not asked else prices is not None
    if prices is not None:
        assert (prices.least_usd, prices.median_usd, prices.most_usd) == (asked[0], median(asked), asked[-1])
    expected: dict[str, str] = {}
    for one in mine:
        expected.setdefault(one.provider, one.offer_id)
    assert [(one.provider, one.offer_id) for one in cheapest] == list(expected.items())
    assert as_of == max((one.observed_at for one in market), default=None)


@settings(max_examples=examples(12))
@given(st.lists(markets(), min_size=1, max_size=3))
async def test_what_a_process_keeps_is_what_is_stored(store: Store, rounds: list[list[Offer]]) -> None:
    for number, market in enumerate(rounds):
        at = NOON + 2 * number * HOUR
        seen = [replace(one, observed_at=at) if one.observed_at == NOON else one for one in market]
        await poll_all(store, seen, at)
        expected = sorted(seen, key=place)
        async with store.unit_of_work(EVERY_TEAM) as unit:
            found = await unit.offers.find_current()
            again = await unit.offers.find_current()
            without = await unit.offers.find_current(without={"aws"})
            counts = await unit.offers.find_counts()
        assert again is found
        assert list(found) == expected
        assert list(without) == [one for one in expected if one.provider != "aws"]
        kinds = Counter((o.provider, o.sku.gpu, o.region, str(o.tier)) for o in seen)
        assert set(counts) == {OfferCount(*kind, number) for kind, number in kinds.items()}
        assert len(counts) == len(kinds)


async def test_what_was_rolled_back_is_not_kept(store: Store) -> None:
    await record(store, poll(1), [offer("a")])
    async with store.unit_of_work(EVERY_TEAM) as unit:
        marks = await unit.offers.open_round("aws")
        changed = [offer("a", "30"), offer("b")]
        await unit.offers.record_round(poll(2), round_news(marks, changed, NOON))
        assert len(await unit.offers.find_current()) == 2
        assert sum(count.offers for count in await unit.offers.find_counts()) == 2
    async with store.unit_of_work(EVERY_TEAM) as unit:
        assert await unit.offers.find_current() == (offer("a"),)
        assert sum(count.offers for count in await unit.offers.find_counts()) == 1


async def test_two_processes_see_each_others_rounds(
    postgres_server: PostgresServer, migrated_postgres: str
) -> None:
    url = postgres_server.create_database(migrated_postgres)
    one, other = create_store(url), create_store(url)
    for price in ("20", "21", "20"):
        await record(one, poll(1), [offer("a", price)])
        async with other.unit_of_work(EVERY_TEAM) as unit:
            (found,) = await unit.offers.find_current()
            assert found.price_usd_per_node_hour == Decimal(price)
    await one.close()
    await other.close()


async def test_pages_hold_what_stays_while_a_round_is_stored_between_them(store: Store) -> None:
    await record(store, poll(9), [offer(f"o-{n}", str(10 + n)) for n in range(9)])
    service = OffersService(store.unit_of_work, {}, FakeClock(NOON))
    page, _ = await service.find_page(OfferFilter(), None, 4)
    rest = [offer(f"o-{n}", str(10 + n)) for n in range(9) if n != 3]
    await record(store, poll(10), [offer("new", "5"), offer("late", "14.5"), *rest])
    later, more = await service.find_page(OfferFilter(), OfferPlace(*place(page[-1])), 9)

    assert [one.offer_id for one in page] == [f"o-{n}" for n in range(4)]
    assert [one.offer_id for one in later] == ["o-4", "late", *(f"o-{n}" for n in range(5, 9))]
    assert not more


async def test_a_page_reads_no_more_rows_than_it_shows(store: Store) -> None:
    """Both databases answer a page from an index in its order, whatever it is narrowed by."""
    if store._engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL plans by the size of the table")
    for column in ("", "provider", "gpu", "region", "tier"):
        where = f"{column} = 'x' AND " if column else ""
        asked = f"SELECT document FROM offers WHERE {where}(price_rank, offer_id) > ('0', 'a')"
        async with store._engine.connect() as connection:
            statement = f"EXPLAIN QUERY PLAN {asked} ORDER BY price_rank, offer_id LIMIT 51"
            told = " ".join(str(row) for row in await connection.execute(text(statement)))
        assert f"ix_offers_{column}_price_rank_offer_id".replace("__", "_") in told
        assert "TEMP B-TREE" not in told


@given(st.lists(strategies.exact_usd | strategies.micro_usd, max_size=8), st.sampled_from([1, 3, 7, 8]))
def test_ranks_sort_as_prices_do(prices: list[Decimal], gpus: int) -> None:
    per_gpu = [price / gpus for price in prices]
    assert sorted(per_gpu) == sorted(per_gpu, key=price_rank)
    for one in per_gpu:
        for other in per_gpu:
            assert (price_rank(one) == price_rank(other)) == (one == other)
    assert price_rank(Decimal(-1)) < price_rank(Decimal("1e-50")) < price_rank(Decimal("1e30"))


kinds = st.builds(
    OfferCount,
    st.sampled_from("abc"),
    st.sampled_from("gh"),
    st.sampled_from("rs"),
    st.sampled_from("tu"),
    st.integers(1, 4),
)


@given(
    st.lists(kinds, max_size=8, unique_by=lambda k: (k.provider, k.gpu, k.region, k.tier)),
    st.builds(OfferFilter, st.none() | st.sampled_from("ab"), st.none() | st.just("g")),
    st.sampled_from(["provider", "gpu", "region", "tier"]),
    st.integers(0, 20),
    st.integers(1, 9),
    st.booleans(),
)
def test_a_page_of_groups_is_cut_from_the_sorted_offers(
    counts: list[OfferCount], wanted: OfferFilter, group: str, first: int, limit: int, descending: bool
) -> None:
    rank = {"a": 2, "b": 0, "c": 1}
    whole = [
        (getattr(kind, group), number)
        for kind in sorted(
            matching(counts, wanted),
            key=lambda k: (rank.get(getattr(k, group), 0), getattr(k, group)),
            reverse=descending,
        )
        for number in range(kind.offers)
    ]
    parts = slices_of(
        counts, wanted, group, lambda word: rank.get(word, 0), first, limit, descending=descending
    )
    shown = [getattr(part.wanted, group) for part in parts for _ in range(part.limit)]
    assert shown == [word for word, _ in whole[first : first + limit]]
    words = [word for word, _ in whole]
    assert all(words.index(shown[0]) + parts[0].first == first for _ in parts[:1])
    assert all(part.first == 0 for part in parts[1:])
    for name in ("provider", "gpu"):
        others = matching(counts, replace(wanted, **{name: None}))
        assert choices_of(counts, wanted, name) == {getattr(kind, name) for kind in others}
