"""The user's own measured rows: checked, stored in a file, and joined with later ones.

The file is a CSV table with the columns of the bundled ones; every given cell is kept.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.own.evidence import MEASURES, features_of, is_evidence, residuals_of
from optimizer.calibration.tables.cells import Unreadable, number
from optimizer.calibration.tables.observations import (
    SERVING_PAIRS,
    TRAINING_PAIRS,
    Observation,
    log_errors,
    observations,
)
from optimizer.calibration.tables.rows import ReadRows, is_serving, read_rows
from optimizer.calibration.tables.serving_reading import read_row as read_serving_row
from optimizer.calibration.tables.serving_words import FORMATS, REGIMES, format_named
from optimizer.calibration.tables.training_rows import read_row as read_training_row
from optimizer.performance.arrays import Array
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.own.features import NUMBERS, WORDS
from optimizer.performance.own.gaussian_process import OUTLIER, Kernel, correlation, inverse_of

Row = dict[str, str]
FIRST_LINE = 2
MOST_PROBLEMS = 20
SERVING_MEASURED = tuple(name for _, _, names in SERVING_PAIRS for name in names)
TRAINING_MEASURED = (*(name for _, _, names in TRAINING_PAIRS for name in names), "tokens_per_s_per_gpu")


@dataclass(frozen=True, slots=True)
class OwnLine:
    """Median errors of the user's rows in one metric in percent: of the model, and with the other rows as
    evidence."""

    metric: str
    rows: int
    before_percent: float
    after_percent: float


@dataclass(frozen=True, slots=True)
class Reach:
    """The share of a correction that is left for a row that differs by one step, by what differs; for one
    block of metrics."""

    block: str
    left: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class OwnReport:
    """The report on the user's rows: errors by metric, reach by block, and ids of rows without use with the
    reason."""

    lines: tuple[OwnLine, ...]
    reach: tuple[Reach, ...]
    unused: Mapping[str, str]


def load_own_rows(path: Path) -> list[Row]:
    """The rows of the file without blank cells; none if there is no file. Raises InputError."""
    if not path.is_file():
        return []
    try:
        text = path.read_text(encoding="utf-8")
        return [_given(row) for row in csv.DictReader(io.StringIO(text), restval="")]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problem = FieldProblem("", str(error), "a CSV file written by `broker perf calibrate`")
        raise InputError(str(path), (problem,)) from error


def save_own_rows(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Writes the whole file: first to a temporary one, which then replaces it. Raises InputError."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    fresh = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(text.getvalue(), encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        problem = FieldProblem("", str(error.strerror), "a path that can be written")
        raise InputError(str(path), (problem,)) from error


def joined(stored: Sequence[Row], fresh: Sequence[Row]) -> list[Row]:
    """Stored rows and new ones; a new row replaces stored ones with its id."""
    ids = {row["id"] for row in fresh}
    return [row for row in stored if row.get("id") not in ids] + list(fresh)


def check_rows(
    rows: Sequence[Mapping[str, str]],
    source: str,
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> list[Row]:
    """The rows without their blank cells. Raises InputError with line and column of the first faults."""
    given = [_given(row) for row in rows]
    found = (
        problem
        for place, row in enumerate(given)
        for problem in _problems(place, row, list(rows[place]), calibration, gpus, models)
    )
    problems = list(islice(found, MOST_PROBLEMS))
    if next(found, None) is not None:
        problems.append(FieldProblem("", "further faults", "the ones above corrected first"))
    if not given:
        problems = [FieldProblem("", "no rows", "at least one measured row")]
    if problems:
        raise InputError(source, tuple(problems))
    return given


def _given(row: Mapping[str, str]) -> Row:
    return {name: cell.strip() for name, cell in row.items() if name and (cell or "").strip()}


def _problems(
    place: int,
    row: Row,
    header: Sequence[str],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> Iterator[FieldProblem]:
    """Faults of one row: ids, names, numbers, and whether anything was measured. Columns count from 1."""
    faults = list(_faults(row, gpus, models))
    if not faults:
        reader = read_serving_row if is_serving(row) else read_training_row
        try:
            reader(row, calibration, gpus, models)
        except Unreadable as reason:
            faults = [("", str(reason), "a row that can be predicted")]
    for column, found, expected in faults:
        pointer, at = f"/{row.get('id', place)}/{column}", header.index(column) + 1 if column in header else 1
        yield FieldProblem(pointer, found, expected, place + FIRST_LINE, at)


def _faults(
    row: Row, gpus: Mapping[str, GpuSpec], models: Mapping[str, ModelShape]
) -> Iterator[tuple[str, str, str]]:
    serving = is_serving(row)
    if "id" not in row:
        yield "id", "a blank cell", "a name for the row"
    if row.get("kind", "training") not in {"training", "serving"}:
        yield "kind", repr(row["kind"]), "training or serving"
    if row.get("gpu") not in gpus:
        yield "gpu", repr(row.get("gpu", "")), "a GPU of config/gpus.csv"
    if serving and row.get("model") not in models:
        yield "model", repr(row.get("model", "")), "a model of config/models.csv"
    if serving and row.get("regime") not in REGIMES:
        yield "regime", repr(row.get("regime", "")), f"one of {', '.join(REGIMES)}"
    if serving and format_named(row.get("weight_precision", "")) is None:
        yield "weight_precision", repr(row.get("weight_precision", "")), f"one of {', '.join(FORMATS)}"
    yield from _measured_faults(row, SERVING_MEASURED if serving else TRAINING_MEASURED)


def _measured_faults(row: Row, columns: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Measured cells must be numbers above 0, and there must be at least one."""
    columns = tuple(dict.fromkeys(columns))
    for column in columns:
        try:
            if column in row and not number(row, column):
                yield column, repr(row[column]), "a number above 0"
        except Unreadable:
            yield column, repr(row[column]), "a number above 0"
    if not any(column in row for column in columns):
        yield "", "no measured number", f"one of the columns {', '.join(columns)}"


