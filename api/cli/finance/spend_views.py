"""Views of ``broker spend``: what changed, what a unit of work costs, what splitting the workloads saves."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from api.cli.figures import day_and_time, percent, plural, rate, usd
from api.cli.output import print_json, stderr, stdout, write_text
from api.plan_words import strategy
from api.schemas.base.forms import form_of
from api.schemas.finance.economics import SAVINGS, ChangesForm, IntervalForm, MonthCloseForm, UnitsForm
from api.schemas.finance.spend import no_formula
from broker.domain.moving.savings import Saving, Savings
from broker.domain.spend.variance import ChangeLine

DASH = "-"


@dataclass(frozen=True, slots=True)
class Output:
    """How an answer is told: as a table, as JSON, or in a CSV file."""

    as_json: bool
    csv_file: Path | None

    def takes(
        self, document: Mapping[str, Any], columns: Sequence[str], rows: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Whether it wrote the file or the JSON document, and nothing is left to show."""
        if self.csv_file is not None:
            write_text(self.csv_file, rows_csv(columns, rows))
            stderr().print(f"{len(rows)} rows written to {self.csv_file}", markup=False, soft_wrap=True)
        if self.as_json:
            print_json(document)
        return self.as_json or self.csv_file is not None


def rows_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """``columns`` of ``rows`` as CSV; the header alone without rows."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in rows:
        writer.writerow(_cell(name, row.get(name)) for name in columns)
    return text.getvalue()


def columns_of(line: type[ChangeLine | Saving]) -> tuple[str, ...]:
    """The names of a line's fields in JSON."""
    return tuple(one.name for one in form_of(line).entries)


def _cell(name: str, value: object) -> object:
    """A value as a cell. An amount may be negative; of all other texts none is read as a formula."""
    return no_formula(value) if isinstance(value, str) and not name.endswith("_usd") else value


def show_changes(form: ChangesForm, output: Output) -> None:
    """One row for each offer and workload, the largest change first, and the sum of each effect below."""
    document = form.model_dump(mode="json")
    if output.takes(document, columns_of(ChangeLine), document["items"]):
        return
    table = _table(show_footer=True)
    table.add_column("workload,\noffer", "total", overflow="fold", ratio=1)
    for name, totals in (
        ("before,\nafter", (form.before_usd, form.after_usd)),
        ("price,\nvolume,\nmix", (form.price_usd, form.volume_usd, form.mix_usd)),
        ("change", (form.change_usd,)),
    ):
        table.add_column(name, "\n".join(map(usd, totals)), justify="right", no_wrap=True)
    for line in form.items:
        offer = line.offer_id + _standing(line)
        spans = "\n".join(map(usd, (line.before_usd, line.after_usd)))
        effects = "\n".join(map(usd, (line.price_usd, line.volume_usd, line.mix_usd)))
        table.add_row(
            Text.assemble(line.workload, "\n", (offer, "dim")), spans, effects, usd(line.change_usd)
        )
    console = stdout()
    console.print(table)
    if form.begun_usd or form.ended_usd:
        said = f"{usd(form.begun_usd)} by workloads that began, {usd(form.ended_usd)} by those that ended"
        console.print(f"of the change {said}")
    if form.unused_usd:
        console.print(f"of the change {usd(form.unused_usd)} is for time that was released or not wanted")
    if form.market_usd is not None and form.reoptimization_usd is not None:
        console.print(f"the market: {usd(form.market_usd)}; the new plan: {usd(form.reoptimization_usd)}")


def _standing(line: ChangeLine) -> str:
    """Whether a workload ended or began, or its offer is new or gone."""
    if line.has_ended:
        return " (ended)"
    if line.is_gone:
        return " (gone)"
    return " (new)" if line.is_new else ""


BANDS = (
    "P10 to P90: four cases of five as prices, run times and traffic may move, if nobody orders or releases"
)
NO_BANDS = "no band: nothing in this time depends on prices, run times or traffic that may still move"


