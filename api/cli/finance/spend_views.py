"""Views of ``broker spend``: what changed, what a unit of work costs, what splitting the workloads saves."""

from __future__ import annotations

from decimal import Decimal

from rich import box
from rich.table import Table

from api.cli.figures import day_and_time, percent, plural, rate, usd
from api.cli.output import print_json, stdout
from api.plan_words import strategy
from api.schemas.finance.economics import SAVINGS, ChangesForm, IntervalForm, MonthCloseForm, UnitsForm
from broker.domain.moving.savings import Savings
from broker.domain.spend.variance import ChangeLine

DASH = "-"


def show_changes(form: ChangesForm, as_json: bool) -> None:
    """One row for each offer and workload, the largest change first, and the sum of each effect below."""
    if as_json:
        print_json(form.model_dump(mode="json"))
        return
    table = _table(show_footer=True)
    table.add_column("workload", "total", overflow="fold")
    table.add_column("offer", overflow="fold")
    sums = (form.before_usd, form.after_usd, form.price_usd, form.volume_usd, form.mix_usd, form.change_usd)
    for name, total in zip(("before", "after", "price", "volume", "mix", "change"), sums, strict=True):
        table.add_column(name, usd(total), justify="right", no_wrap=True)
    for line in form.items:
        offer = line.offer_id + _standing(line)
        money = (line.before_usd, line.after_usd, line.price_usd, line.volume_usd, line.mix_usd)
        table.add_row(line.workload, offer, *map(usd, money), usd(line.change_usd))
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


def show_bands(form: IntervalForm, as_json: bool) -> None:
    """One row for each period, and the whole span below."""
    if as_json:
        print_json(form.model_dump(mode="json"))
        return
    table = _table(show_footer=True)
    table.add_column(str(form.interval), "total", no_wrap=True)
    sums = (form.expected_usd, form.p10_usd, form.p50_usd, form.p90_usd)
    for name, total in zip(("expected", "P10", "P50", "P90"), sums, strict=True):
        table.add_column(name, usd(total), justify="right", no_wrap=True)
    for one in form.items:
        within = one.quantiles
        if one.expected_usd or within.p90_usd:
            money = (one.expected_usd, within.p10_usd, within.p50_usd, within.p90_usd)
            table.add_row(f"{one.period:%Y-%m-%d}", *map(usd, money))
    stdout().print(table)


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


def show_units(form: UnitsForm, as_json: bool) -> None:
    """One row for each unit."""
    if as_json:
        print_json(form.model_dump(mode="json"))
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


def show_savings(found: Savings, as_json: bool) -> None:
    """One row for each strategy that could have run. The others follow, with the reason why not."""
    if as_json:
        print_json(SAVINGS.write(found))
        return
    table = _table()
    table.add_column("instead of", no_wrap=True)
    for name in ("plans", "it costs", "the plans cost", "saved", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found.savings:
        money = (one.baseline_usd, one.plan_usd, one.saved_usd)
        table.add_row(strategy(one.name), str(one.plans), *map(usd, money), percent(one.saved_share))
    console = stdout()
    console.print(table)
    for left in found.not_run:
        console.print(f"{strategy(left.name)} is not compared with {left.plan_id}: {left.why}", markup=False)


def _table(*, show_footer: bool = False) -> Table:
    return Table(
        box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False, show_footer=show_footer
    )


def _usd(amount: Decimal | None, places: int = 2) -> str:
    return DASH if amount is None else f"${amount:,.{places}f}"
