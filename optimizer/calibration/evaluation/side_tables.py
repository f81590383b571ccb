"""Evidence from the small tables: collectives, cold starts, cache capacities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from broker.domain.planning.model_shape import GpuSpec, ModelShape
from optimizer.calibration.evaluation.errors import FITTED, Entry, Evidence
from optimizer.calibration.evaluation.report import CACHE, COLD_START, COLLECTIVES
from optimizer.calibration.fitting.cold_starts import cold_starts_table, read_cold_starts
from optimizer.calibration.fitting.collectives import (
    ALL_REDUCE,
    CollectiveRow,
    collectives_table,
    read_collectives,
)
from optimizer.calibration.fitting.folds import SOURCE
from optimizer.calibration.fitting.table_fit import (
    Row,
    Table,
    fit_table,
    held_out_by_source,
    interval_of_others,
)
from optimizer.calibration.tables.bundled import cache_rows, cold_start_rows, sweep_rows
from optimizer.calibration.tables.cache_rows import cache_ratios
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import Calibration

SHARE = 0.8


def side_evidence(
    calibration: Calibration,
    priors: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> Evidence:
    """The evidence of all three tables. ``priors``: the constants before any fit, from
    which the folds start.
    """
    collectives = collectives_table(read_collectives(sweep_rows(), gpus, priors), gpus)
    starts = cold_starts_table(read_cold_starts(cold_start_rows()))
    started = [Entry(COLD_START, row.source, "cold start", "cold start", row.phase) for row in starts.rows]
    return (
        _of_table(
            collectives, [_collective(row) for row in collectives.rows], _alike(collectives.rows), priors
        )
        .joined_with(_of_table(starts, started, [entry.group for entry in started], priors))
        .joined_with(_caches(calibration, gpus, models))
    )


def _collective(row: CollectiveRow) -> Entry:
    size = "≥16 MB" if row.large else "<16 MB"
    system = row.system.split(" (")[0]
    return Entry(COLLECTIVES, row.source, f"{system} {size}", f"collectives {size}", row.operation)


def _alike(rows: Sequence[CollectiveRow]) -> list[str]:
    """Groups of rows with similar errors: all-reduces and their halves, within a node by size, and between
    nodes together, because clusters differ more than sizes do.
    """
    sizes = ["large" if row.large else "small" for row in rows]
    reach = ["between" if row.sku.fabric is not None else size for row, size in zip(rows, sizes, strict=True)]
    return [f"{row.operation == ALL_REDUCE} {where}" for row, where in zip(rows, reach, strict=True)]


def _of_table(
    table: Table[Row], entries: Sequence[Entry], alike: Sequence[str], priors: Calibration
) -> Evidence:
    """``alike`` has each row's group; the row's interval comes from the other sources of that group."""
    held_out = held_out_by_source(table, priors)
    return Evidence(
        tuple(entries),
        {FITTED: table.errors(priors.with_values(fit_table(table, priors))), SOURCE: held_out},
        interval_of_others(table.rows, alike, held_out, SHARE),
    )


def _caches(
    calibration: Calibration, gpus: Mapping[str, GpuSpec], models: Mapping[str, ModelShape]
) -> Evidence:
    """No constant is fitted to cache capacities, so all of them are held out."""
    errors = np.log(as_array(cache_ratios(cache_rows(), calibration, gpus, models)))
    entries = tuple(Entry(CACHE, "vLLM 0.15.1 logs", CACHE, CACHE, "tokens") for _ in errors)
    spread = np.full(errors.size, np.log1p(calibration.intervals.kv))
    return Evidence(entries, {FITTED: errors, SOURCE: errors}, spread)
