"""What an exported file is: its hash, how many rows, what they sum to, and of when."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from api.schemas.times import format_time
from broker.domain.money import CENT, ZERO, format_usd
from broker.domain.spend import TAXES

READ_BYTES = 1 << 20


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
    """With two places at least: a CSV's ``164.0`` is read as money."""
    whole = usd.quantize(CENT)
    return format_usd(whole if whole == usd else usd)


def totals_of(path: Path, columns: Sequence[str]) -> tuple[int, dict[str, Decimal]]:
    """Rows of a CSV file and the sums of ``columns``, read back from what was written."""
    totals = dict.fromkeys(columns, ZERO)
    rows = 0
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows += 1
            for column in columns:
                totals[column] += Decimal(row[column] or "0")
    return rows, totals


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


async def streamed_manifest(
    chunks: AsyncIterator[bytes], *, data_set: str, version: str, as_of: datetime, columns: Sequence[str]
) -> dict[str, Any]:
    """The manifest of a CSV that is made to be counted and not kept."""
    digest, rows = hashlib.sha256(), 0
    totals = dict.fromkeys(columns, ZERO)
    header: list[str] | None = None
    async for chunk in chunks:
        digest.update(chunk)
        for cells in csv.reader(chunk.decode().splitlines(keepends=True)):
            if header is None:
                header = cells
                continue
            rows += 1
            for column in columns:
                totals[column] += Decimal(cells[header.index(column)] or "0")
    return manifest(
        data_set=data_set,
        version=version,
        as_of=format_time(as_of),
        sha256=digest.hexdigest(),
        rows=rows,
        totals_usd=totals,
    )
