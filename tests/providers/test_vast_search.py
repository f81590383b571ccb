"""Every offer of a market is seen although a search shows 64 rows of it at most."""

from __future__ import annotations

import random
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers.vast.adapter import cuda_of
from providers.vast.search import LARGE_GPU_MIB, MOST_CALLS, search_all
from tests.depth import examples

Row = dict[str, Any]
LARGE, SMALL = 81_559, 24_564
WISH = {"verified": {"eq": True}}


class Market:
    """Rows for sale; an answer shows the cheapest ``shown`` that pass the filters."""

    def __init__(self, rows: list[Row], shown: int = 64) -> None:
        self.rows, self.shown = rows, shown
        self.asked: list[Mapping[str, Any]] = []

    async def search(self, wish: Mapping[str, Any]) -> list[Any]:
        assert wish["verified"] == {"eq": True}
        self.asked.append(wish)
        found = [row for row in self.rows if all(_passes(row[n], wish.get(n, {})) for n in row)]
        return sorted(found, key=lambda row: row["dph_total"])[: self.shown]


def _passes(value: Any, rule: Mapping[str, Any]) -> bool:
    return (
        value >= rule.get("gte", value)
        and ("lt" not in rule or value < rule["lt"])
        and value not in rule.get("notin", ())
    )


def offers(count: int, memory: int = LARGE, first: int = 0, usd: str | None = None) -> list[Row]:
    return [
        {"id": first + n, "gpu_ram": memory, "dph_total": Decimal(usd) if usd else Decimal(n + 1) / 8}
        for n in range(count)
    ]


def ids(rows: list[Any]) -> list[int]:
    return sorted(row["id"] for row in rows)


async def test_large_gpus_behind_64_cheap_ones_are_seen() -> None:
    market = Market([*offers(150, SMALL), *offers(3, LARGE, 1000, "19.2")])
    rows, left_out = await search_all(market.search, WISH)
    assert ids(rows) == [*range(150), 1000, 1001, 1002]
    assert left_out == []
    assert len(market.asked) == 1 + 3


async def test_a_seller_that_shows_all_is_asked_twice_for_each_size() -> None:
    market = Market([*offers(900, SMALL), *offers(500, LARGE, 1000)], shown=3000)
    rows, left_out = await search_all(market.search, WISH)
    assert (len(rows), left_out) == (1400, [])
    assert len(market.asked) == 4


async def test_a_market_of_few_rows_is_asked_once_for_each_size() -> None:
    market = Market(offers(63, LARGE))
    assert len((await search_all(market.search, WISH))[0]) == 63
    assert len(market.asked) == 2


async def test_more_rows_of_one_price_than_an_answer_shows() -> None:
    market = Market([*offers(200, usd="2.5"), *offers(10, first=500, usd="3")])
    rows, left_out = await search_all(market.search, WISH)
    assert ids(rows) == [*range(200), *range(500, 510)]
    assert left_out == []


async def test_what_a_poll_has_no_calls_for_is_told() -> None:
    market = Market([*offers(320, LARGE), *offers(400, SMALL, 1000)])
    rows, left_out = await search_all(market.search, WISH)
    assert len(market.asked) == MOST_CALLS
    assert set(range(320)) <= set(ids(rows)), "large GPUs come first"
    (told,) = left_out
    assert told.row == "search for GPUs of less than 40 GB"
    assert "a poll makes at most 7 calls" in told.reason


async def test_a_seller_that_repeats_itself_is_not_asked_for_ever() -> None:
    page = offers(64, usd="2")

    async def same(wish: Mapping[str, Any]) -> list[Any]:
        return page if wish["gpu_ram"] == {"gte": LARGE_GPU_MIB} else []

    rows, (told,) = await search_all(same, WISH)
    assert len(rows) == 64
    assert told.reason == "it repeats itself from $2 an hour on"


async def test_rows_that_cannot_be_read_are_kept_for_whoever_reads_them() -> None:
    async def odd(wish: Mapping[str, Any]) -> list[Any]:
        return [None, {"gpu_ram": 1}, "row"] if wish["gpu_ram"] == {"gte": LARGE_GPU_MIB} else []

    assert (await search_all(odd, WISH))[0] == [None, {"gpu_ram": 1}, "row"]


@settings(max_examples=examples(40), derandomize=True, deadline=None)
@given(
    prices=st.lists(st.integers(1, 12), max_size=220),
    shown=st.sampled_from([64, 65, 100, 3000]),
    seed=st.integers(0, 2**16),
)
async def test_all_rows_are_found_or_some_are_said_to_be_left_out(
    prices: list[int], shown: int, seed: int
) -> None:
    draw = random.Random(seed)
    rows = [
        {"id": n, "gpu_ram": draw.choice([LARGE, SMALL]), "dph_total": Decimal(price) / 4}
        for n, price in enumerate(prices)
    ]
    market = Market(rows, shown)
    found, left_out = await search_all(market.search, WISH)
    assert len(market.asked) <= MOST_CALLS
    assert len(found) == len(set(ids(found)))
    assert ids(found) == ids(rows) or left_out


@pytest.mark.parametrize(
    ("image", "cuda"),
    [
        ("pytorch/pytorch:2.8.0-cuda12.8-cudnn9-devel", "12.8"),
        ("nvidia/cuda:13.0.1-devel-ubuntu24.04", "13.0"),
        ("vastai/base", None),
    ],
)
def test_the_image_tells_which_cuda_it_needs(image: str, cuda: str | None) -> None:
    assert cuda_of(image) == (None if cuda is None else Decimal(cuda))
