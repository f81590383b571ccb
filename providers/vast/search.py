"""Reads every offer of a search, although an answer has 64 rows at most.

Rows are sorted by price, so the price serves as pagination cursor: the next search starts at the highest
price of the last answer. That takes one call per 64 rows; one search per GPU name would take some thirty
calls at least. Large GPUs are searched first, since small ones are most of the market. A poll makes
``MOST_CALLS`` calls at most: ten a minute are allowed, and a poll has to end before the next one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from typing import Any

from broker.domain.market.offer import RejectedRow

LIMIT = 3000
SHORTEST_CUT = 64
"""An answer with fewer rows was never cut off."""
MOST_CALLS = 7
LARGE_GPU_MIB = 40_000
SIZES: Mapping[str, Mapping[str, int]] = {
    "GPUs of 40 GB and more": {"gte": LARGE_GPU_MIB},
    "GPUs of less than 40 GB": {"lt": LARGE_GPU_MIB},
}

Wish = Mapping[str, Any]
Ask = Callable[[Wish], Awaitable[list[Any]]]


async def search_all(ask: Ask, wish: Wish) -> tuple[list[Any], list[RejectedRow]]:
    """All rows that match ``wish``, each once, and a text about rows that were left out.

    ``ask`` makes one search and returns its rows. Its filters ``gpu_ram``,
    ``dph_total`` and ``id`` are set here.
    """
    rows: dict[str, Any] = {}
    left_out: list[RejectedRow] = []
    calls_left = MOST_CALLS
    for size, memory in SIZES.items():
        longest, cursor = SHORTEST_CUT, _Cursor()
        while calls_left:
            page = await ask({**wish, "gpu_ram": memory, **cursor.filters})
            calls_left -= 1
            is_last = len(page) < longest
            longest = max(longest, len(page))
            news = {_identity(row): row for row in page if _identity(row) not in rows}
            rows |= news
            if is_last:
                break
            repeats = cursor.hides_seen and not news
            if repeats or not cursor.move_past(page):
                left_out.append(RejectedRow(f"search for {size}", f"it repeats itself {cursor}"))
                break
        else:
            words = f"not asked for {cursor}: a poll makes at most {MOST_CALLS} calls"
            left_out.append(RejectedRow(f"search for {size}", words))
    return list(rows.values()), left_out


class _Cursor:
    """The price from which a search continues.

    Rows of exactly that price are returned again. Where they fill a whole answer, those already seen are
    excluded by their ids.
    """

    def __init__(self) -> None:
        self._price: Decimal | None = None
        self._seen: list[int] = []
        self.hides_seen = False

    @property
    def filters(self) -> dict[str, Any]:
        """The filters to add to the search."""
        if self._price is None:
            return {}
        price = {"dph_total": {"gte": float(self._price)}}
        return {**price, "id": {"notin": self._seen}} if self.hides_seen else price

    def move_past(self, page: list[Any]) -> bool:
        """Moves to the highest price of ``page``; returns whether there is one."""
        prices = [price for row in page if (price := _price(row)) is not None]
        if not prices:
            return False
        dearest = max(prices)
        at_dearest = [row["id"] for row in page if _price(row) == dearest and isinstance(row.get("id"), int)]
        self.hides_seen = dearest in {min(prices), self._price}
        self._seen = [*self._seen, *at_dearest] if dearest == self._price else at_dearest
        self._price = dearest
        return True

    def __str__(self) -> str:
        return "at all" if self._price is None else f"from ${self._price} an hour on"


def _identity(row: Any) -> str:
    """The identity of a row: its id, or all of its fields if it has none."""
    return str(row.get("id", row) if isinstance(row, dict) else row)


def _price(row: Any) -> Decimal | None:
    price = row.get("dph_total") if isinstance(row, dict) else None
    return Decimal(price) if isinstance(price, int | Decimal) else None
