"""Fits constants to measured rows: damped Gauss-Newton steps on log errors, regularized towards their priors.

P parameters, O observations. Parameters are fitted in log space. ``spread`` is the standard deviation of a
parameter's prior in log, in relation to one observation with the noise ``NOISE``. Beyond ``HUBER`` the loss
of a residual is linear (Huber's loss), and every table weighs at most ``TABLE_MOST`` rows.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from broker.domain.planning.model_shape import GpuSpec
from optimizer.calibration.tables.observations import Observation
from optimizer.calibration.tables.rows import ReadRows, predictions
from optimizer.performance.arrays import Array, Mask, as_array
from optimizer.performance.constants.calibrated import CONFIG, Calibration
from optimizer.performance.intervals import OVERLOAD

PARAMETERS = CONFIG.with_name("performance_fit.toml")
NOISE = 0.15
NOISE_FIRST_TOKEN = 0.20
HUBER = 0.12
TABLE_MOST = 120
DIFFERENCE = 0.02
STEP_MOST = 0.5
HALVINGS = 6
DAMPINGS = (0.0, 1.0, 10.0, 100.0)
OUTLIER = 3.0
ROUNDS = 12
FOLD_ROUNDS = 5
ENOUGH = 3e-4


@dataclass(frozen=True, slots=True)
class Parameter:
    """A constant that may be fitted: its path in the calibration, its spread, and its
    largest allowed value.
    """

    path: str
    spread: float
    most: float


class Fittable(Protocol):
    """The interface of a problem to the fit: its parameters, and log errors at a shift from the priors."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The constants that may be fitted."""

    @property
    def priors(self) -> Calibration:
        """All constants before the fit."""

    def log_errors(self, shift: Array) -> Array:
        """log(predicted / measured) [O]."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The parameters and observations of a fit; ``priors`` has all constants before the fit."""

    read: ReadRows
    observed: tuple[Observation, ...]
    parameters: tuple[Parameter, ...]
    priors: Calibration
    gpus: Mapping[str, GpuSpec]

    def only(self, observed: Sequence[Observation]) -> Problem:
        """The same problem with these observations only."""
        places = {observation.place for observation in observed}
        return Problem(self.read.at(places), tuple(observed), self.parameters, self.priors, self.gpus)

    def values(self, shift: Array) -> dict[str, float]:
        """The parameters' values at ``shift`` [P], in log from the priors."""
        return values_at(self.parameters, self.priors, shift)

    def log_errors(self, shift: Array) -> Array:
        """log(predicted / measured) [O]; nan if there is no prediction or the load is over capacity."""
        calibration = self.priors.with_values(self.values(shift))
        return log_errors(self.read, self.observed, calibration, self.gpus)


def values_at(parameters: Sequence[Parameter], priors: Calibration, shift: Array) -> dict[str, float]:
    """Values of the parameters at ``shift`` [P], in log from the priors; none is above its largest value."""
    return {
        p.path: min(priors.value(p.path) * float(np.exp(s)), p.most)
        for p, s in zip(parameters, shift, strict=True)
    }


def highest(problem: Fittable) -> Array:
    """The shift [P] at which each parameter has its largest value."""
    values = as_array([problem.priors.value(p.path) for p in problem.parameters])
    return np.log(as_array([p.most for p in problem.parameters]) / values)


def slopes_at(problem: Fittable, shift: Array) -> Array:
    """The Jacobian of the log errors [O, P], by finite differences.

    For a parameter at its largest value the difference is taken downwards, because nothing changes above it.
    """
    base = problem.log_errors(shift)
    slopes = np.empty((base.size, shift.size))
    upwards = shift + DIFFERENCE <= highest(problem)
    for index, move in enumerate(np.where(upwards, DIFFERENCE, -DIFFERENCE)):
        moved = shift.copy()
        moved[index] += move
        slopes[:, index] = (problem.log_errors(moved) - base) / move
    return slopes


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of observations [O] and of the distances from the priors [P]."""

    rows: Array
    prior: Array

    def loss(self, errors: Array, shift: Array) -> float:
        """Huber's loss of the errors plus the weighted squared distance from the priors."""
        size = np.abs(np.where(np.isfinite(errors), errors, OUTLIER))
        huber = np.where(size <= HUBER, size**2, HUBER * (2.0 * size - HUBER))
        return float(np.sum(self.rows * huber) + np.sum(self.prior * shift**2))

    def without(self, left_out: Mask) -> Weights:
        """The same weights with 0 for some observations."""
        return Weights(np.where(left_out, 0.0, self.rows), self.prior)


