"""A quarter of a company's bill: more than 100,000 rows, streamed, checked, and equal to the ledger."""

from __future__ import annotations

import csv
import io
import random
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from api.export.focus_csv import focus_csv
from broker.domain.charging import owed_usd
from broker.domain.focus_check import check_focus
from broker.domain.focus_columns import FocusVersion
from broker.domain.offer import CancelRule, Tier
from broker.domain.reservation import Reservation
from broker.services.spend import SpendService
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import ADMIN, an_offer, slot_terms
from tests.fakes.store import Tables
from tests.focus.examples import bought

HOURS = 92 * 24
ROWS = 100_000
SLACK_BYTES = 1_000_000


def a_quarter(seed: int) -> list[Reservation]:
    """Random purchases of every kind, begun at any hour of the quarter and most of them ended."""
    draw = random.Random(seed)
    made = []
    for number in range(180):
        start = NOON + timedelta(hours=draw.randrange(HOURS - 48), minutes=draw.randrange(60))
        tier = draw.choice(list(Tier))
        offer = an_offer(f"o-{number}", str(Decimal(draw.randrange(1, 9_000_000)) / 100_000), increment_s=60)
        if tier is Tier.WINDOW:
            rule = draw.choice([CancelRule.NEVER, CancelRule.RESELL])
            offer = replace(offer, window=slot_terms(start, 3000, cancel=rule), tier=tier)
        elif tier is Tier.COMMITTED:
            offer = replace(offer, tier=tier, min_hours=720)
        else:
            offer = replace(offer, tier=tier)
        hours = float(draw.randrange(24, 2000))
        left = draw.choice([None, draw.uniform(1, hours)])
        passed = (NOON + timedelta(hours=HOURS) - start) / timedelta(hours=1)
        gone = left if left is not None and left < passed else None
        made.append(bought(f"r-{number}", offer, hours, nodes=draw.randrange(1, 9), gone=gone, start=start))
    return made


async def test_memory_does_not_grow_with_the_rows() -> None:
    year = bought("r-long", an_offer("long", "24.5"), None, nodes=4)
    tables = Tables(reservations={year.reservation_id: year})
    clock = FakeClock()
    clock.advance(hours=HOURS)
    export = SpendService(tables.unit_of_work, clock).focus(ADMIN)
    peaks, lines = [], 0
    tracemalloc.start()
    try:
        async for chunk in focus_csv(export.rows, FocusVersion.V1_2):
            lines += chunk.count(b"\r\n")
            peaks.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert lines == HOURS + 1
    assert peaks[-1] < 2 * peaks[0] + SLACK_BYTES


@pytest.mark.slow
async def test_a_quarter_s_export_has_no_finding() -> None:
    bill = a_quarter(11)
    tables = Tables(reservations={row.reservation_id: row for row in bill})
    clock = FakeClock()
    clock.advance(hours=HOURS)
    export = SpendService(tables.unit_of_work, clock).focus(ADMIN)
    chunks = [chunk async for chunk in focus_csv(export.rows, FocusVersion.V1_2)]
    rows, billed = 0, Decimal(0)

    def read() -> Iterator[Mapping[str, str]]:
        nonlocal rows, billed
        for row in reader:
            rows += 1
            billed += Decimal(row["BilledCost"])
            yield row

    reader = csv.DictReader(io.StringIO(b"".join(chunks).decode(), newline=""))
    assert reader.fieldnames is not None
    assert [str(finding) for finding in check_focus(list(reader.fieldnames), read())] == []
    assert rows >= ROWS
    assert billed == sum(owed_usd([row], clock.now()) for row in bill)
