"""Fits constants to measured rows: robust least squares on log errors, regularized towards their priors.

P parameters, O observations. Parameters are fitted in log space. ``spread`` is the standard deviation of a
parameter's prior in log, in relation to one observation with the noise ``NOISE``. Beyond ``HUBER`` the loss
of a residual is linear (Huber's loss), and every table weighs at most ``TABLE_MOST`` rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.optimize import least_squares

from broker.domain.workloads.model_shape import GpuSpec
from optimizer.calibration.evaluation.errors import row_weights
from optimizer.calibration.table_constants import fit_settings
from optimizer.calibration.tables.observations import Observation, log_errors
from optimizer.calibration.tables.rows import ReadRows
from optimizer.performance.arrays import Array, Mask, as_array
from optimizer.performance.constants.calibrated import Calibration

NOISE = 0.15
NOISE_FIRST_TOKEN = 0.20
HUBER = 0.12
TABLE_MOST = 120
DIFFERENCE = 0.02
OUTLIER = 3.0
TRIALS, FOLD_TRIALS = 40, 15
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

    They are wide, because predictions jump where a search takes another layout. For a parameter at its
    largest value the difference is taken downwards, because nothing changes above it.
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

    def without(self, left_out: Mask) -> Weights:
        """The same weights with 0 for some observations."""
        return Weights(np.where(left_out, 0.0, self.rows), self.prior)


def weighted_quantile(sizes: Array, sources: Sequence[str], share: float) -> float:
    """The value that a share of the sizes, as near to ``share`` as possible, does not exceed, weighted by
    ``row_weights``.
    """
    weight = row_weights(sources)
    order = np.argsort(sizes)
    held = np.cumsum(weight[order]) / np.sum(weight)
    return float(sizes[order][int(np.argmin(np.abs(held - share)))])


def read_parameters(group: str) -> tuple[Parameter, ...]:
    """The parameters for ``training`` or ``serving`` rows, or for ``collectives``."""
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
    """The shift [P] with the least regularized loss, and the Jacobian of the log errors there."""
    start = np.zeros(len(problem.parameters))
    shift = _least(problem, weights, start, lambda at: slopes_at(problem, at), TRIALS)
    return shift, slopes_at(problem, shift)


def refit(problem: Fittable, weights: Weights, start: Array, slopes: Array) -> Array:
    """The fit under other weights, started from a near fit and with its Jacobian."""
    return _least(problem, weights, start, lambda _: slopes, FOLD_TRIALS)


def _least(
    problem: Fittable, weights: Weights, start: Array, slopes: Callable[[Array], Array], trials: int
) -> Array:
    """The shift with the least sum of Huber's loss of the weighted log errors and the squared weighted
    distances from the priors; a row without a prediction counts as an outlier that nothing moves."""
    root, prior = np.sqrt(weights.rows), np.sqrt(weights.prior)
    limits = np.concatenate([HUBER * root, np.full(prior.size, np.inf)])

    def residuals(shift: Array) -> Array:
        errors = problem.log_errors(shift)
        return np.concatenate([root * np.where(np.isfinite(errors), errors, OUTLIER), prior * shift])

    def jacobian(shift: Array) -> Array:
        known = np.nan_to_num(slopes(shift), posinf=0.0, neginf=0.0)
        return np.concatenate([root[:, None] * known, np.diag(prior)])

    def huber(squares: Array) -> Array:
        """The loss of squared residuals and its first two derivatives."""
        linear = squares > limits**2
        size, bound = np.sqrt(np.where(linear, squares, 1.0)), np.where(linear, limits, 0.0)
        return np.stack(
            [
                np.where(linear, 2.0 * bound * size - bound**2, squares),
                np.where(linear, bound / size, 1.0),
                np.where(linear, -bound / (2.0 * size**3), 0.0),
            ]
        )

    bounds = (np.full(start.size, -np.inf), highest(problem))
    found = least_squares(residuals, start, jacobian, bounds, loss=huber, ftol=ENOUGH, max_nfev=trials)
    return as_array(found.x)
