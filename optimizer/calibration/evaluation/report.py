"""The report of ``broker perf evaluate``: lines of errors, the grid, and figures with their targets.

Errors are absolute, in percent of the measured value. A line belongs to a section. Sections appear in the
order of their first line, so that a new regime or metric needs no entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optimizer.performance.constants.calibrated import CONFIG

STORED = CONFIG.with_name("performance_report.json.gz")
"""The report of the published measurements."""
TRAINING, SERVING, GRID = "Training", "Serving", "Grid"
COLLECTIVES = "Collectives"
APART = "apart"


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """Errors of one metric over the rows of one source and regime, held out by source.

    ``bias``: median of predicted over measured. ``coverage``: share of measured values within the 80 %
    interval. ``unpredicted``: rows with a measured value and no prediction, or over capacity. ``fitted_*``:
    the same with the source's own rows in the fit. ``beside``: the source is in no fit.
    """

    section: str
    source: str
    regime: str
    metric: str
    rows: int
    mean_percent: float
    median_percent: float
    p90_percent: float
    max_percent: float
    fitted_mean_percent: float
    fitted_max_percent: float
    bias: float
    coverage: float
    unpredicted: int
    noise_floor_percent: float
    beside: bool = False


@dataclass(frozen=True, slots=True)
class BesideErrors:
    """Errors of a regime over rows of tables that no constant was fitted to."""

    rows: int
    sources: int
    median_percent: float
    bias: float
    coverage: float


@dataclass(frozen=True, slots=True)
class HeldOutLine:
    """Median errors of a regime: with all rows fitted, and with each row's source, model family or GPU held
    out; nan if that was not held out.

    ``beside``: the regime's rows that no constant was fitted to. ``coverage`` as in ``ErrorLine``, held out
    by source, over both kinds of rows; a source weighs the square root of its number of rows. ``targets``:
    limits of the columns by name, such as ``by_source``.
    """

    section: str
    regime: str
    metric: str
    rows: int
    fitted_percent: float
    by_source_percent: float
    by_model_percent: float
    by_gpu_percent: float
    coverage: float
    noise_floor_percent: float
    targets: Mapping[str, float] = field(default_factory=dict)
    beside: BesideErrors | None = None


@dataclass(frozen=True, slots=True)
class GridReport:
    """Runs of one model over many layouts: the share of correct decisions whether a layout fits, and the rank
    correlation of predicted and measured rates within each cell of model and GPU count (at least
    ``CELL_LEAST`` runs).

    Shares of cells with a correlation of at least 0.9: ``spearman_above_09`` over all runs,
    ``steady_above_09`` over runs that did not stall, ``reachable_above_09`` for a model that is exact except
    for stalled runs.
    """

    fit_right: int
    fit_told: int
    cells: int
    spearman_median: float
    spearman_least: float
    spearman_above_09: int
    steady_above_09: int
    reachable_above_09: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure and its target. ``held_out``: what was held out of the fit. ``value`` and ``limit`` are in
    ``unit``; ``met`` is None if nothing was measured.
    """

    section: str
    name: str
    held_out: str
    statistic: str
    rows: int
    value: float
    limit: str
    unit: str
    met: bool | None
    noise_floor_percent: float


@dataclass(frozen=True, slots=True)
class Report:
    """All output of ``broker perf evaluate``."""

    lines: tuple[ErrorLine, ...]
    held_out: tuple[HeldOutLine, ...]
    grid: GridReport | None
    figures: tuple[Figure, ...] = ()
