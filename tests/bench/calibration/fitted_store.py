"""Writes the result of a fit: constants, the constants of each fold, and their origin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date

from optimizer.calibration.evaluation.held_out import FOLDS, load_folds
from optimizer.performance.constants.calibrated import FITTED, load_calibration
from tests.bench.calibration.bundled import data_sha256
from tests.bench.calibration.folds import Fitted

DIGITS = 5
COMMAND = "python -m tests.bench.calibration fit"


def save_folds(fitted: Fitted) -> None:
    """Writes the constants of each fold in the form that ``load_folds`` reads."""
    folds = {
        kind: {name: _rounded(values) for name, values in by_name.items()}
        for kind, by_name in fitted.folds.items()
    }
    FOLDS.write_text(json.dumps(folds, indent=0, sort_keys=True) + "\n")
    load_folds.cache_clear()


def save_fitted(values: Mapping[str, float], on: date) -> None:
    """``config/performance_fitted.toml``."""
    lines = [
        f"# Written by `{COMMAND}`: constants of performance.toml fitted to fixtures/performance.",
        "# Not edited by hand.",
        f'data_sha256 = "{data_sha256()}"',
        f"fitted_on = {on.isoformat()}",
        f'command = "{COMMAND}"',
        "",
        "[values]",
        *(f'"{path}" = {number!r}' for path, number in _rounded(values).items()),
    ]
    FITTED.write_text("\n".join(lines) + "\n")
    load_calibration.cache_clear()


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    """Five significant digits."""
    return {path: float(f"{number:.{DIGITS - 1}e}") for path, number in values.items()}
