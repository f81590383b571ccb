"""Errors of measured numbers by what was held out, and the statistics that reports make of them.

O observations. Errors are log(predicted / measured).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.calibration.fitting.folds import GPU, MODEL, SOURCE
from optimizer.calibration.fitting.gauss_newton import fit_settings, row_weights
from optimizer.performance.arrays import Array, Mask, as_array

FITTED = "fitted"
COLUMNS = {FITTED: FITTED, "by_source": SOURCE, "by_model": MODEL, "by_gpu": GPU}


@dataclass(frozen=True, slots=True)
class Entry:
    """One measured number: where it is shown (``section``, ``group``), and what it is. ``beside``: of a table
    that no constant was fitted to."""

    section: str
    source: str
    regime: str
    group: str
    metric: str
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """Entries, their errors [O] by what was held out (nan: not predicted), and the half-widths [O] in log of
    the 80 % interval."""

    entries: tuple[Entry, ...]
    errors: Mapping[str, Array]
    spread: Array

    @property
    def fitted(self) -> Mask:
        """The entries [O] of tables that constants were fitted to."""
        return np.asarray([not entry.beside for entry in self.entries], dtype=np.bool_)

    def of(self, kind: str, members: Sequence[int] | NDArray[np.intp]) -> Array:
        """The errors of some entries; nan where that was not held out."""
        found = self.errors.get(kind)
        return found[members] if found is not None else np.full(len(members), np.nan)

    def and_also(self, other: Evidence) -> Evidence:
        """Both, one after the other."""
        here, there = np.arange(len(self.entries)), np.arange(len(other.entries))
        kinds = {**self.errors, **other.errors}
        return Evidence(
            self.entries + other.entries,
            {kind: np.concatenate([self.of(kind, here), other.of(kind, there)]) for kind in kinds},
            np.concatenate([self.spread, other.spread]),
        )


def percent(errors: Array) -> Array:
    """Absolute errors in percent of the measured value, unpredicted ones left out; [nan] without any."""
    known = errors[np.isfinite(errors)]
    return 100.0 * np.abs(np.expm1(known)) if known.size else as_array([np.nan])


def coverage(errors: Array, spread: Array, sources: Sequence[str]) -> float:
    """Share of predicted entries whose error is within the interval, a source weighing the root of its rows:
    how probable that is for the next row, which comes from a source that is not here."""
    known = np.isfinite(errors) & np.isfinite(spread)
    if not known.any():
        return float("nan")
    weight = row_weights([source for source, is_known in zip(sources, known, strict=True) if is_known])
    return float(np.average(np.abs(errors[known]) <= spread[known], weights=weight))


def noise_floor_percent(metric: str, group: str) -> float:
    """What two measurements of the same configuration differ by, in percent; 0 where nobody knows."""
    table = fit_settings()["noise_floor"]
    kind = "moe" if group.endswith("moe") else "dense"
    plain = metric.split(" p9")[0].split(" p5")[0]
    return 100.0 * float(table.get(f"{metric} {kind}", table.get(plain, 0.0)))
