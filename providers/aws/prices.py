"""On-demand prices from the unsigned bulk price list (CSV), one region a file, read line by line.

The file has some lines of metadata, then a header, then hundreds of thousands of rows of every EC2
charge. Units: USD per instance-hour. It says nothing of stock. GPU types also carry a
``MarketOption=CapacityBlock`` row at $0.00 that passes every other filter; it is no price. The same prices
are those of capacity reservations that start later (``future``).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.offer import NativePrice, Offer, OfferBatch, RejectedRow, Tier
from providers.aws.future import future_offers
from providers.aws.nodes import (
    PROVIDER,
    billing,
    compliance,
    country_of,
    known_types,
    parse_usd,
    sku_of,
)
from providers.payload import RowRejected

COLUMNS = (
    "SKU",
    "TermType",
    "Unit",
    "PricePerUnit",
    "Currency",
    "Instance Type",
    "Tenancy",
    "Operating System",
    "Pre Installed S/W",
    "CapacityStatus",
    "MarketOption",
    "Region Code",
)
_WANTED = {
    "TermType": ("OnDemand",),
    "Tenancy": ("Shared",),
    "Operating System": ("Linux",),
    "Pre Installed S/W": ("", "NA"),
    "CapacityStatus": ("Used",),
    "Unit": ("Hrs",),
}
_REGION = re.compile(r"[a-z0-9-]{4,40}")
_HEADER_WITHIN_LINES = 20
_MOST_REJECTED = 500


@dataclass(frozen=True, slots=True)
class _Price:
    usd_per_hour: Decimal
    effective: str


class PriceListReader:
    """Reads a price list line by line and keeps only the prices of known GPU types.

    ``region`` None: every region that the file names. Memory does not grow with the file.
    """

    def __init__(self, region: str | None = None) -> None:
        self._region = region
        self._columns: list[str] | None = None
        self._lines = 0
        self._others = 0
        self._prices: dict[tuple[str, str], _Price] = {}
        self._rejected: list[RejectedRow] = []
        self._known = frozenset(known_types())

    def feed(self, line: str) -> None:
        """Reads one line; PayloadUnreadable when the file is not a price list."""
        self._lines += 1
        if self._columns is None:
            self._seek_header(line)
        elif "OnDemand" in line and "Linux" in line:
            self._read(line)
        elif line.strip():
            self._others += 1

    def batch(self, observed_at: datetime) -> OfferBatch:
        """The offers found; PayloadUnreadable when there was no header."""
        if self._columns is None:
            raise PayloadUnreadable(PROVIDER, f"price list without a header in {self._lines} lines")
        offers = tuple(
            _offer(region, instance_type, price.usd_per_hour, observed_at)
            for (region, instance_type), price in sorted(self._prices.items())
        )
        return OfferBatch((*offers, *future_offers(offers)), (*self._rejected, *self._skipped()))

    def _skipped(self) -> Iterable[RejectedRow]:
        if self._others:
            where = self._region or "price list"
            yield RejectedRow(
                f"{where}: {self._others} rows", "not an hourly price of a Linux GPU instance, shared tenancy"
            )

    def _seek_header(self, line: str) -> None:
        cells = _cells(line)
        if cells[:1] == ["SKU"]:
            missing = [name for name in COLUMNS if name not in cells]
            if missing:
                raise PayloadUnreadable(PROVIDER, f"price list lacks the columns {', '.join(missing)}")
            self._columns = cells
        elif self._lines >= _HEADER_WITHIN_LINES:
            raise PayloadUnreadable(PROVIDER, f"no header in the first {self._lines} lines of the price list")

    def _read(self, line: str) -> None:
        assert self._columns is not None
        cells = _cells(line)
        if len(cells) != len(self._columns):
            self._reject(line[:80], f"{len(cells)} cells, expected {len(self._columns)}")
            return
        row = dict(zip(self._columns, cells, strict=True))
        if not self._is_wanted(row):
            self._others += 1
            return
        name = f"{row['Region Code']} {row['Instance Type']} {row['SKU']}"
        try:
            self._keep(row)
        except RowRejected as error:
            self._reject(name, str(error))

    def _is_wanted(self, row: Mapping[str, str]) -> bool:
        if any(row[column] not in values for column, values in _WANTED.items()):
            return False
        return row["Instance Type"] in self._known or row.get("GPU", "") not in ("", "0", "NA")

    def _keep(self, row: Mapping[str, str]) -> None:
        market, region = row["MarketOption"], row["Region Code"]
        if market != "OnDemand":
            raise RowRejected(f"market option {market!r} is sold by search, not at this price")
        if not _REGION.fullmatch(region) or region != (self._region or region):
            raise RowRejected(f"region {region[:40]!r} in the list of {self._region}")
        sku_of(row["Instance Type"])
        price = _Price(parse_usd(row["PricePerUnit"], row["Currency"]), row.get("EffectiveDate", ""))
        key = (region, row["Instance Type"])
        before = self._prices.get(key)
        if before is not None and before.usd_per_hour != price.usd_per_hour:
            newest, older = sorted((before, price), key=lambda p: (p.effective, p.usd_per_hour), reverse=True)
            self._prices[key] = newest
            raise RowRejected(f"a second price, {older.usd_per_hour}; kept {newest.usd_per_hour}")
        self._prices[key] = price

    def _reject(self, row: str, reason: str) -> None:
        if len(self._rejected) < _MOST_REJECTED:
            self._rejected.append(RejectedRow(row, reason))
        else:
            self._others += 1


def parse_price_list(lines: Iterable[str], observed_at: datetime, region: str | None = None) -> OfferBatch:
    """A whole price list at once."""
    reader = PriceListReader(region)
    for line in lines:
        reader.feed(line)
    return reader.batch(observed_at)


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n")]), [])
    except csv.Error:
        return []


def _offer(region: str, instance_type: str, usd_per_hour: Decimal, observed_at: datetime) -> Offer:
    return Offer(
        offer_id=f"aws/on_demand/{region}/{instance_type}",
        provider=PROVIDER,
        sku=sku_of(instance_type),
        region=region,
        tier=Tier.ON_DEMAND,
        price_usd_per_node_hour=usd_per_hour,
        observed_at=observed_at,
        source="GET /offers/v1.0/aws/AmazonEC2/current/{region}/index.csv",
        native=NativePrice(usd_per_hour, "USD", "instance-hour"),
        country=country_of(region),
        min_hours=billing().min_hours,
        billing_increment_s=billing().increment_s,
        compliance=compliance(),
    )
