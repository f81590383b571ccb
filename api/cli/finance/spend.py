"""``broker spend``: projected and actual spend, and files of it with their manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console

from api.cli.companions import require_companions
from api.cli.configuration import load_settings
from api.cli.finance.spend_views import (
    Output,
    show_bands,
    show_changes,
    show_closed,
    show_savings,
    show_units,
)
from api.cli.output import Json, print_json, say, stdout, to_json, write_text
from api.cli.tables import print_section
from api.cli.times import read_span
from api.client import BrokerClient, connect
from api.export.files import convert, write_spend
from api.export.manifest import manifest, sha256_of, totals_of
from api.figures import plural, usd
from api.schemas.finance.spend import (
    FOCUS_TOTALS,
    PROJECTION_TOTALS,
    SpendForm,
    SpendItem,
    spend_csv,
)
from api.sections import Section
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.money import ZERO, price_words
from broker.domain.focus.columns import FocusVersion
from broker.domain.spend.spend import NARROWED_BY, ChargeBasis, CostView, Interval

app = typer.Typer(add_completion=False)

PARTS = ("spent", "reserved", "planned")
SPAN = frozenset({"since", "until"})
ANSWERS = {
    "": SPAN | {"group_by", "interval", "view", "only", "csv_file", "xlsx_file", "parquet_file"},
    "changes": frozenset({"view", "csv_file"}),
    "close": frozenset({"comment"}),
    "bands": SPAN | {"interval"},
    "units": SPAN | {"csv_file"},
    "savings": frozenset({"csv_file"}),
    "focus_file": SPAN | {"only", "focus_version", "projection_file"},
    "projection_file": SPAN | {"only", "focus_file"},
}


class Group(StrEnum):
    """What spend is summed by."""

    TEAM = "team"
    WORKLOAD = "workload"
    PROVIDER = "provider"
    KIND = "kind"
    TIER = "tier"
    COMMITMENT = "commitment"
    GPU = "gpu"
    REGION = "region"


@app.command()
def spend(
    context: typer.Context,
    group_by: Annotated[Group, typer.Option(help="Whose spend a row is.")] = Group.TEAM,
    interval: Annotated[Interval, typer.Option(help="Width of a row in time.")] = Interval.MONTH,
    since: Annotated[
        str | None,
        typer.Option("--from", help="First time or day, such as 2026-11-01; alone: up to a year ahead."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", help="First time or day after it; alone: a year.")
    ] = None,
    view: Annotated[
        CostView, typer.Option(help="What is bought ahead over its days, or when it is billed.")
    ] = CostView.AMORTIZED,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=WORD",
            help="Only what has this word: team, workload, provider, kind, tier, gpu or region; repeatable.",
        ),
    ] = None,
    changes: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="FROM TO", help="Why the second of two months (2026-10) or plans costs more."),
    ] = None,
    bands: Annotated[
        bool, typer.Option("--bands", help="P10, P50 and P90 of what is expected, by period.")
    ] = False,
    close: Annotated[
        str | None,
        typer.Option(
            metavar="MONTH", help="Close a month that is over, such as 2026-10, with a key of all teams."
        ),
    ] = None,
    comment: Annotated[str, typer.Option(help="Kept with what is closed.")] = "",
    units: Annotated[bool, typer.Option("--units", help="$ per run, token and GPU-hour; energy.")] = False,
    savings: Annotated[
        bool, typer.Option("--savings", help="What plans save against simpler strategies.")
    ] = False,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write the rows to this CSV file.")] = None,
    xlsx_file: Annotated[Path | None, typer.Option("--xlsx", help="The same rows as a workbook.")] = None,
    parquet_file: Annotated[
        Path | None, typer.Option("--parquet", help="The same rows as a Parquet file.")
    ] = None,
    projection_file: Annotated[
        Path | None,
        typer.Option("--projection", help="Write projected charges alone: .csv, .parquet or .xlsx."),
    ] = None,
    focus_file: Annotated[
        Path | None,
        typer.Option("--focus", help="Write actual charges in FOCUS columns: .csv, .parquet or .xlsx."),
    ] = None,
    focus_version: Annotated[FocusVersion, typer.Option(help="Of the FOCUS columns.")] = FocusVersion.V1_2,
    as_json: Json = False,
) -> None:
    """What is spent, reserved and planned on the running server, by period and group.

    Example: BROKER_KEY=… broker spend --group-by team --csv spend.csv
    """
    require_companions(context, ANSWERS)
    since, until = read_span(since, until)
    narrowed = narrowing(only or ())
    with connect(load_settings()) as client:
        wanted = (
            (focus_file, _focus(focus_version, since, until, narrowed)),
            (projection_file, _projection(since, until, narrowed)),
        )
        written = [(file, download(client, one, file)) for file, one in wanted if file is not None]
        if written:
            _tell(written, as_json)
            return
        output = Output(as_json, csv_file)
        answers: tuple[tuple[object, Callable[[], None]], ...] = (
            (changes, lambda: show_changes(client.find_changes(*(changes or ("", "")), view), output)),
            (close, lambda: show_closed(client.close_month(close or "", comment), as_json)),
            (bands, lambda: show_bands(client.find_interval(since, until, interval), as_json)),
            (units, lambda: show_units(client.find_units(since, until), output)),
            (savings, lambda: show_savings(client.find_savings(), output)),
        )
        asked = next((answer for wanted, answer in answers if wanted), None)
        if asked is not None:
            asked()
            return
        form = client.find_spend(
            group_by=str(group_by), interval=interval, since=since, until=until, view=view, narrowed=narrowed
        )
    files = _write(form, csv_file, xlsx_file, parquet_file)
    for file in files:
        say(f"{len(form.items)} rows written to {file}")
    if as_json:
        print_json(form.model_dump(mode="json"))
    elif not files:
        print_spend(stdout(), form)
        print_orphaned(stdout(), form)


def _write(
    form: SpendForm, csv_file: Path | None, xlsx_file: Path | None, parquet_file: Path | None
) -> list[Path]:
    """Writes the rows in every form that is asked for, and returns the files."""
    if csv_file is not None:
        write_text(csv_file, spend_csv(form))
    if xlsx_file is not None:
        write_spend(xlsx_file, "xlsx", form)
    if parquet_file is not None:
        write_spend(parquet_file, "parquet", form)
    return [file for file in (csv_file, xlsx_file, parquet_file) if file is not None]


def narrowing(only: Iterable[str]) -> dict[str, str]:
    """``NAME=WORD`` arguments as parameters. Raises InputError for another form or an unknown name."""
    found = {}
    for text in only:
        name, _, word = text.partition("=")
        if name not in ("team", *NARROWED_BY) or not word:
            expected = f"NAME=WORD with one of {', '.join(('team', *NARROWED_BY))}"
            raise InputError("spend", (FieldProblem("--only", repr(text), expected),))
        found[name] = word
    return found


def _focus(
    version: FocusVersion, since: str | None, until: str | None, narrowed: Mapping[str, str]
) -> DataSet:
    params = {"version": str(version), "from": since, "to": until, **narrowed}
    return DataSet("FOCUS Cost and Usage", "/v1/spend/focus.csv", params, FOCUS_TOTALS, str(version))


def _projection(since: str | None, until: str | None, narrowed: Mapping[str, str]) -> DataSet:
    params = {"from": since, "to": until, **narrowed}
    return DataSet("Projected spend", "/v1/spend/projection-rows.csv", params, PROJECTION_TOTALS)


def _tell(written: Sequence[tuple[Path, dict[str, Any]]], as_json: bool) -> None:
    if as_json:
        manifests = [manifest for _, manifest in written]
        print_json(manifests[0] if len(manifests) == 1 else {"items": manifests})
        return
    for file, told in written:
        sums = ", ".join(f"{name} {amount}" for name, amount in told["totals_usd"].items())
        text = f"{told['rows']} rows written to {file}, as of {told['as_of']}: {sums} USD"
        say(text)


def print_spend(console: Console, form: SpendForm) -> None:
    """One row for each period and group with what is spent, reserved and planned, and the sums below."""
    if not form.items:
        console.print(
            "No spend: nothing is held in this time, and no draft is planned. Reserve a plan, or count it "
            "with `broker plans ID --intend`.",
            soft_wrap=True,
        )
        return
    cells: dict[tuple[str, str], list[Decimal]] = {}
    for item in form.items:
        row = item.row
        when = f"{row.period:%Y-%m}" if form.interval is Interval.MONTH else f"{row.period:%Y-%m-%d}"
        cell = cells.setdefault((when, row.group), [ZERO] * len(PARTS))
        for index, amount in enumerate(_parts_of(item)):
            cell[index] += amount
    sums = [sum(amounts, ZERO) for amounts in zip(*cells.values(), strict=True)]
    rows = [
        (when, group, *(one or None for one in (*amounts, sum(amounts, ZERO))))
        for (when, group), amounts in cells.items()
    ]
    columns = (f"={form.interval}", form.group_by, *(f">{name}" for name in (*PARTS, "sum")))
    print_section(Section(columns, rows, sums=("total", "", *sums, sum(sums, ZERO))), console)
    if form.until_released_usd:
        words = f"{usd(form.until_released_usd)} of what is reserved is of leases without an end"
        console.print(words, soft_wrap=True)


def _parts_of(item: SpendItem) -> tuple[Decimal, Decimal, Decimal]:
    """What of a row is spent, reserved and planned."""
    row = item.row
    if item.basis is ChargeBasis.ACTUAL:
        return row.usd, ZERO, ZERO
    return ZERO, row.usd - row.intended_usd, row.intended_usd


def print_orphaned(console: Console, form: SpendForm) -> None:
    """One line for each seller with orphaned leases, with what to do about them."""
    for one in form.orphaned:
        ids, count = ", ".join(one.reservation_ids), plural(len(one.reservation_ids), "orphaned lease")
        console.print(
            f"{one.provider}: {count}, {usd(one.owed_usd)} so far, {price_words(one.usd_per_hour)} an hour; "
            f"release what nobody uses with `broker release`: {ids}",
            style="bold yellow",
        )


@dataclass(frozen=True, slots=True)
class DataSet:
    """A CSV file of the server: its path, its parameters, and which of its columns are money."""

    name: str
    path: str
    params: Mapping[str, str | None]
    totals: Sequence[str]
    version: str | None = None


def download(client: BrokerClient, wanted: DataSet, file: Path) -> dict[str, Any]:
    """Writes ``wanted`` to ``file`` and a manifest beside it, and returns the manifest.

    The manifest's totals are computed from the file that was written. Raises InputError for a bad path.
    """
    with TemporaryDirectory(prefix="broker-") as folder:
        csv_file = Path(folder) / "rows.csv"
        as_of = client.download(wanted.path, csv_file, wanted.params)
        rows, totals = totals_of(csv_file, wanted.totals)
        convert(csv_file, file, wanted.name)
    document = manifest(
        data_set=wanted.name,
        version=wanted.version,
        as_of=as_of,
        sha256=sha256_of(file),
        rows=rows,
        totals_usd=totals,
    )
    write_text(manifest_path(file), to_json(document))
    return document


def manifest_path(file: Path) -> Path:
    """The path of the manifest of ``file``."""
    return file.with_name(f"{file.name}.manifest.json")
