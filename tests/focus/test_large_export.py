"""A quarter of a company's bill: more than 100,000 rows, streamed, checked, and equal to the ledger."""

from __future__ import annotations

import csv
import io
import random
import tracemalloc
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from api.export.focus_csv import focus_csv
from api.export.tables import write_parquet
from broker.domain.focus.check import check_focus
from broker.domain.focus.columns import FocusVersion, kind_of
from broker.domain.holding.reservation import Reservation, ReservationState, UnitState
from broker.domain.market.offer import CancelRule, Tier
from broker.domain.spend.charging import owed_usd
from broker.domain.spend.month_close import month_window
from broker.services.spend.spend import SpendService
from tests.fakes.clock import NOON, FakeClock
from tests.fakes.examples import ADMIN, an_offer, slot_terms
from tests.fakes.store import Tables
from tests.focus.examples import bought
from tests.focus.validator import KNOWN_FAULTS, RULES_AT_LEAST, failures, require_validator

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


def seen_at(row: Reservation, now: datetime) -> Reservation:
    """``row`` as it stood at ``now``: what ends later still runs."""
    (unit,) = row.units
    if unit.gone_at is None or unit.gone_at <= now:
        return replace(row, version=1)
    running = replace(unit, state=UnitState.HELD, gone_at=None)
    return replace(row, units=(running,), state=ReservationState.ACTIVE, released_at=None)


async def a_lived_quarter(seed: int) -> tuple[SpendService, list[Reservation], FakeClock]:
    """The quarter lived through month by month: the first two closed, and credits that came too late."""
    bill, clock, tables = a_quarter(seed), FakeClock(), Tables()
    spend = SpendService(tables.unit_of_work, clock)
    for month in (date(2026, 11, 1), date(2026, 12, 1), None):
        last = NOON + timedelta(hours=HOURS) if month is None else month_window(month).end + timedelta(days=2)
        clock.advance(seconds=(last - clock.now()).total_seconds())
        shown = [seen_at(row, last) for row in bill if row.start <= last]
        tables.reservations.update({row.reservation_id: row for row in shown})
        await spend.roll_up()
        if month is not None:
            await spend.close(ADMIN, month)
    late = [row for row in bill if row.units[0].gone_at is not None][:20]
    for row in late:
        credited = replace(row.units[0], credit_usd=Decimal("12.34"))
        tables.reservations[row.reservation_id] = replace(row, units=(credited,), version=2)
    return spend, list(tables.reservations.values()), clock


async def text_of(spend: SpendService, version: FocusVersion) -> tuple[list[str], list[dict[str, str]]]:
    """Header and rows of the export, read back from its CSV."""
    chunks = [chunk async for chunk in focus_csv(spend.focus(ADMIN).rows, version)]
    reader = csv.DictReader(io.StringIO(b"".join(chunks).decode(), newline=""))
    rows = list(reader)
    return list(reader.fieldnames or ()), rows


@pytest.mark.slow
@pytest.mark.parametrize("version", list(FocusVersion))
async def test_a_quarter_s_export_has_no_finding(version: FocusVersion) -> None:
    spend, bill, clock = await a_lived_quarter(11)
    columns, rows = await text_of(spend, version)
    assert [str(finding) for finding in check_focus(columns, rows)] == []
    assert len(rows) >= ROWS
    assert any(row["ChargeClass"] == "Correction" for row in rows)
    billed = sum(Decimal(row["BilledCost"]) for row in rows)
    assert billed == sum(owed_usd([row], clock.now()) for row in bill)
    assert billed == (await spend.projection(ADMIN)).actual_usd
    print(f"FOCUS {version}: {len(rows)} rows, {billed} USD, no finding")


@pytest.mark.slow
async def test_the_public_validator_finds_only_its_own_faults_in_a_quarter(tmp_path: Path) -> None:
    require_validator()
    spend, _, _ = await a_lived_quarter(11)
    columns, rows = await text_of(spend, FocusVersion.V1_2)
    assert len(rows) >= ROWS
    file = tmp_path / "quarter.parquet"
    write_parquet(file, [(name, kind_of(name)) for name in columns], (list(row.values()) for row in rows))
    failed, asked = failures(file, tmp_path / "report.xml")
    assert asked > RULES_AT_LEAST
    assert failed <= KNOWN_FAULTS, sorted(failed - KNOWN_FAULTS)
    print(f"focus-validator: {len(rows)} rows, {asked} rules, failed of its own faults: {sorted(failed)}")
