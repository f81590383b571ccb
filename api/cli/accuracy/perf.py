"""``broker perf``: the performance core without a market."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter

from api.cli.accuracy.accuracy_view import markdown_constants, print_report
from api.cli.accuracy.calibration_view import print_own_report
from api.cli.configuration import load_settings
from api.cli.output import Json, print_json, read_text, stderr, stdout, write_text
from api.figures import plural
from api.planning.planning_call import load_own_shift
from api.schemas.base.csv_reader import read_table
from broker.catalogue import load_gpus, load_models
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.basics.left_out import LeftOut
from optimizer.calibration.evaluation.evaluate import evaluate_rows
from optimizer.calibration.evaluation.report import STORED, Report
from optimizer.calibration.own.predictions import predict_rows
from optimizer.calibration.own.rows import check_rows, joined, load_own_rows, report_of, save_own_rows
from optimizer.calibration.sourced_constants import sourced_constants
from optimizer.calibration.tables.rows import COLUMNS, is_serving
from optimizer.calibration.tables.unread import left_out_of
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.own.shift import load_kernels

app = typer.Typer(help="The performance core alone.", no_args_is_help=True, add_completion=False)

Row = dict[str, str]


@app.command()
def predict(
    source: Annotated[Path, typer.Argument(metavar="IN.csv", help="Rows to predict.")],
    target: Annotated[Path, typer.Argument(metavar="OUT.csv", help="Where the predictions go.")],
    as_json: Json = False,
) -> None:
    """Predict every row of a table of training or serving runs, with 80 % intervals.

    Measured columns are never read. Predictions near your own measurements (`broker perf calibrate`) are
    corrected by them. A row that cannot be predicted is kept, with the reason in `note`: also one whose
    method, optimizer, format or engine is not known. `note` names columns that are not used.

    Example: broker perf predict runs.csv predictions.csv
    """
    own = load_own_shift(load_settings().calibration_file)
    asked = read_rows(source)
    rows = predict_rows(asked, load_calibration(), load_gpus(), load_models(), own)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(target, text.getvalue())
    blank = sum(not row["fits"] for row in rows)
    unused = _left_out(asked)
    if as_json:
        told = {"rows": len(rows), "unpredicted": blank, "file": str(target)}
        print_json(told | {"left_out": [asdict(one) for one in unused]})
    else:
        unread = f", {blank} of them not predicted (see note)" if blank else ""
        stderr().print(f"{plural(len(rows), 'row')} written to {target}{unread}", markup=False)
        _tell_left_out(unused)


@app.command()
def evaluate(
    measured: Annotated[
        Path | None,
        typer.Argument(metavar="MEASURED.csv", help="Measured rows; default: the published ones."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare predictions with measurements: errors and their targets, held out by source, model and GPU.

    If the constants were fitted to a source, its rows are predicted by a fit without that source. Without
    a file, the report is that of the published measurements, with collectives and cache capacities.

    Example: broker perf evaluate my_runs.csv
    """
    if measured is None:
        report, unused = stored_report(), []
    else:
        rows = read_rows(measured)
        report, unused = evaluate_rows(rows, load_calibration(), load_gpus(), load_models()), _left_out(rows)
    if as_json:
        more = {"left_out": [asdict(one) for one in unused]} if measured is not None else {}
        print_json(_finite(asdict(report) | more))
    else:
        print_report(stdout(), report)
        _tell_left_out(unused)


@app.command()
def calibrate(
    measured: Annotated[Path, typer.Argument(metavar="MEASURED.csv", help="Your measured rows.")],
    output: Annotated[
        Path | None, typer.Option(help="Where they are kept; default: the setting calibration_file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Add your own measurements. They correct predictions and plans near them, and narrow their intervals.

    The columns are those of the bundled tables. A row whose id is already known replaces the earlier row.
    Later commands read the file that the setting calibration_file names (BROKER_CALIBRATION_FILE).

    Example: broker perf calibrate my_runs.csv
    """
    file = output or load_settings().calibration_file
    calibration, gpus, models = load_calibration(), load_gpus(), load_models()
    fresh = check_rows(read_rows(measured), str(measured), calibration, gpus, models)
    stored = load_own_rows(file)
    rows = joined(stored, fresh)
    report = report_of(rows, calibration, load_kernels(), gpus, models)
    save_own_rows(file, rows)
    replaced = len(stored) + len(fresh) - len(rows)
    unused = _left_out(fresh)
    if as_json:
        counts = {"file": str(file), "rows": len(rows), "added": len(fresh) - replaced, "replaced": replaced}
        print_json(counts | {"left_out": [asdict(one) for one in unused]} | asdict(report))
    else:
        print_own_report(stdout(), report)
        _tell_left_out(unused)
        stderr().print(f"{plural(len(rows), 'row')} kept in {file} ({replaced} replaced)", markup=False)


@app.command()
def constants(as_json: Json = False) -> None:
    """Print every constant with its prior, its fitted value and its source.

    `broker perf evaluate` prints the errors of the predictions that use them.

    Example: broker perf constants
    """
    found = sourced_constants()
    if as_json:
        print_json(_finite([asdict(entry) for entry in found]))
    else:
        stdout().file.write(markdown_constants(found))


def stored_report() -> Report:
    """The report of the published measurements."""
    return TypeAdapter(Report).validate_json(gzip.decompress(STORED.read_bytes()))


def _finite(part: Any) -> Any:
    """``part`` with null for every number that is not finite."""
    if isinstance(part, dict):
        return {name: _finite(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_finite(value) for value in part]
    return None if isinstance(part, float) and not math.isfinite(part) else part


def _left_out(rows: Sequence[Row]) -> list[LeftOut]:
    """What of the rows is not used, each once."""
    found = (one for row in rows for one in left_out_of(row, serving=is_serving(row)))
    return list(dict.fromkeys(found))


def _tell_left_out(unused: Sequence[LeftOut]) -> None:
    for one in unused:
        stderr().print(f"left out: {one}", markup=False, soft_wrap=True)


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file with an ``id`` column; InputError says what is missing or too much."""
    columns, rows = read_table(read_text(path), str(path), fill="")
    if "id" not in columns:
        found = f"the columns {', '.join(columns) or 'of an empty file'}"
        expected = "a CSV header with at least id and kind"
        raise InputError(str(path), (FieldProblem("/header", found[:120], expected, 1, 1),))
    return [_cells(line, row, str(path)) for line, row in rows]


def _cells(line: int, row: dict[Any, Any], source: str) -> Row:
    """The cells of a row by column. Raises InputError for cells beyond the header, which have no column."""
    beyond = [cell for cell in row.pop(None, ()) if cell.strip()]
    if beyond:
        expected = "a cell for each column of the header; text with commas stands in quotes"
        raise InputError(source, (FieldProblem("", f"{beyond[0]!r} after the last column", expected, line),))
    return row