def log_errors(
    read: ReadRows, observed: Sequence[Observation], calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> Array:
    """log(predicted / measured) [O]; nan if there is no prediction, or if the load is over capacity and the
    observation does not say so (``with_overload``).
    """
    found = predictions(read, calibration, gpus)
    ratios = [
        found[o.place].values.get(o.column, np.nan) / o.measured
        if found[o.place].stable or o.regime.startswith(OVERLOAD)
        else np.nan
        for o in observed
    ]
    return np.log(as_array(ratios))


def fit_settings() -> dict[str, Any]:
    """``config/performance_fit.toml``: parameters by kind of row, tables that are not
    fitted, noise floors.
    """
    return tomllib.loads(PARAMETERS.read_text())


@cache
def other_sources() -> frozenset[str]:
    """Sources that measured something other than what is predicted; they count for no
    error and no interval.
    """
    return frozenset(fit_settings()["not_in_intervals"])


def row_weights(sources: Sequence[str], among: Sequence[str] | None = None) -> Array:
    """Weights of rows [O] with which a source counts as the square root of its number of rows.

    Rows of one source err together, and the next row comes from a new source. ``among``: the sources of all
    rows that are judged together, if these rows are a part of them.
    """
    rows = Counter(sources if among is None else among)
    return as_array([rows[source] ** -0.5 for source in sources])


def weighted_quantile(
    sizes: Array, sources: Sequence[str], share: float, among: Sequence[str] | None = None
) -> float:
    """The value that a share of the sizes, as near to ``share`` as possible, does not exceed, weighted by
    ``row_weights``.
    """
    weight = row_weights(sources, among)
    order = np.argsort(sizes)
    held = np.cumsum(weight[order]) / np.sum(weight)
    return float(sizes[order][int(np.argmin(np.abs(held - share)))])


def read_parameters(group: str) -> tuple[Parameter, ...]:
    """The parameters for ``training`` or ``serving`` rows."""
    return tuple(
        Parameter(path, float(entry["spread"]), float(entry.get("most", np.inf)))
        for path, entry in fit_settings()[group].items()
    )


def subsampled(observed: Sequence[Observation]) -> list[Observation]:
    """Every n-th observation of long tables: a (source, metric, regime) keeps at most about twice
    ``TABLE_MOST``.
    """
    counts = Counter((o.source, o.metric, o.regime) for o in observed)
    seen: Counter[tuple[str, str, str]] = Counter()
    kept = []
    for o in observed:
        key = (o.source, o.metric, o.regime)
        if seen[key] % max(1, counts[key] // TABLE_MOST) == 0:
            kept.append(o)
        seen[key] += 1
    return kept


def weights_of(problem: Problem) -> Weights:
    """Weights of a problem: each (source, metric, regime) counts at most ``TABLE_MOST`` rows; priors count by
    their spread.
    """
    keys = [(o.source, o.metric, o.regime) for o in problem.observed]
    counts = Counter(keys)
    noise = as_array([NOISE_FIRST_TOKEN if "first token" in o.metric else NOISE for o in problem.observed])
    rows = as_array([min(1.0, TABLE_MOST / counts[key]) for key in keys]) / noise**2
    return Weights(rows, as_array([1.0 / p.spread**2 for p in problem.parameters]))


def fit(problem: Fittable, weights: Weights) -> tuple[Array, Array]:
    """Shift [P] with the least regularized loss within ``ROUNDS`` Gauss-Newton steps,
    and the Jacobian there."""
    shift = np.zeros(len(problem.parameters))
    errors = problem.log_errors(shift)
    slopes = slopes_at(problem, shift)
    for _ in range(ROUNDS):
        better = _improved(problem, weights, shift, errors, slopes)
        if better is None:
            break
        gain = weights.loss(errors, shift) - weights.loss(better[1], better[0])
        shift, errors = better
        slopes = slopes_at(problem, shift)
        if gain < ENOUGH * weights.loss(errors, shift):
            break
    return shift, slopes


def refit(problem: Problem, weights: Weights, start: Array, slopes: Array) -> Array:
    """The fit under other weights, started from a near fit and with its Jacobian (chord steps)."""
    shift, errors = start, problem.log_errors(start)
    for _ in range(FOLD_ROUNDS):
        better = _improved(problem, weights, shift, errors, slopes)
        if better is None:
            break
        shift, errors = better
    return shift


def _improved(
    problem: Fittable, weights: Weights, shift: Array, errors: Array, slopes: Array
) -> tuple[Array, Array] | None:
    """One step and the errors after it; None if no damping lowers the loss. Predictions may jump, when a
    search takes another layout; then the full step may fail and a damped one succeed."""
    most, loss = highest(problem), weights.loss(errors, shift)
    for damping in DAMPINGS:
        step, share = _step(weights, shift, errors, slopes, damping), 1.0
        for _ in range(HALVINGS):
            trial = np.minimum(shift + share * step, most)
            after = problem.log_errors(trial)
            if weights.loss(after, trial) < loss:
                return trial, after
            share /= 2.0
    return None


def _step(weights: Weights, shift: Array, errors: Array, slopes: Array, damping: float) -> Array:
    """Solves (A + damping·diag A)·δ = −(JᵀWr + Λθ), A = JᵀWJ + Λ, with Huber's weights W; each entry is at
    most ``STEP_MOST``."""
    known = np.isfinite(errors) & np.isfinite(slopes).all(axis=1)
    used, left = slopes[known], np.clip(errors[known], -OUTLIER, OUTLIER)
    robust = weights.rows[known] * np.minimum(1.0, HUBER / np.maximum(np.abs(left), 1e-12))
    matrix = used.T @ (robust[:, None] * used) + np.diag(weights.prior)
    matrix += damping * np.diag(np.diag(matrix))
    gradient = used.T @ (robust * left) + weights.prior * shift
    step: Array = np.clip(-np.linalg.solve(matrix, gradient), -STEP_MOST, STEP_MOST)
    return step
