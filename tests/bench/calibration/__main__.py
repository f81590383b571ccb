"""What only a maintainer does with published measurements: ``python -m tests.bench.calibration TASK``.

``fit`` fits the constants to the bundled tables and writes config/performance_fitted.toml,
performance_folds.json and performance_nearby.toml; ``spread`` then fits the 80 % intervals, writes
config/performance_spread.toml and prints how often they hold publishers that they were not made of; each
takes some minutes. ``report`` writes what
``broker perf evaluate`` prints, config/performance_report.json.gz, and prints the tables of
docs/performance-accuracy.md; run it after each change of the tables, the constants or the model. ``hybrid``
prints the errors of predictions that similar measured rows correct.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime

from rich.console import Console

from broker.catalogue import load_gpus, load_models
from optimizer.performance.constants.calibrated import load_calibration, load_priors
from optimizer.performance.own.shift import load_kernels
from tests.bench.calibration.bundled import beside_rows, blind_rows, bundled_rows
from tests.bench.calibration.bundled_report import evaluate_bundled, markdown_report, save_report
from tests.bench.calibration.fitted_store import save_fitted, save_folds
from tests.bench.calibration.folds import fit_all
from tests.bench.calibration.hybrid import evaluate_hybrid, print_hybrid
from tests.bench.calibration.kernel_fit import fit_kernels, save_kernels
from tests.bench.calibration.spread_fit import BLIND, FITTED, LOOKED_AT, SpreadFit, measured_numbers
from tests.bench.calibration.spread_store import coverage_table, promise_table, save_spread


def main() -> int:
    """Runs one task."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.calibration", description=__doc__)
    parser.add_argument("task", choices=TASKS)
    TASKS[parser.parse_args().task]()
    return 0


def fit() -> None:
    """Fits and writes all constants."""
    rows, gpus, models = bundled_rows(), load_gpus(), load_models()
    fitted = fit_all(rows, load_priors(), gpus, models)
    save_folds(fitted)
    calibration = load_priors().with_values(fitted.values)
    today = datetime.now(UTC).date()
    save_fitted(fitted.values, today)
    save_kernels(fit_kernels(rows, calibration, gpus, models), today)
    sys.stdout.write(f"{len(fitted.values)} constants fitted to {len(rows)} rows\n")


def spread() -> None:
    """Fits and writes the spread of errors, and prints how often it holds publishers left out."""
    tables = {FITTED: bundled_rows(), LOOKED_AT: beside_rows(), BLIND: blind_rows()}
    made = SpreadFit(measured_numbers(tables, load_calibration(), load_gpus(), load_models()))
    found, held = made.whole()
    save_spread(found, made, datetime.now(UTC).date())
    sys.stdout.write(coverage_table(made, held) + "\n" + promise_table(made, held))


def report() -> None:
    """Writes the report, and prints it as Markdown."""
    found = evaluate_bundled(load_calibration(), load_priors(), load_gpus(), load_models())
    save_report(found)
    sys.stdout.write(markdown_report(found))


def hybrid() -> None:
    """Prints the errors with measured rows nearby."""
    rows, kernels = bundled_rows(), load_kernels()
    print_hybrid(Console(), evaluate_hybrid(rows, load_calibration(), kernels, load_gpus(), load_models()))


TASKS = {"fit": fit, "spread": spread, "report": report, "hybrid": hybrid}


if __name__ == "__main__":
    sys.exit(main())
