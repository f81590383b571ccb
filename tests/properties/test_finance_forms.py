"""One bill in every form: each grouping, view and filter, spans cut anywhere, and every kind of file."""

from __future__ import annotations

import asyncio
import csv
import io
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openpyxl import load_workbook

from api.export.files import convert, write_spend
from api.export.focus_csv import csv_chunks, focus_csv
from api.schemas.finance.spend import SpendForm, spend_csv, spend_to_document
from broker.catalogue import load_energy_facts
from broker.domain.basics.errors import BrokerError, FieldProblem, InputError
from broker.domain.basics.money import CENT, ZERO
from broker.domain.basics.window import Window
from broker.domain.focus.columns import FocusVersion
from broker.domain.focus.projection_rows import PROJECTION_COLUMNS
from broker.domain.planning.workload import PlanRequest
from broker.domain.spend.spend import GROUPS, NARROWED_BY, CostView, Interval
from broker.services.holding.changes import ChangesService
from broker.services.spend.economics import EconomicsService
from broker.services.spend.spend import Projection
from tests.depth import examples
from tests.fakes.clock import NOON
from tests.fakes.examples import ADMIN
from tests.properties.test_reconciliation import STEP, Books

END = NOON.replace(hour=0) + timedelta(days=400)
START = NOON.replace(day=1, hour=0)
ALL = Window(START, END)


def total(rows: Iterable[Mapping[str, str]], column: str) -> Decimal:
    return sum((Decimal(row[column] or 0) for row in rows), ZERO)


def from_csv(content: bytes | str) -> list[dict[str, str]]:
    text = content.decode() if isinstance(content, bytes) else content
    return list(csv.DictReader(io.StringIO(text, newline="")))


def from_files(folder: Path, name: str, column: str) -> tuple[Decimal, Decimal]:
    """Sums of a column of ``name.xlsx`` and ``name.parquet``."""
    header, *rows = list(load_workbook(folder / f"{name}.xlsx").worksheets[0].values)
    at = list(header).index(column)
    sheet = sum((Decimal(str(row[at] or 0)) for row in rows), ZERO)
    kept = pq.read_table(folder / f"{name}.parquet").column(column).to_pylist()
    return sheet.quantize(CENT), sum((amount or ZERO for amount in kept), ZERO)


async def chunks(rows: Any) -> bytes:
    return b"".join([chunk async for chunk in rows])