def show_bands(form: IntervalForm, as_json: bool) -> None:
    """One row for each period, and the whole span below; without quantiles where nothing is simulated."""
    if as_json:
        print_json(form.model_dump(mode="json"))
        return
    is_wide = form.p10_usd != form.p90_usd or any(
        one.quantiles.p10_usd != one.quantiles.p90_usd for one in form.items
    )
    names = ("expected", "P10", "P50", "P90") if is_wide else ("expected",)
    table = _table(show_footer=True)
    table.add_column(str(form.interval), "total", no_wrap=True)
    sums = (form.expected_usd, form.p10_usd, form.p50_usd, form.p90_usd)
    for name, total in zip(names, sums, strict=False):
        table.add_column(name, usd(total), justify="right", no_wrap=True)
    for one in form.items:
        within = one.quantiles
        if one.expected_usd or within.p90_usd:
            money = (one.expected_usd, within.p10_usd, within.p50_usd, within.p90_usd)
            table.add_row(f"{one.period:%Y-%m-%d}", *map(usd, money[: len(names)]))
    console = stdout()
    console.print(table)
    console.print(BANDS if is_wide else NO_BANDS, soft_wrap=True)


def show_closed(form: MonthCloseForm, as_json: bool) -> None:
    """The figures with which a month was closed, and the sellers that may still bill more."""
    if as_json:
        print_json(form.model_dump(mode="json"))
        return
    console = stdout()
    console.print(f"{form.month} is closed with {usd(form.usd)} in {form.focus_rows:,} FOCUS rows")
    for one in form.unconfirmed:
        last = "never" if one.confirmed_at is None else f"last on {day_and_time(one.confirmed_at)}"
        console.print(
            f"{one.provider} has not confirmed its leases since the month was over ({last}); what it bills "
            "later is a correction in the first open month",
            soft_wrap=True,
        )


def show_units(form: UnitsForm, output: Output) -> None:
    """One row for each unit."""
    document = form.model_dump(mode="json")
    figures = {name: value for name, value in document.items() if name != "energy"} | document["energy"]
    cells = [{"figure": name, "value": value} for name, value in figures.items()]
    if output.takes(document, ("figure", "value"), cells):
        return
    energy = form.energy
    rows = (
        ("total", usd(form.total_usd), ""),
        ("spent, or fixed", usd(form.committed_usd), f"can be released {usd(form.flexible_usd)}"),
        ("a training run", _usd(form.usd_per_run), plural(form.runs, "run")),
        ("10¹² tokens trained", _usd(form.usd_per_trillion_tokens_trained), rate(form.tokens_trained)),
        ("10⁶ tokens served", _usd(form.usd_per_million_tokens_served, 4), rate(form.tokens_served)),
        ("a GPU-hour used", _usd(form.usd_per_used_gpu_hour, 4), f"{form.used_gpu_hours:,.1f} h"),
        ("a GPU-hour idle", _usd(form.usd_per_idle_gpu_hour, 4), f"{form.idle_gpu_hours:,.1f} h"),
        ("energy", f"{energy.kwh:,.0f} kWh", "an estimate"),
        ("carbon", f"{energy.kg_co2e:,.0f} kg CO₂e", f"without {energy.kwh_without_grid:,.0f} kWh"),
    )
    table = _table()
    table.add_column("unit")
    table.add_column("costs", justify="right", no_wrap=True)
    table.add_column("of", justify="right")
    for row in rows:
        table.add_row(*row)
    stdout().print(table)


def show_savings(found: Savings, output: Output) -> None:
    """One row for each strategy that could have run. The others follow, and the plans that are in no sum,
    with the reasons."""
    document = SAVINGS.write(found)
    if output.takes(document, columns_of(Saving), document["items"]):
        return
    table = _table()
    table.add_column("instead of", no_wrap=True)
    for name in ("plans", "it costs", "the plans cost", "saved", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found.savings:
        money = (one.baseline_usd, one.plan_usd, one.saved_usd)
        table.add_row(strategy(one.name), str(one.plans), *map(usd, money), percent(one.saved_share))
    console = stdout()
    if found.savings:
        console.print(table)
    else:
        console.print("no savings: no plan that is reserved or intended was compared with a simpler strategy")
    for left in found.not_run:
        said = f"{strategy(left.name)} is not compared with {left.plan_id}: {left.why}"
        console.print(said, markup=False, soft_wrap=True)
    for plan in found.not_compared:
        console.print(f"{plan.plan_id} does not count: {plan.why}", markup=False, soft_wrap=True)


def _table(*, show_footer: bool = False) -> Table:
    return Table(
        box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False, show_footer=show_footer
    )


def _usd(amount: Decimal | None, places: int = 2) -> str:
    return DASH if amount is None else f"${amount:,.{places}f}"
