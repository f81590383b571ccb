"""Recorded markets in files: a market document per instant, or one market and a CSV file of changes.

A folder has either several market documents (``*.json``, as ``broker offers --json`` prints them, each with
its ``as_of``), or ``market.json`` with the last state of each offer and ``prices.csv`` with a row per change:
``at,offer_id,price_usd_per_node_hour,stock_nodes,available`` (``stock_nodes`` empty: unknown; ``available``:
true or false).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path

from api.schemas.base.csv_reader import read_table
from api.schemas.base.document import input_error
from api.schemas.base.times import parse_time
from api.schemas.market.market import read_market
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import plain_digits
from broker.domain.market.market import PricePoint
from broker.domain.market.market_history import MarketHistory, history_of
from broker.domain.market.offer import Offer

COLUMNS = ("at", "offer_id", "price_usd_per_node_hour", "stock_nodes", "available")
MARKET, PRICES = "market.json", "prices.csv"
EXPECTED = f"a folder with {MARKET} and {PRICES}, or with market documents (*.json) of two instants or more"
TRUTH = {"true": True, "false": False}
MOST_PROBLEMS = 20


def read_history(folder: Path, read_text: Callable[[Path], str]) -> MarketHistory:
    """The history of a folder. Raises InputError with every problem found, at most the first twenty."""
    if not folder.is_dir():
        raise InputError(str(folder), (FieldProblem("", "no such folder", EXPECTED),))
    if (folder / PRICES).is_file():
        market = read_market(read_text(folder / MARKET), str(folder / MARKET))
        offers = {offer.offer_id: offer for offer in market.offers}
        points = read_points(read_text(folder / PRICES), str(folder / PRICES), offers)
        return MarketHistory(offers, points, market.as_of)
    files = sorted(folder.glob("*.json"))
    if len(files) < 2:
        found = f"{len(files)} market documents" if len(files) != 1 else "one market document"
        raise InputError(str(folder), (FieldProblem("", found, EXPECTED),))
    markets = sorted(
        ((market.as_of, market.offers) for market in (read_market(read_text(f), str(f)) for f in files)),
        key=lambda pair: pair[0],
    )
    return history_of(markets)


def read_points(text: str, source: str, offers: Mapping[str, Offer]) -> tuple[PricePoint, ...]:
    """The points of a CSV text in the order of time. InputError names line, column, found and expected."""
    columns, rows = read_table(text, source)
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        problem = FieldProblem("", f"no column {', '.join(missing)}", f"columns {','.join(COLUMNS)}", 1)
        raise input_error(source, [problem])
    points: list[PricePoint] = []
    problems: list[FieldProblem] = []
    for line, row in rows:
        found = list(_problems_of(row, line, columns, offers))
        problems.extend(found)
        if len(problems) >= MOST_PROBLEMS:
            break
        if not found:
            points.append(_point(row))
    if problems:
        raise input_error(source, problems[:MOST_PROBLEMS])
    return tuple(sorted(points, key=lambda point: point.at))


def _problems_of(
    row: Mapping[str, str | None], line: int, columns: Sequence[str], offers: Mapping[str, Offer]
) -> Iterator[FieldProblem]:
    rules: tuple[tuple[str, Callable[[str], object], str], ...] = (
        ("at", parse_time, "a time with its zone such as 2026-11-23T00:00:00Z"),
        ("offer_id", offers.__getitem__, f"the id of an offer in {MARKET}"),
        ("price_usd_per_node_hour", _price, "a number above 0"),
        ("stock_nodes", _nodes, "a whole number of at least 0, or an empty cell"),
        ("available", TRUTH.__getitem__, "true or false"),
    )
    for name, read, expected in rules:
        text = row[name]
        try:
            read(text or "")
        except (ValueError, KeyError, InvalidOperation):
            shown, column = "nothing" if not text else repr(text), columns.index(name) + 1
            yield FieldProblem(f"/{name}", shown, expected, line, column)


def _point(row: Mapping[str, str]) -> PricePoint:
    return PricePoint(
        row["offer_id"],
        parse_time(row["at"]),
        _price(row["price_usd_per_node_hour"]),
        _nodes(row["stock_nodes"]),
        TRUTH[row["available"]],
    )


def _price(text: str) -> Decimal:
    price = Decimal(plain_digits(text))
    if not price.is_finite() or price <= 0:
        raise ValueError
    return price


def _nodes(text: str) -> int | None:
    if text == "":
        return None
    nodes = int(plain_digits(text))
    if nodes < 0:
        raise ValueError
    return nodes