class Forms:
    """Asks a life's books in every way."""

    def __init__(self, books: Books, cuts: Sequence[datetime]) -> None:
        self.books, self.cuts = books, sorted({START, *cuts, END})

    async def sums(self, window: Window | None = None, **asked: Any) -> Projection:
        order = (asked.get("interval", Interval.DAY), asked.get("group_by", "team"), None)
        view = asked.get("view", CostView.AMORTIZED)
        narrowed = asked.get("narrowed", {})
        return await self.books.spend.projection(ADMIN, window, *order, view, narrowed=narrowed)

    async def views_agree(self) -> None:
        for view in CostView:
            whole = await self.sums(view=view)
            both = (whole.total_usd, whole.actual_usd)
            for interval in Interval:
                for group in GROUPS:
                    found = await self.sums(interval=interval, group_by=group, view=view)
                    assert (found.total_usd, found.actual_usd) == both, (view, interval, group)
            parts = [await self.sums(Window(*edge), view=view) for edge in pairwise(self.cuts)]
            assert (sum(p.total_usd for p in parts), sum(p.actual_usd for p in parts)) == both, self.cuts
            for name in NARROWED_BY:
                by_word = await self.sums(group_by=name, view=view)
                for word in {row.group for row in by_word.rows}:
                    alone = await self.sums(group_by="tier", view=view, narrowed={name: word})
                    expected = sum((row.usd for row in by_word.rows if row.group == word), ZERO)
                    assert alone.total_usd == expected, (view, name, word)

    async def files_agree(self, folder: Path) -> None:
        found = await self.sums(ALL, group_by="workload")
        form = SpendForm.model_validate(
            spend_to_document(found.by_basis, interval=Interval.DAY, group_by="workload")
        )
        assert form.total_usd == found.total_usd == total(from_csv(spend_csv(form)), "usd")
        for kind in ("xlsx", "parquet"):
            write_spend(folder / f"sums.{kind}", kind, form)
        assert from_files(folder, "sums", "usd") == (found.total_usd, found.total_usd)
        spend = self.books.spend
        for version in FocusVersion:
            text = await chunks(focus_csv(spend.focus(ADMIN).rows, version))
            assert total(from_csv(text), "BilledCost") == found.actual_usd, version
            await self._converted(folder, f"focus-{version}", text, "BilledCost", found.actual_usd)
        expected = (await spend.projection_rows(ADMIN)).rows
        text = await chunks(csv_chunks(expected, PROJECTION_COLUMNS))
        projected_usd = found.total_usd - found.actual_usd
        assert total(from_csv(text), "ProjectedEffectiveCost") == projected_usd
        await self._converted(folder, "expected", text, "ProjectedEffectiveCost", projected_usd)

    async def _converted(self, folder: Path, name: str, text: bytes, column: str, usd: Decimal) -> None:
        rows = folder / f"{name}.csv"
        rows.write_bytes(text)
        for form in ("xlsx", "parquet"):
            convert(rows, folder / f"{name}.{form}", "Rows")
        assert from_files(folder, name, column) == (usd, usd), name

    async def filters_agree(self) -> None:
        """Rows narrowed by each word sum to the sums narrowed by it."""
        spend = self.books.spend
        for name in NARROWED_BY:
            sums = await self.sums(group_by=name)
            for word in {row.group for row in sums.rows}:
                narrowed = {name: word}
                mine = await self.sums(narrowed=narrowed)
                expected = (await spend.projection_rows(ADMIN, narrowed=narrowed)).rows
                text = await chunks(csv_chunks(expected, PROJECTION_COLUMNS))
                assert total(from_csv(text), "ProjectedEffectiveCost") == mine.total_usd - mine.actual_usd, (
                    narrowed
                )
                if name != "kind":
                    actual = spend.focus(ADMIN, narrowed=narrowed).rows
                    text = await chunks(focus_csv(actual, FocusVersion.V1_2))
                    assert total(from_csv(text), "BilledCost") == mine.actual_usd, narrowed

    async def reports_agree(self) -> None:
        """What changed between two months, and what units cost, are about the same money."""
        books = self.books
        house = books.house
        changes = ChangesService(house.tables.unit_of_work, house.clock)
        middle = START.replace(year=2027, month=1)
        spans = Window(START, middle), Window(middle, END)
        for view in CostView:
            found = await changes.between_windows(ADMIN, *spans, view=view)
            sums = [(await self.sums(span, view=view)).total_usd for span in spans]
            assert [found.before_usd, found.after_usd] == sums, view
            parts = found.price_usd + found.volume_usd + found.mix_usd
            assert parts == found.after_usd - found.before_usd

        economics = EconomicsService(
            house.tables.unit_of_work, house.clock, read_request=unreadable, energy=load_energy_facts()
        )
        for span in (*spans, None):
            units = (await economics.find(ADMIN, span)).units
            assert units.total_usd == (await self.sums(span)).total_usd
            assert units.committed_usd == (await self.sums(span)).committed_usd


def unreadable(document: str) -> PlanRequest:
    raise InputError("plan", (FieldProblem("", document, "a document that says what is to be done"),))


async def live(steps: Sequence[tuple[str, Any]], cuts: Sequence[datetime]) -> None:
    books = Books()
    for name, value in steps:
        try:
            await books.step(name, value)
        except BrokerError:
            continue
    forms = Forms(books, cuts)
    await forms.views_agree()
    await forms.filters_agree()
    await forms.reports_agree()
    with tempfile.TemporaryDirectory() as folder:
        await forms.files_agree(Path(folder))


moments = st.integers(0, 399 * 24 * 60).map(lambda minutes: START + timedelta(minutes=minutes))


PRICES = [(Decimal("9.990001"), 20), (Decimal("3.333333"), 50), (Decimal("7.77"), 60)]
A_LIFE: list[tuple[str, Any]] = [
    ("plan", PRICES),
    ("advance", 30),
    ("release", 1),
    ("advance", 24 * 12),
    ("roll_up", None),
    ("close", None),
    ("credit", None),
    ("plan", PRICES),
    ("advance", 7),
]
"""A month closed, a credit that came too late, and what still runs."""


@settings(max_examples=examples(4), deadline=None)
@example(A_LIFE, [START + timedelta(days=24, hours=5), START + timedelta(days=40, minutes=7)])
@given(st.lists(STEP, min_size=2, max_size=8), st.lists(moments, max_size=3))
def test_one_bill_in_every_form(steps: list[tuple[str, Any]], cuts: list[datetime]) -> None:
    asyncio.run(live(steps, cuts))
