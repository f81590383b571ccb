"""``broker perf``: the performance core without a market."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from api.cli.figures import percent, plural
from api.cli.output import Json, print_json, read_text, stderr, stdout, write_text
from broker.catalogue import CONFIG, load_gpus, load_models
from broker.domain.errors import FieldProblem, InputError
from optimizer.performance.calibration import load_calibration
from optimizer.performance.evaluate import ErrorLine, evaluate_rows
from optimizer.performance.rows import COLUMNS, predict_rows

app = typer.Typer(help="The performance core alone.", no_args_is_help=True, add_completion=False)

MEASURED = CONFIG.parent / "fixtures" / "performance"
Row = dict[str, str]


@app.command()
def predict(
    source: Annotated[Path, typer.Argument(metavar="IN.csv", help="Rows to predict.")],
    target: Annotated[Path, typer.Argument(metavar="OUT.csv", help="Where the predictions go.")],
    as_json: Json = False,
) -> None:
    """Predict every row of a table of training or serving runs, with 80 % intervals.

    Measured columns are never read. A row that cannot be predicted stays, with the reason in `note`.

    Example: broker perf predict runs.csv predictions.csv
    """
    rows = predict_rows(read_rows(source), load_calibration(), load_gpus(), load_models())
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(target, text.getvalue())
    blank = sum(not row["fits"] for row in rows)
    if as_json:
        print_json({"rows": len(rows), "unpredicted": blank, "file": str(target)})
    else:
        unread = f", {blank} of them not predicted (see note)" if blank else ""
        stderr().print(f"{plural(len(rows), 'row')} written to {target}{unread}", markup=False)


@app.command()
def evaluate(
    measured: Annotated[
        Path | None, typer.Argument(metavar="MEASURED.csv", help="Measured rows; default: the bundled ones.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare predictions with measurements, by source and regime.

    Example: broker perf evaluate my_runs.csv
    """
    files = [measured] if measured is not None else [MEASURED / "training.csv", MEASURED / "serving.csv"]
    rows = [row for file in files for row in read_rows(file)]
    lines = evaluate_rows(rows, load_calibration(), load_gpus(), load_models())
    if as_json:
        print_json({"lines": [asdict(line) for line in lines]})
    else:
        print_errors(stdout(), lines)


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file with an ``id`` column; InputError says what is missing."""
    reader = csv.DictReader(io.StringIO(read_text(path)), restval="")
    if "id" not in (reader.fieldnames or ()):
        found = f"the columns {', '.join(reader.fieldnames or ()) or 'of an empty file'}"
        expected = "a CSV header with at least id and kind"
        raise InputError(str(path), (FieldProblem("/header", found[:120], expected, 1, 1),))
    try:
        return [{name: value for name, value in row.items() if name is not None} for row in reader]
    except csv.Error as error:
        problem = FieldProblem("", f"malformed CSV ({error})", "comma-separated rows", reader.line_num, 1)
        raise InputError(str(path), (problem,)) from error


def print_errors(console: Console, lines: Sequence[ErrorLine]) -> None:
    """A row a source, regime and metric."""
    if not lines:
        console.print("no measured rows")
        return
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    for name in ("source", "regime", "metric"):
        table.add_column(name, overflow="fold")
    for name in ("rows", "median error", "mean", "90 %", "bias", "in interval", "unpredicted"):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(
            line.source,
            line.regime,
            line.metric,
            str(line.rows),
            f"{line.median_percent:.1f} %",
            f"{line.mean_percent:.1f} %",
            f"{line.p90_percent:.1f} %",
            f"{line.bias:.2f}",
            percent(line.coverage),
            str(line.unpredicted),
        )
    console.print(table)
