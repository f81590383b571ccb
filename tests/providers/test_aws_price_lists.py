"""Price lists read apart from polls: what a poll waits for, what it takes, and what is not asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import respx

from broker.domain.basics.errors import PayloadUnreadable, ProviderUnavailable, RateLimited
from broker.domain.market.offer import OfferBatch, Tier
from providers.aws.errors import classify
from providers.aws.price_lists import PriceLists, Waits
from providers.http import HttpPolicy, ProviderHttp

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
LIST = (Path(__file__).parents[2] / "fixtures/providers/aws/index-us-east-1.csv").read_bytes()
REGION = "us-east-1"


class Slow(httpx.AsyncByteStream):
    """The list, whose second half waits for ``gate``, and which breaks off if ``breaks``."""

    def __init__(self, gate: asyncio.Event, breaks: bool = False) -> None:
        self._gate, self._breaks = gate, breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        half = len(LIST) // 2
        yield LIST[:half]
        await self._gate.wait()
        if self._breaks:
            raise httpx.ReadError("gone")
        yield LIST[half:]


@dataclass
class PriceHost:
    """A price host: answers in turn (the last one again and again), and what it was asked."""

    answers: list[Callable[[], httpx.Response]]
    asked: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]()


Open = Callable[..., PriceLists]


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    made: list[PriceLists] = []
    with respx.mock(assert_all_called=False) as router:

        def build(
            host: PriceHost,
            max_age_s: float = 3600.0,
            first_s: float = 5.0,
            later_s: float = 5.0,
            **more: Any,
        ) -> PriceLists:
            base = f"http://prices{len(made)}.test"
            router.get(url__startswith=base).mock(side_effect=host)
            http = ProviderHttp("aws", base, classify, HttpPolicy(attempts=1))
            made.append(PriceLists(http, max_age_s, Waits(first_s, later_s), **more))
            return made[-1]

        yield build
        for each in made:
            await each.aclose()


def whole(etag: str = "") -> httpx.Response:
    return httpx.Response(200, content=LIST, headers={"etag": etag} if etag else {})


async def poll(lists: PriceLists, at: datetime = AT) -> OfferBatch:
    (batch,) = await lists.batches([REGION], at)
    return batch


def reasons(batch: OfferBatch) -> list[str]:
    return [row.reason for row in batch.rejected if row.row == f"price list of {REGION}"]


async def test_a_list_that_takes_long_does_not_hold_the_poll(opened: Open) -> None:
    gate = asyncio.Event()
    host = PriceHost([lambda: httpx.Response(200, stream=Slow(gate))])
    lists = opened(host, first_s=0.01)
    first, second = await poll(lists), await poll(lists, AT + HOUR / 60)
    assert (first.offers, second.offers) == ((), ())
    assert (
        reasons(first)
        == reasons(second)
        == ["the price list is still being downloaded; a later poll will have its prices"]
    )
    gate.set()
    third = first
    while not third.offers:
        third = await poll(lists, AT + 2 * HOUR / 60)
    assert sum(offer.tier is Tier.ON_DEMAND for offer in third.offers) == 49
    assert {offer.observed_at for offer in third.offers} == {AT}
    assert (reasons(third), len(host.asked)) == ([], 1)


async def test_a_poll_that_is_cut_off_leaves_the_reading_alone(opened: Open) -> None:
    gate = asyncio.Event()
    host = PriceHost([lambda: httpx.Response(200, stream=Slow(gate))])
    lists = opened(host)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(poll(lists), 0.01)
    gate.set()
    assert (await poll(lists)).offers
    assert len(host.asked) == 1


async def test_a_list_that_is_young_is_not_asked_for(opened: Open) -> None:
    host = PriceHost([whole])
    lists = opened(host, max_age_s=3600.0)
    assert await poll(lists) == await poll(lists, AT + HOUR - timedelta(seconds=1))
    await poll(lists, AT + HOUR)
    assert len(host.asked) == 2


async def test_a_list_that_has_not_changed_is_not_read_again(opened: Open) -> None:
    host = PriceHost([lambda: whole('"v1"'), lambda: httpx.Response(304), lambda: whole('"v2"')])
    lists = opened(host, max_age_s=0.0)
    first, second = await poll(lists), await poll(lists, AT + HOUR)
    assert [offer.offer_id for offer in first.offers] == [offer.offer_id for offer in second.offers]
    assert {offer.observed_at for offer in second.offers} == {AT + HOUR}
    await poll(lists, AT + 2 * HOUR)
    await poll(lists, AT + 3 * HOUR)
    tags = [request.headers.get("if-none-match") for request in host.asked]
    assert tags == [None, '"v1"', '"v1"', '"v2"']


async def test_an_older_list_serves_while_a_newer_one_is_read_or_cannot_be_had(opened: Open) -> None:
    gate = asyncio.Event()
    slow = [whole, lambda: httpx.Response(200, stream=Slow(gate))]
    lists = opened(PriceHost(slow), max_age_s=0.0, later_s=0.01)
    await poll(lists)
    later = await poll(lists, AT + HOUR)
    assert {offer.observed_at for offer in later.offers} == {AT}
    assert reasons(later) == ["as of 2026-11-21 12:00 UTC: a newer one is still being read"]
    broken = opened(PriceHost([whole, lambda: httpx.Response(503, text="down")]), max_age_s=0.0)
    await poll(broken)
    later = await poll(broken, AT + HOUR)
    assert later.offers
    assert "HTTP 503" in reasons(later)[0]


async def test_a_list_that_breaks_off_begins_anew_with_the_next_poll(opened: Open) -> None:
    gate = asyncio.Event()
    gate.set()
    host = PriceHost([lambda: httpx.Response(200, stream=Slow(gate, breaks=True)), whole])
    lists = opened(host)
    with pytest.raises(ProviderUnavailable, match="ReadError"):
        await poll(lists)
    assert len((await poll(lists)).offers) == 49 + 37
    assert len(host.asked) == 2


async def test_the_price_hosts_wish_to_wait_is_kept_over_polls(opened: Open) -> None:
    clock = [1000.0]
    host = PriceHost([lambda: httpx.Response(429, headers={"retry-after": "90"}), whole])
    lists = opened(host, monotonic=lambda: clock[0])
    with pytest.raises(RateLimited):
        await poll(lists)
    clock[0] += 60
    with pytest.raises(RateLimited) as caught:
        await poll(lists)
    assert (caught.value.retry_after_s, len(host.asked)) == (30.0, 1)
    clock[0] += 30
    assert (await poll(lists)).offers


async def test_another_file_is_an_error_and_tried_again(opened: Open) -> None:
    host = PriceHost([lambda: httpx.Response(200, text="<html>\nno list\n</html>"), whole])
    lists = opened(host)
    with pytest.raises(PayloadUnreadable):
        await poll(lists)
    assert (await poll(lists)).offers


async def test_closing_ends_what_is_being_read(opened: Open) -> None:
    lists = opened(PriceHost([lambda: httpx.Response(200, stream=Slow(asyncio.Event()))]), first_s=0.01)
    await poll(lists)
    await lists.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}
