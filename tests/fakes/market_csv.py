"""The CSV file of a market's history, as ``api.schemas.market.history`` reads it."""

from __future__ import annotations

import csv
import io
from datetime import datetime

from api.schemas.base.times import format_time
from api.schemas.market.history import COLUMNS
from broker.domain.basics.money import format_usd
from broker.domain.market.market import PricePoint
from broker.domain.market.market_history import MarketHistory


def points_csv(history: MarketHistory) -> str:
    """The CSV text of a history's points."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for point in history.points:
        writer.writerow(_row(point))
    return out.getvalue()


def _row(point: PricePoint) -> tuple[str, ...]:
    nodes = "" if point.stock_nodes is None else str(point.stock_nodes)
    at: datetime = point.at
    price = format_usd(point.price_usd_per_node_hour)
    return format_time(at), point.offer_id, price, nodes, str(point.available).lower()
