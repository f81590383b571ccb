"""Errors of measured numbers by what was held out, and the statistics that reports make of them.

O observations. Errors are log(predicted / measured).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.performance.arrays import Array, as_array
from optimizer.performance.fitting import fit_settings
from optimizer.performance.folds import GPU, MODEL, SOURCE

FITTED = "fitted"
COLUMNS = {FITTED: FITTED, "by_source": SOURCE, "by_model": MODEL, "by_gpu": GPU}


@dataclass(frozen=True, slots=True)
class Entry:
    """One measured number: where it is shown (``section``, ``group``), and what it is."""

    section: str
    source: str
    regime: str
    group: str
    metric: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """Entries, their errors [O] by what was held out (nan: not predicted), and the half-widths [O] in log of
    the 80 % interval."""

    entries: tuple[Entry, ...]
    errors: Mapping[str, Array]
    spread: Array

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


def coverage(errors: Array, spread: Array) -> float:
    """Share of predicted entries whose error is within the interval."""
    known = np.isfinite(errors) & np.isfinite(spread)
    return float(np.mean(np.abs(errors[known]) <= spread[known])) if known.any() else float("nan")


def noise_floor_percent(metric: str, group: str) -> float:
    """What two measurements of the same configuration differ by, in percent; 0 where nobody knows."""
    table = fit_settings()["noise_floor"]
    kind = "moe" if group.endswith("moe") else "dense"
    plain = metric.split(" p9")[0].split(" p5")[0]
    return 100.0 * float(table.get(f"{metric} {kind}", table.get(plain, 0.0)))
