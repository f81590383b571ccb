"""Fits constants to measured rows: damped Gauss-Newton steps on log errors, held near their priors.

P parameters, O observations. A parameter moves in log space; its ``spread`` is how far (one standard
deviation, in log) the data may pull it from its prior at the weight of one observation of ``NOISE``.
Residuals count linearly beyond ``HUBER`` (Huber's loss), and every table weighs at most ``TABLE_MOST`` rows.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from broker.domain.model_shape import GpuSpec
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.calibration import CONFIG, Calibration
from optimizer.performance.observations import Observation
from optimizer.performance.rows import ReadRows, predictions

PARAMETERS = CONFIG.with_name("performance_fit.toml")
NOISE = 0.15
HUBER = 0.12
TABLE_MOST = 120.0
DIFFERENCE = 0.02
STEP_MOST = 0.5
HALVINGS = 4
OUTLIER = 3.0


@dataclass(frozen=True, slots=True)
class Parameter:
    """A constant that may be fitted: its path in the calibration, its spread, the largest value allowed."""

    path: str
    spread: float
    most: float


@dataclass(frozen=True, slots=True)
class Problem:
    """What is fitted to what; ``priors`` holds every constant before the fit."""

    read: ReadRows
    observed: tuple[Observation, ...]
    parameters: tuple[Parameter, ...]
    priors: Calibration
    gpus: Mapping[str, GpuSpec]

    def without(self, left_out: Collection[int]) -> Problem:
        """The same problem with the observations at these indices left out, and their rows unread."""
        gone = frozenset(left_out)
        kept = tuple(o for index, o in enumerate(self.observed) if index not in gone)
        return self.only(kept)

    def only(self, observed: Sequence[Observation]) -> Problem:
        """The same problem over these observations alone."""
        places = {observation.place for observation in observed}
        return Problem(self.read.at(places), tuple(observed), self.parameters, self.priors, self.gpus)

    def calibration(self, shift: Array) -> Calibration:
        """The constants at ``shift`` [P], in log from the priors."""
        return self.priors.with_values(self.values(shift))

    def values(self, shift: Array) -> dict[str, float]:
        """The parameters' values at ``shift`` [P]."""
        return {
            p.path: min(self.priors.value(p.path) * float(np.exp(s)), p.most)
            for p, s in zip(self.parameters, shift, strict=True)
        }

    def log_errors(self, shift: Array) -> Array:
        """log(predicted / measured) [O]; 0 where there is no prediction or the load is over capacity."""
        return log_errors(self.read, self.observed, self.calibration(shift), self.gpus)


def log_errors(
    read: ReadRows, observed: Sequence[Observation], calibration: Calibration, gpus: Mapping[str, GpuSpec]
) -> Array:
    """log(predicted / measured) [O]; nan where there is no prediction or the load is over capacity."""
    found = predictions(read, calibration, gpus)
    ratios = as_array(
        [
            found[o.place].values.get(o.column, np.nan) / o.measured if found[o.place].stable else np.nan
            for o in observed
        ]
    )
    return np.log(ratios)


def read_parameters(group: str) -> tuple[Parameter, ...]:
    """The parameters of ``config/performance_fit.toml`` for ``training`` or ``serving`` rows."""
    data = tomllib.loads(Path(PARAMETERS).read_text())[group]
    return tuple(
        Parameter(path, float(entry["spread"]), float(entry.get("most", np.inf)))
        for path, entry in data.items()
    )


def row_weights(observed: Sequence[Observation]) -> Array:
    """Weights [O]: each (source, metric, regime) counts at most ``TABLE_MOST`` rows."""
    keys = [(o.source, o.metric, o.regime) for o in observed]
    counts = Counter(keys)
    return as_array([min(1.0, TABLE_MOST / counts[key]) for key in keys]) / NOISE**2


def fit(problem: Problem, start: Array | None = None, rounds: int = 6) -> Array:
    """Shift [P] of the least regularised loss found within ``rounds`` Gauss-Newton steps from ``start``."""
    weights = row_weights(problem.observed)
    penalty = as_array([1.0 / p.spread**2 for p in problem.parameters])
    shift = np.zeros(len(problem.parameters)) if start is None else start.copy()
    errors = problem.log_errors(shift)
    loss = _loss(errors, shift, weights, penalty)
    for _ in range(rounds):
        step = _step(problem, shift, errors, weights, penalty)
        better = _line_search(problem, shift, step, loss, weights, penalty)
        if better is None:
            break
        shift, errors, new_loss = better
        if loss - new_loss < 1e-4 * abs(loss):
            break
        loss = new_loss
    return shift


def _step(problem: Problem, shift: Array, errors: Array, weights: Array, penalty: Array) -> Array:
    """Solves (JᵀWJ + Λ)·δ = −(JᵀWr + Λθ), W with Huber's weights; each entry at most ``STEP_MOST``."""
    slopes = np.empty((errors.size, shift.size))
    for index in range(shift.size):
        moved = shift.copy()
        moved[index] += DIFFERENCE
        slopes[:, index] = (problem.log_errors(moved) - errors) / DIFFERENCE
    known = np.isfinite(errors) & np.isfinite(slopes).all(axis=1)
    slopes, left = slopes[known], np.clip(errors[known], -OUTLIER, OUTLIER)
    robust = weights[known] * np.minimum(1.0, HUBER / np.maximum(np.abs(left), 1e-12))
    matrix = slopes.T @ (robust[:, None] * slopes) + np.diag(penalty)
    gradient = slopes.T @ (robust * left) + penalty * shift
    step: Array = np.clip(-np.linalg.solve(matrix, gradient), -STEP_MOST, STEP_MOST)
    return step


def _line_search(
    problem: Problem, shift: Array, step: Array, loss: float, weights: Array, penalty: Array
) -> tuple[Array, Array, float] | None:
    share = 1.0
    for _ in range(HALVINGS):
        trial = shift + share * step
        errors = problem.log_errors(trial)
        trial_loss = _loss(errors, trial, weights, penalty)
        if trial_loss < loss:
            return trial, errors, trial_loss
        share /= 2.0
    return None


def _loss(errors: Array, shift: Array, weights: Array, penalty: Array) -> float:
    size = np.abs(np.where(np.isfinite(errors), errors, OUTLIER))
    huber = np.where(size <= HUBER, size**2, HUBER * (2.0 * size - HUBER))
    return float(np.sum(weights * huber) + np.sum(penalty * shift**2))
