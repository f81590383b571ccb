"""Predicted over measured step times and peaks of runs with adapters, pure BF16 and unpacked batches, without
and with the words of their methods: ``python -m tests.bench.methods [TABLE.csv]``.

Without them a run is full training in mixed precision with packed sequences.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from broker.catalogue import load_gpus, load_models
from optimizer.calibration.tables.cells import Prediction
from optimizer.calibration.tables.rows import predictions, read_rows
from optimizer.calibration.tables.training_methods import COLUMNS
from optimizer.performance.constants.calibrated import load_calibration
from tests.bench.calibration.bundled import FOLDER

MEASURES = {"step": ("step_time_s", "pred_step_time_s"), "memory": ("mem_gib", "pred_mem_gib")}
SHOWN = ("workload", "adapter", "rank", "targets", "base", "optimizer", "offload", "weights", "mean_tokens")
Row = Mapping[str, str]


def main() -> int:
    """Prints a line a row, and the median errors."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.methods", description=__doc__)
    parser.add_argument("table", nargs="?", type=Path, default=FOLDER / "published_methods.csv")
    with parser.parse_args().table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    plain = [{name: cell for name, cell in row.items() if name not in COLUMNS} for row in rows]
    both = {"without": _predicted(plain), "with": _predicted(rows)}
    shown = Table("row", "run", "step", "with", "GiB", "memory", "with", "fits", "with")
    for index, row in enumerate(rows):
        cells = [_ratio(row, both[how][index], name) for name in MEASURES for how in both]
        fits = [{True: "yes", False: "no", None: ""}[both[how][index].fits] for how in both]
        shown.add_row(row["id"], _run(row), *cells[:2], row["mem_gib"], *cells[2:], *fits)
    console = Console(width=150)
    console.print(shown)
    for name in MEASURES:
        errors = {how: _median(rows, both[how], name) for how in both}
        console.print(f"{name}: median error {errors['without']} without, {errors['with']} with the words")
    return 0


def _predicted(rows: Sequence[Row]) -> list[Prediction]:
    calibration, gpus = load_calibration(), load_gpus()
    return predictions(read_rows(rows, calibration, gpus, load_models()), calibration, gpus)


def _run(row: Row) -> str:
    words = " ".join(row[name] for name in SHOWN if row.get(name) not in (None, "", "adamw"))
    return f"{row['model']} {row['gpus_total']} {row['gpu']} {words}"


def _value(row: Row, found: Prediction, name: str) -> float:
    measured, predicted = MEASURES[name]
    told = float(row[measured] or 0.0)
    return found.values.get(predicted, math.nan) / told if told else math.nan


def _ratio(row: Row, found: Prediction, name: str) -> str:
    value = _value(row, found, name)
    return f"{value:.2f}" if math.isfinite(value) else ""


def _median(rows: Sequence[Row], found: Sequence[Prediction], name: str) -> str:
    ratios = np.asarray([_value(row, one, name) for row, one in zip(rows, found, strict=True)])
    return f"{100 * np.nanmedian(np.abs(ratios - 1.0)):.1f} %"


if __name__ == "__main__":
    sys.exit(main())