def completed(rows: Sequence[Mapping[str, str]]) -> list[Row]:
    """Rows as evidence: a training row that only has tokens/s gets its step time."""
    return [_with_step_time(dict(row)) for row in rows]


def _with_step_time(row: Row) -> Row:
    if is_serving(row) or "step_time_s" in row or "tokens_per_s_per_gpu" not in row:
        return row
    try:
        tokens = (number(row, "seq_len") or 0.0) * (number(row, "global_batch") or 0.0)
        rate = (number(row, "tokens_per_s_per_gpu") or 0.0) * (number(row, "gpus_total") or 0.0)
    except Unreadable:
        return row
    return row | {"step_time_s": repr(tokens / rate)} if tokens > 0 and rate > 0 else row


def report_of(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    kernels: Mapping[str, Kernel],
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> OwnReport:
    """Errors of the model, and errors with each row predicted from the others (leave one out)."""
    full = completed(rows)
    read = read_rows(full, calibration, gpus, models)
    observed = [o for o in observations(full) if is_evidence(o)]
    errors = log_errors(read, observed, calibration, gpus)
    lines = []
    for metric in dict.fromkeys(o.metric for o in observed):
        places = [i for i, o in enumerate(observed) if o.metric == metric and np.isfinite(errors[i])]
        if places:
            mine = [observed[i] for i in places]
            lines.append(_line(metric, mine, errors[places], full, read, kernels, gpus))
    told = {o.place for o, error in zip(observed, errors, strict=True) if np.isfinite(error)}
    blocks = dict.fromkeys(MEASURES[line.metric].block for line in lines)
    return OwnReport(
        tuple(lines),
        tuple(reach_of(block, kernels[block]) for block in blocks),
        {
            row.get("id", str(place)): _why(place, full, observed)
            for place, row in enumerate(full)
            if place not in told
        },
    )


def _line(
    metric: str,
    mine: Sequence[Observation],
    errors: Array,
    rows: Sequence[Mapping[str, str]],
    read: ReadRows,
    kernels: Mapping[str, Kernel],
    gpus: Mapping[str, GpuSpec],
) -> OwnLine:
    kernel, features = kernels[MEASURES[metric].block], features_of(mine, rows, read, gpus)
    residuals = residuals_of(mine, errors)
    known = np.clip(residuals, -OUTLIER, OUTLIER)
    covariance = kernel.variance * correlation(features, features, kernel.lengths)
    inverse = inverse_of(covariance, kernel.noise)
    after = residuals - leave_out(inverse, known, np.arange(known.size))[0]
    sign = MEASURES[metric].sign
    return OwnLine(metric, len(mine), _median(sign * residuals), _median(sign * after))


def leave_out(inverse: Array, residuals: Array, groups: NDArray[np.intp]) -> tuple[Array, Array]:
    """Mean and variance [N] of each row's measurement, predicted without the rows of its own group.

    With B the inverse of the group's block of (K + noise)⁻¹: the mean is y_g − B·((K + noise)⁻¹y)_g, the
    variances are the diagonal of B.
    """
    pulled = inverse @ residuals
    mean, variance = np.zeros(residuals.size), np.zeros(residuals.size)
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    for members in np.split(order, starts[1:]):
        block = np.linalg.inv(inverse[np.ix_(members, members)])
        mean[members] = residuals[members] - block @ pulled[members]
        variance[members] = np.diag(block)
    return mean, variance


def _median(left: Array) -> float:
    return float(np.median(100.0 * np.abs(np.expm1(-left))))


def _why(place: int, rows: Sequence[Mapping[str, str]], observed: Sequence[Observation]) -> str:
    if any(o.place == place for o in observed):
        return "the load exceeds the predicted capacity, or no layout fits"
    notes = rows[place].get("notes", "")
    return (
        f"marked as something else ({notes[:60]})" if notes else "it measured nothing that the model predicts"
    )


def reach_of(block: str, kernel: Kernel) -> Reach:
    """exp(−length) for each word and number: 1 if it does not matter, 0 if the correction ends there."""
    names = [name for name in (*WORDS, *NUMBERS) if name in kernel.lengths]
    return Reach(block, {name: float(np.exp(-kernel.lengths[name])) for name in names})
