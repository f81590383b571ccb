"""The manifest of an exported file: hash, number of rows, totals, and time.

FOCUS rows of capacity that is bought in advance have prices twice: on the Purchase row and on the hours that
it covers. As the specification requires, sums of ``ListCost`` and ``ContractedCost`` leave one of them out,
here the Purchase. ``BilledCost`` and ``EffectiveCost`` count each amount once already. Rows may be in several
currencies; all totals are in USD.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from api.schemas.base.times import format_time
from broker.domain.basics.money import CENT, ZERO, format_usd
from broker.domain.spend.spend import TAXES

READ_BYTES = 1 << 20
CATEGORY = "ChargeCategory"
COVERED_TWICE = frozenset({"ListCost", "ContractedCost"})
IN_USD = {"BilledCost": "x_BilledCostUsd", "EffectiveCost": "x_EffectiveCostUsd"}
RATE = "x_ExchangeRate"


def manifest(
    *,
    data_set: str,
    as_of: str,
    sha256: str,
    rows: int,
    totals_usd: Mapping[str, Decimal],
    version: str | None = None,
) -> dict[str, Any]:
    """The manifest as plain data; ``totals_usd`` by column."""
    return {
        "data_set": data_set,
        "version": version,
        "as_of": as_of,
        "sha256": sha256,
        "rows": rows,
        "totals_usd": {name: _to_the_cent(total) for name, total in totals_usd.items()},
        "taxes": TAXES,
    }


def _to_the_cent(usd: Decimal) -> str:
    """The amount with at least two decimals (a CSV file has ``164.0``)."""
    whole = usd.quantize(CENT)
    return format_usd(whole if whole == usd else usd)


def totals_of(path: Path, columns: Sequence[str]) -> tuple[int, dict[str, Decimal]]:
    """The number of rows of a CSV file and the sums of ``columns``, read back from the file."""
    totals = dict.fromkeys(columns, ZERO)
    rows = 0
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows += 1
            _add(totals, row)
    return rows, totals


def _add(totals: dict[str, Decimal], row: Mapping[str, str]) -> None:
    """Adds a row's amounts to the sum of each column."""
    is_purchase = row.get(CATEGORY) == "Purchase"
    for column in totals:
        if not (is_purchase and column in COVERED_TWICE):
            totals[column] += _usd_of(row, column)


def _usd_of(row: Mapping[str, str], column: str) -> Decimal:
    """The amount of a row in USD; months that were closed by an older version are in USD as they stand."""
    if told := row.get(IN_USD.get(column, "")):
        return Decimal(told)
    amount = Decimal(row[column] or "0")
    return amount if column in IN_USD else amount * Decimal(row.get(RATE) or "1")


def sha256_of(path: Path) -> str:
    """The hex digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


async def streamed_manifest(
    chunks: AsyncIterator[bytes], *, data_set: str, version: str, as_of: datetime, columns: Sequence[str]
) -> dict[str, Any]:
    """The manifest of a CSV stream that is counted and not stored."""
    digest, rows = hashlib.sha256(), 0
    totals = dict.fromkeys(columns, ZERO)
    at: dict[str, int] = {}
    async for chunk in chunks:
        digest.update(chunk)
        for cells in csv.reader(chunk.decode().splitlines(keepends=True)):
            if not at:
                wanted = (*columns, CATEGORY, *IN_USD.values(), RATE)
                at = {name: cells.index(name) for name in wanted if name in cells}
                continue
            rows += 1
            _add(totals, {name: cells[index] for name, index in at.items()})
    return manifest(
        data_set=data_set,
        version=version,
        as_of=format_time(as_of),
        sha256=digest.hexdigest(),
        rows=rows,
        totals_usd=totals,
    )
