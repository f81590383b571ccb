"""What only a maintainer does with published measurements: ``python -m tests.bench.calibration TASK``.

``fit`` fits the constants to the bundled tables and writes config/performance_fitted.toml,
performance_folds.json and performance_nearby.toml; it takes some minutes. ``report`` writes what
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
from tests.bench.calibration.bundled import beside_rows, bundled_rows
from tests.bench.calibration.bundled_report import evaluate_bundled, markdown_report, save_report
from tests.bench.calibration.fitted_store import interval_half_widths, save_fitted, save_folds
from tests.bench.calibration.folds import fit_all
from tests.bench.calibration.hybrid import evaluate_hybrid, print_hybrid
from tests.bench.calibration.kernel_fit import fit_kernels, save_kernels


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
    intervals = interval_half_widths(rows + beside_rows(), calibration, gpus, models)
    today = datetime.now(UTC).date()
    save_fitted(fitted.values, intervals, today)
    save_kernels(fit_kernels(rows, calibration, gpus, models), today)
    sys.stdout.write(f"{len(fitted.values)} constants fitted to {len(rows)} rows\n")


def report() -> None:
    """Writes the report, and prints it as Markdown."""
    found = evaluate_bundled(load_calibration(), load_priors(), load_gpus(), load_models())
    save_report(found)
    sys.stdout.write(markdown_report(found))


def hybrid() -> None:
    """Prints the errors with measured rows nearby."""
    rows, kernels = bundled_rows(), load_kernels()
    print_hybrid(Console(), evaluate_hybrid(rows, load_calibration(), kernels, load_gpus(), load_models()))


TASKS = {"fit": fit, "report": report, "hybrid": hybrid}


if __name__ == "__main__":
    sys.exit(main())
