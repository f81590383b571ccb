"""What every client of a seller does the same way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.basics.window import Window
from providers.client import Query, all_pages
from providers.http import Operation, Reply
from providers.rows import as_utc, window_between

MOST = 20


def page(body: str) -> Reply:
    return Reply("seller", Operation.LEASES, 200, {}, body.encode(), repeatable=True)


class Book:
    """A list of ``last`` pages; after ``circle`` of them it begins again."""

    def __init__(self, last: int, circle: int | None = None) -> None:
        self.last, self.circle, self.asked = last, circle, list[Query]()

    async def ask(self, query: Query) -> Reply:
        self.asked.append(query)
        return page(query["page"])

    def following(self, reply: Reply, read: int) -> Query | None:
        if read == self.circle:
            return {"page": "1"}
        return {"page": str(read + 1)} if int(reply.text) < self.last else None


@given(last=st.integers(1, MOST))
async def test_every_page_is_read_once_in_order_and_keeps_the_query(last: int) -> None:
    book = Book(last)
    pages = await all_pages(book.ask, book.following, {"page": "1", "tag": "ours"}, MOST)
    assert [int(reply.text) for reply in pages] == list(range(1, last + 1))
    assert all(query["tag"] == "ours" for query in book.asked)


@pytest.mark.parametrize(("last", "circle", "calls"), [(MOST + 1, None, MOST), (10**9, 3, 3)])
async def test_a_list_without_an_end_is_unreadable(last: int, circle: int | None, calls: int) -> None:
    book = Book(last, circle)
    with pytest.raises(PayloadUnreadable, match="without an end"):
        await all_pages(book.ask, book.following, {"page": "1"}, MOST)
    assert len(book.asked) == calls


def test_a_time_without_a_zone_is_utc_and_others_are_converted() -> None:
    east = timezone(timedelta(hours=2))
    assert as_utc(datetime.fromisoformat("2026-07-01T12:00")) == datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert as_utc(datetime(2026, 7, 1, 12, tzinfo=east)).hour == 10


def test_only_a_window_with_both_ends_in_order_is_one() -> None:
    start, end = datetime(2026, 7, 1, tzinfo=UTC), datetime.fromisoformat("2026-07-02")
    assert window_between(start, end) == Window(start, end.replace(tzinfo=UTC))
    assert [window_between(*ends) for ends in ((None, end), (start, None), (start, start))] == [None] * 3
