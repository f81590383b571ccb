"""Evidence from the small tables: collectives and cache capacities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.evaluation.errors import FITTED, Entry, Evidence
from optimizer.calibration.evaluation.held_out import SOURCE
from optimizer.calibration.evaluation.report import COLLECTIVES
from optimizer.performance.arrays import as_array
from optimizer.performance.constants.calibrated import Calibration
from tests.bench.calibration.bundled import cache_rows, sweep_rows
from tests.bench.calibration.cache_rows import cache_ratios
from tests.bench.calibration.collective_fit import (
    collective_errors,
    fit_collectives,
    held_out_by_source,
    interval_of_others,
)
from tests.bench.calibration.collectives import ALL_REDUCE, CollectiveRow, read_collectives

CACHE = "KV cache"
SHARE = 0.8


def side_evidence(
    calibration: Calibration,
    priors: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> list[Evidence]:
    """The evidence of each table. ``priors``: the constants before any fit, from which the folds start."""
    return [_collectives(priors, gpus), _caches(calibration, gpus, models)]


def joined(parts: Sequence[Evidence]) -> Evidence:
    """All of the evidence, one part after the other."""
    kinds = dict.fromkeys(kind for part in parts for kind in part.errors)
    return Evidence(
        tuple(entry for part in parts for entry in part.entries),
        {kind: np.concatenate([part.of(kind, range(len(part.entries))) for part in parts]) for kind in kinds},
        np.concatenate([part.spread for part in parts]),
    )


def _collectives(priors: Calibration, gpus: Mapping[str, GpuSpec]) -> Evidence:
    rows = read_collectives(sweep_rows(), gpus, priors)
    fitted = priors.with_values(fit_collectives(rows, priors, gpus))
    held_out = held_out_by_source(rows, priors, gpus)
    half = interval_of_others(rows, _alike(rows), held_out, SHARE)
    return Evidence(
        tuple(_collective(row) for row in rows),
        {FITTED: collective_errors(rows, fitted, gpus), SOURCE: held_out},
        np.column_stack([half, half]),
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


def _caches(
    calibration: Calibration, gpus: Mapping[str, GpuSpec], models: Mapping[str, ModelShape]
) -> Evidence:
    """No constant is fitted to cache capacities, so all of them are held out."""
    errors = np.log(as_array(cache_ratios(cache_rows(), calibration, gpus, models)))
    entries = tuple(Entry(CACHE, "vLLM 0.15.1 logs", CACHE, CACHE, "tokens") for _ in errors)
    spread = np.full((errors.size, 2), np.log1p(calibration.intervals.kv))
    return Evidence(entries, {FITTED: errors, SOURCE: errors}, spread)
