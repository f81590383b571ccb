"""Errors of predictions by what was held out, and the statistics of reports.

O observations. Errors are log(predicted / measured).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.calibration.evaluation.held_out import GPU, MODEL, SOURCE
from optimizer.calibration.table_constants import fit_settings
from optimizer.performance.arrays import Array, Mask, as_array

FITTED = "fitted"
COLUMNS = {FITTED: FITTED, "by_source": SOURCE, "by_model": MODEL, "by_gpu": GPU}


@dataclass(frozen=True, slots=True)
class Entry:
    """One measured number, and its place in the report (``section``, ``group``). ``beside``: it comes from a
    table that no constant was fitted to.
    """

    section: str
    source: str
    regime: str
    group: str
    metric: str
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """Entries, their errors [O] by what was held out (nan: no prediction), and the sides [O, 2] of the 80 %
    interval, below and above.
    """

    entries: tuple[Entry, ...]
    errors: Mapping[str, Array]
    spread: Array

    @property
    def fitted(self) -> Mask:
        """The entries [O] of tables that constants were fitted to."""
        return np.asarray([not entry.beside for entry in self.entries], dtype=np.bool_)

    def of(self, kind: str, members: Sequence[int] | NDArray[np.intp]) -> Array:
        """The errors of some entries; nan if that was not held out."""
        found = self.errors.get(kind)
        return found[members] if found is not None else np.full(len(members), np.nan)


def percent(errors: Array) -> Array:
    """Absolute errors in percent of the measured value, without entries that have no prediction; [nan] if
    none is left.
    """
    known = errors[np.isfinite(errors)]
    return 100.0 * np.abs(np.expm1(known)) if known.size else as_array([np.nan])


def row_weights(sources: Sequence[str]) -> Array:
    """Weights of rows [O] with which a source counts as the square root of its number of rows.

    Rows of one source err together, and the next row comes from a new source.
    """
    rows = Counter(sources)
    return as_array([rows[source] ** -0.5 for source in sources])


def coverage(errors: Array, spread: Array, sources: Sequence[str]) -> float:
    """Share of predicted entries whose error is within the interval; a source weighs the square root of its
    number of rows.

    It estimates the coverage of the next row, which comes from a new source.
    """
    known = np.isfinite(errors) & np.isfinite(spread).all(axis=1)
    if not known.any():
        return float("nan")
    weight = row_weights([source for source, is_known in zip(sources, known, strict=True) if is_known])
    return float(np.average(inside(errors[known], spread[known]), weights=weight))


def inside(errors: Array, spread: Array) -> Mask:
    """Which measured numbers lie between P10 and P90 of their predictions."""
    found: Mask = (errors <= spread[:, 0]) & (errors >= -spread[:, 1])
    return found


def noise_floor_percent(metric: str, group: str) -> float:
    """The difference of two measurements of the same configuration, in percent; 0 if it is unknown."""
    table = fit_settings()["noise_floor"]
    kind = "moe" if group.endswith("moe") else "dense"
    plain = metric.split(" p9")[0].split(" p5")[0]
    return 100.0 * float(table.get(f"{metric} {kind}", table.get(plain, 0.0)))
