"""Views of ``broker spend``: what changed, what a unit of work costs, what splitting the workloads saves."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from api.cli.output import print_json, say, stdout, write_text
from api.cli.tables import print_section
from api.energy_words import carbon_words, energy_words
from api.figures import day_and_time, percent, plural, rate, usd
from api.plan_words import strategy
from api.schemas.base.forms import form_of
from api.schemas.finance.economics import SAVINGS, ChangesForm, IntervalForm, MonthCloseForm, UnitsForm
from api.schemas.finance.spend import no_formula
from api.sections import Cell, Section, Value, section_of
from broker.domain.basics.money import ZERO
from broker.domain.moving.savings import Saving, Savings
from broker.domain.spend.variance import ChangeLine
from broker.services.spend.intervals import PeriodInterval

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
            say(f"{len(rows)} rows written to {self.csv_file}")
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
    section = section_of(
        form.items,
        {
            "workload,\noffer": lambda line: Cell(line.workload, (line.offer_id + _standing(line),)),
            ">before,\nafter": _before_and_after,
            ">price,\nvolume,\nmix": _effects,
            ">change": lambda line: line.change_usd,
        },
        sums=("total", _before_and_after(form), _effects(form), form.change_usd),
    )
    console = stdout()
    print_section(section, console)
    if form.begun_usd or form.ended_usd:
        said = f"{usd(form.begun_usd)} by workloads that began, {usd(form.ended_usd)} by those that ended"
        console.print(f"of the change {said}")
    if form.unused_usd:
        console.print(f"of the change {usd(form.unused_usd)} is for time that was released or not wanted")
    if form.market_usd is not None and form.reoptimization_usd is not None:
        console.print(
            f"of the change {usd(form.market_usd)} is the old plan at the new prices, and "
            f"{usd(form.reoptimization_usd)} is the new plan against that"
        )
    if form.items:
        console.print(EFFECTS)


EFFECTS = (
    "volume: more or fewer GPU-hours of a workload, at the prices before; mix: more of one offer and less of "
    "another; price: the same GPU-hours at another price. The three sum to the change, to the cent."
)


def _before_and_after(one: ChangesForm | ChangeLine) -> Cell:
    return Cell(one.before_usd, (one.after_usd,))


def _effects(one: ChangesForm | ChangeLine) -> Cell:
    return Cell(one.price_usd, (one.volume_usd, one.mix_usd))


def _standing(line: ChangeLine) -> str:
    """Whether a workload ended or began, or its offer is new or gone."""
    if line.has_ended:
        return " (ended)"
    if line.is_gone:
        return " (gone)"
    return " (new)" if line.is_new else ""


BANDS = "P10 to P90: 80 % interval as prices, run times and traffic may move, if nobody orders or releases"
NO_BANDS = "no band: nothing in this time depends on prices, run times or traffic that may still move"


def show_bands(form: IntervalForm, as_json: bool) -> None:
    """One row for each period, and the whole span below; without quantiles where nothing is simulated."""
    if as_json:
        print_json(form.model_dump(mode="json"))
        return
    is_wide = form.p10_usd != form.p90_usd or any(
        one.quantiles.p10_usd != one.quantiles.p90_usd for one in form.items
    )
    columns: dict[str, Callable[[PeriodInterval], Value]] = {
        f"={form.interval}": lambda one: f"{one.period:%Y-%m-%d}",
        ">expected": lambda one: one.expected_usd,
    }
    sums: list[Value] = ["total", form.expected_usd]
    if is_wide:
        columns |= {
            ">P10": lambda one: one.quantiles.p10_usd,
            ">P50": lambda one: one.quantiles.p50_usd,
            ">P90": lambda one: one.quantiles.p90_usd,
        }
        sums += [form.p10_usd, form.p50_usd, form.p90_usd]
    told = [one for one in form.items if one.expected_usd or one.quantiles.p90_usd]
    console = stdout()
    print_section(section_of(told, columns, sums=sums), console)
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
        ("carbon", carbon_words(energy), "an estimate"),
    )
    console = stdout()
    print_section(Section(("unit", ">costs", ">of"), rows), console)
    for line in energy_words(energy):
        console.print(line, soft_wrap=True)


def show_savings(found: Savings, output: Output) -> None:
    """One row for each strategy that could have run. The others follow, and the plans that are in no sum,
    with the reasons."""
    document = SAVINGS.write(found)
    if output.takes(document, columns_of(Saving), document["items"]):
        return
    section = section_of(
        found.savings,
        {
            "=instead of": lambda one: strategy(one.name),
            ">plans": lambda one: str(one.plans),
            ">it costs": lambda one: one.baseline_usd,
            ">the plans cost": lambda one: one.plan_usd,
            ">saved": lambda one: one.saved_usd,
            ">share": lambda one: percent(one.saved_share),
        },
        empty="no savings: no plan that is reserved or intended was compared with a simpler strategy",
    )
    console = stdout()
    print_section(section, console)
    moved = found.reoptimizations
    if moved:
        saved_usd = sum((one.net_usd for one in moved), ZERO)
        moving_usd = sum((one.moving_usd for one in moved), ZERO)
        console.print(
            f"{plural(sum(one.moves for one in moved), 'move')} of {plural(len(moved), 're-optimization')} "
            f"saved {usd(saved_usd)} beside that, as counted when proposed: against staying, less "
            f"{usd(moving_usd)} for moving (`broker reoptimizations`)",
            soft_wrap=True,
        )
    for left in found.not_run:
        said = f"{strategy(left.name)} is not compared with {left.plan_id}: {left.why}"
        console.print(said, soft_wrap=True)
    for plan in found.not_compared:
        console.print(f"{plan.plan_id} does not count: {plan.why}", soft_wrap=True)


def _usd(amount: Decimal | None, places: int = 2) -> str:
    return DASH if amount is None else f"${amount:,.{places}f}"
