"""Prediction errors over measured rows: by source and regime, by what was held out, and over the grid."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.evaluation.errors import (
    COLUMNS,
    FITTED,
    Entry,
    Evidence,
    coverage,
    noise_floor_percent,
    percent,
)
from optimizer.calibration.evaluation.held_out import GPU, MODEL, SOURCE, held_out_errors, load_folds
from optimizer.calibration.evaluation.ranking import (
    RANKED,
    cell_correlations,
    cells_of,
    reachable_correlations,
    steady_correlations,
)
from optimizer.calibration.evaluation.report import (
    APART,
    GRID,
    SERVING,
    TRAINING,
    BesideErrors,
    ErrorLine,
    GridReport,
    HeldOutLine,
    Report,
)
from optimizer.calibration.evaluation.targets import Targets, figures, load_targets
from optimizer.calibration.table_constants import other_sources
from optimizer.calibration.tables.observations import (
    Observation,
    identifier_front,
    log_errors,
    loop_rates,
    observations,
    with_overload,
)
from optimizer.calibration.tables.rows import ReadRows, is_serving, predictions, read_rows
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.constants.spread import Sides

UNKNOWN = Sides(math.nan, math.nan)
TRAINING_METRICS = frozenset({"step time", "peak memory"})


def evaluate_rows(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> Report:
    """Errors of ``rows``. A row whose source was fitted is predicted by constants
    fitted without that source.
    """
    read = read_rows(rows, calibration, gpus, models)
    evidence = evidence_of_rows(rows, len(rows), read, calibration, gpus)
    return report_of(evidence, grid_report(rows, read, calibration, gpus))


def report_of(
    evidence: Evidence, grid: GridReport | None, left_out: Mapping[str, float] | None = None
) -> Report:
    """The statistics of the evidence, beside the targets; ``left_out`` as in ``figures``."""
    targets = load_targets()
    lines: dict[tuple[str, ...], list[int]] = defaultdict(list)
    regimes: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, entry in enumerate(evidence.entries):
        lines[entry.source, entry.regime, entry.metric].append(index)
        regimes[entry.group, entry.metric].append(index)
    held_out = tuple(_held_out_line(members, evidence, targets) for members in _ordered(regimes, evidence))
    return Report(
        tuple(_error_line(members, evidence) for members in _ordered(lines, evidence)),
        held_out,
        grid,
        figures(evidence, held_out, grid, targets, left_out),
    )


def _ordered(found: Mapping[tuple[str, ...], list[int]], evidence: Evidence) -> Iterable[list[int]]:
    """Groups of entries by section, in the order in which sections first appear, then by name."""
    sections = list(dict.fromkeys(entry.section for entry in evidence.entries))

    def place(key: tuple[str, ...]) -> tuple[int, tuple[str, ...]]:
        return sections.index(evidence.entries[found[key][0]].section), key

    return [found[key] for key in sorted(found, key=place)]


def evidence_of_rows(
    rows: Sequence[Mapping[str, str]],
    fitted: int,
    read: ReadRows,
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
) -> Evidence:
    """The evidence of ``rows``, of which the first ``fitted`` are of tables that constants were fitted to."""
    found = predictions(read, calibration, gpus)
    fair = [o for o in observations(rows) if o.fair]
    observed = with_overload(fair, read, found) + loop_rates(rows)
    sides = [found[o.place].spread.get(o.column, UNKNOWN) for o in observed]
    errors = {kind: held_out_errors(kind, read, observed, calibration, gpus) for kind in (SOURCE, MODEL, GPU)}
    return Evidence(
        tuple(
            Entry(_section(o), o.source, _shown(o), regime_group(o), o.metric, o.place >= fitted)
            for o in observed
        ),
        {FITTED: log_errors(read, observed, calibration, gpus), **errors},
        as_array([(one.below, one.above) for one in sides]).reshape(len(sides), 2),
    )


def regime_group(observation: Observation) -> str:
    """The group of regimes with a common target: training by kind of model, serving by kind of load."""
    if observation.metric in TRAINING_METRICS:
        word = observation.regime.split(" ")[0]
        return f"training {'moe' if 'moe' in word else 'grid' if word == 'grid' else 'dense'}"
    return _shown(observation)


def _shown(observation: Observation) -> str:
    """The regime. It is marked ``APART`` if the source measured something else (``[not_in_intervals]``): such
    rows are reported, but count for no target and no interval.
    """
    return f"{APART} {observation.regime}" if observation.source in other_sources() else observation.regime


def _section(observation: Observation) -> str:
    if observation.metric not in TRAINING_METRICS:
        return SERVING
    return GRID if observation.regime.startswith("grid") else TRAINING


def _error_line(members: Sequence[int], evidence: Evidence) -> ErrorLine:
    entry, errors = evidence.entries[members[0]], evidence.of(SOURCE, members)
    known = np.isfinite(errors)
    off, fitted = percent(errors), percent(evidence.of(FITTED, members))
    return ErrorLine(
        section=entry.section,
        source=entry.source,
        regime=entry.regime,
        metric=entry.metric,
        rows=int(known.sum()),
        mean_percent=float(np.mean(off)),
        median_percent=float(np.median(off)),
        p90_percent=float(np.percentile(off, 90)),
        max_percent=float(np.max(off)),
        fitted_mean_percent=float(np.mean(fitted)),
        fitted_max_percent=float(np.max(fitted)),
        bias=float(np.exp(np.median(errors[known]))) if known.any() else float("nan"),
        coverage=_coverage(members, evidence),
        unpredicted=int((~known).sum()),
        noise_floor_percent=noise_floor_percent(entry.metric, entry.group),
        beside=entry.beside,
    )


def _held_out_line(members: Sequence[int], evidence: Evidence, targets: Targets) -> HeldOutLine:
    entry, errors = evidence.entries[members[0]], evidence.of(SOURCE, members)
    inside = evidence.fitted[members]
    medians = {
        name: float(np.median(percent(evidence.of(kind, members)[inside]))) for name, kind in COLUMNS.items()
    }
    return HeldOutLine(
        section=entry.section,
        regime=entry.group,
        metric=entry.metric,
        rows=int(np.isfinite(errors[inside]).sum()),
        fitted_percent=medians["fitted"],
        by_source_percent=medians["by_source"],
        by_model_percent=medians["by_model"],
        by_gpu_percent=medians["by_gpu"],
        coverage=_coverage(members, evidence),
        noise_floor_percent=noise_floor_percent(entry.metric, entry.group),
        targets=targets.limits_of(entry),
        beside=_beside(np.asarray(members, dtype=np.intp)[~inside].tolist(), evidence),
    )


def _beside(members: Sequence[int], evidence: Evidence) -> BesideErrors | None:
    """Errors of entries that no constant was fitted to; None if none of them has a prediction."""
    errors = evidence.of(SOURCE, members)
    known = np.isfinite(errors)
    if not known.any():
        return None
    return BesideErrors(
        rows=int(known.sum()),
        sources=len({evidence.entries[index].source for index in members}),
        median_percent=float(np.median(percent(errors))),
        bias=float(np.exp(np.median(errors[known]))),
        coverage=_coverage(members, evidence),
    )


def _coverage(members: Sequence[int], evidence: Evidence) -> float:
    sources = [evidence.entries[index].source for index in members]
    return coverage(evidence.of(SOURCE, members), evidence.spread[members], sources)


def _at_aim(correlations: Sequence[float]) -> int:
    return int(np.sum(as_array(correlations) >= RANKED))


def grid_report(
    rows: Sequence[Mapping[str, str]], read: ReadRows, calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> GridReport | None:
    """Fit decisions and ranks of runs with a status, held out by source; None without such runs."""
    told = [place for place, row in enumerate(rows) if row.get("status") and not is_serving(row)]
    if not told:
        return None
    folds = load_folds()[SOURCE]
    names = {identifier_front(rows[p]) for p in told}
    held_out = calibration.with_values(folds.get(names.pop(), {}) if len(names) == 1 else {})
    found = predictions(read.at(told), held_out, gpus)
    decided = [(rows[p]["status"] == "ok", found[p].fits) for p in told if found[p].fits is not None]
    cells = cells_of(rows, found)
    ranks = cell_correlations(cells)
    known = as_array(ranks) if ranks else as_array([np.nan])
    return GridReport(
        fit_right=sum(ran is fits for ran, fits in decided),
        fit_told=len(decided),
        cells=len(ranks),
        spearman_median=float(np.median(known)),
        spearman_least=float(np.min(known)),
        spearman_above_09=_at_aim(ranks),
        steady_above_09=_at_aim(steady_correlations(cells)),
        reachable_above_09=_at_aim(reachable_correlations(cells)),
    )
