"""``broker spend``: projected and actual spend."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from api.cli.configuration import load_settings
from api.cli.download import DataSet, download
from api.cli.figures import usd
from api.cli.output import Json, print_json, stderr, stdout, write_text
from api.client import connect
from api.schemas.spend import FOCUS_TOTALS, SpendForm, spend_csv
from broker.domain.focus_columns import FocusVersion
from broker.domain.money import ZERO
from broker.domain.spend import ChargeBasis, Interval

app = typer.Typer(add_completion=False)


class Group(StrEnum):
    """What spend is summed by."""

    TEAM = "team"
    WORKLOAD = "workload"
    PROVIDER = "provider"
    KIND = "kind"


@app.command()
def spend(
    group_by: Annotated[Group, typer.Option(help="Whose spend a row is.")] = Group.TEAM,
    interval: Annotated[Interval, typer.Option(help="Width of a row in time.")] = Interval.MONTH,
    since: Annotated[
        str | None, typer.Option("--from", help="First instant, such as 2026-11-01T00:00:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help="First instant after the last.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write the rows to this CSV file.")] = None,
    focus_file: Annotated[
        Path | None, typer.Option("--focus", help="Write actual charges in the FOCUS columns to this file.")
    ] = None,
    focus_version: Annotated[FocusVersion, typer.Option(help="Of the FOCUS columns.")] = FocusVersion.V1_2,
    as_json: Json = False,
) -> None:
    """Projected and actual spend of the running server, by period and group.

    Example: BROKER_KEY=… broker spend --group-by team --csv spend.csv
    """
    with connect(load_settings()) as client:
        if focus_file is not None:
            _tell(focus_file, download(client, _focus(focus_version, since, until), focus_file), as_json)
            return
        form = client.find_spend(group_by=str(group_by), interval=interval, since=since, until=until)
    if csv_file is not None:
        write_text(csv_file, spend_csv(form))
        stderr().print(f"{len(form.items)} rows written to {csv_file}", markup=False, soft_wrap=True)
    if as_json:
        print_json(form.model_dump(mode="json"))
    elif csv_file is None:
        print_spend(stdout(), form)


def _focus(version: FocusVersion, since: str | None, until: str | None) -> DataSet:
    params = {"version": str(version), "from": since, "to": until}
    return DataSet("FOCUS Cost and Usage", "/v1/spend/focus.csv", params, FOCUS_TOTALS, str(version))


def _tell(file: Path, manifest: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(manifest)
        return
    sums = ", ".join(f"{name} {amount}" for name, amount in manifest["totals_usd"].items())
    text = f"{manifest['rows']} rows written to {file}, as of {manifest['as_of']}: {sums} USD"
    stderr().print(text, markup=False, soft_wrap=True)


def print_spend(console: Console, form: SpendForm) -> None:
    """A row a period and group, projected beside actual; the sums below."""
    if not form.items:
        console.print("no spend")
        return
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False, show_footer=True)
    sums = {basis: _sum(form, basis) for basis in ChargeBasis}
    table.add_column(form.interval, "total", no_wrap=True)
    table.add_column(form.group_by, overflow="fold")
    for basis in ChargeBasis:
        table.add_column(str(basis), usd(sums[basis]), justify="right", no_wrap=True)
    cells: dict[tuple[str, str], dict[ChargeBasis, Decimal]] = {}
    for row in form.items:
        when = f"{row.period:%Y-%m}" if form.interval is Interval.MONTH else f"{row.period:%Y-%m-%d}"
        cells.setdefault((when, row.group), {})[row.basis] = row.usd
    for (when, group), amounts in cells.items():
        table.add_row(when, group, *(usd(amounts[b]) if b in amounts else "-" for b in ChargeBasis))
    console.print(table)


def _sum(form: SpendForm, basis: ChargeBasis) -> Decimal:
    return sum((row.usd for row in form.items if row.basis is basis), ZERO)
