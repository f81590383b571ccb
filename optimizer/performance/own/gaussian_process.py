"""Measured rows correct predictions near them: Gaussian-process regression of log(measured / predicted).

N measured rows, M queries, C categories and D numbers per row (``WORDS``, ``NUMBERS``). The correlation of
the model's error between two rows falls with their distance:

  k(x, x') = variance · exp(−Σ_c length_c·[x_c ≠ x'_c] − Σ_d length_d·|x_d − x'_d|)

Numbers are in log2, so a distance of 1 is one doubling. Each factor is a valid kernel, and so is their
product. A measurement adds ``noise`` (variance). With k* the kernel between queries and rows, the posterior
is

  mean = k*ᵀ(K + noise)⁻¹y
  variance = variance − k*ᵀ(K + noise)⁻¹k*

[Rasmussen and Williams, Gaussian Processes for Machine Learning, 2.25-2.26]. Leave-group-out predictions
follow in closed form from the inverse [eq. 5.12, for blocks]. Far from every row the mean is 0 and the
variance is the prior one, so the model is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.performance.arrays import Array, as_array
from optimizer.performance.own.features import ANY, NUMBERS, WORDS, Features

OUTLIER = 1.5
ROWS_MOST = 3000
AT_ONCE = 2_000_000


@dataclass(frozen=True, slots=True)
class Kernel:
    """Hyperparameters of one block of metrics.

    ``lengths``: inverse length scale of each category (for a mismatch) and number (per doubling); one that is
    not named has no influence. Variances are of natural logarithms. ``interval_exponent``: intervals shrink
    by (posterior / prior standard deviation) to this power.
    """

    variance: float
    noise: float
    lengths: Mapping[str, float]
    interval_exponent: float = 1.0


def correlation(asked: Features, known: Features, lengths: Mapping[str, float]) -> Array:
    """Prior correlation [M, N] of the model's log errors.

    If a query lacks a category, the kernel is averaged over all known values of it.
    """
    distance = np.zeros((asked.count, known.count))
    for place, name in enumerate(WORDS):
        length = lengths.get(name, 0.0)
        if length > 0:
            differs, blank = _mismatch(asked.words[:, place], known.words[:, place])
            distance += length * (differs & ~blank[:, None])
            if blank.any():
                distance[blank] += _of_some_word(known.words[:, place], length)
    for place, name in enumerate(NUMBERS):
        length = lengths.get(name, 0.0)
        if length > 0:
            distance += length * np.abs(asked.numbers[:, place, None] - known.numbers[None, :, place])
    return np.exp(-distance)


def _mismatch(
    asked: NDArray[np.str_], known: NDArray[np.str_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Where categories differ [M, N], and which queries lack them [M]; categories are compared as
    integers.
    """
    _, codes = np.unique(np.concatenate([asked, known]), return_inverse=True)
    return codes[: asked.size, None] != codes[None, asked.size :], asked == ANY


def _of_some_word(words: NDArray[np.str_], length: float) -> float:
    """The distance whose kernel factor is the mean of exp(−length·[w ≠ w']) over the known values w."""
    count = max(int(np.unique(words).size), 1)
    return -float(np.log((1.0 + (count - 1) * np.exp(-length)) / count))


@dataclass(frozen=True, slots=True)
class Evidence:
    """Measured rows of one block: features and log(measured / predicted) of times or bytes [N]."""

    features: Features
    residuals: Array

    def joined(self, other: Evidence) -> Evidence:
        """The rows of both."""
        return Evidence(
            Features(
                np.concatenate([self.features.words, other.features.words]),
                np.concatenate([self.features.numbers, other.features.numbers]),
            ),
            np.concatenate([self.residuals, other.residuals]),
        )

    def thinned(self) -> Evidence:
        """Every n-th row if there are more than ``ROWS_MOST``."""
        every = -(-self.features.count // ROWS_MOST)
        return (
            self
            if every <= 1
            else Evidence(self.features.at(slice(None, None, every)), self.residuals[::every])
        )


class Correction:
    """The posterior of one block of metrics, given its rows."""

    def __init__(self, evidence: Evidence, kernel: Kernel) -> None:
        used = evidence.thinned()
        self.kernel, self._known = kernel, used.features
        covariance = kernel.variance * correlation(self._known, self._known, kernel.lengths)
        self._inverse: Array = inverse_of(covariance, kernel.noise)
        self._weights: Array = self._inverse @ np.clip(used.residuals, -OUTLIER, OUTLIER)

    def shift(self, asked: Features) -> Array:
        """Logarithm of the factor on predicted times [M]; 0 far from every row."""
        out = np.zeros(asked.count)
        for part in _parts(asked.count, self._known.count):
            near = correlation(asked.at(part), self._known, self.kernel.lengths)
            out[part] = self.kernel.variance * np.sum(near * self._weights, axis=1)
        return out

    def shrink(self, asked: Features) -> Array:
        """Factor on half-widths [M], in (0, 1]; 1 far from every row.

        It is (posterior / prior standard deviation of a measurement) to the power ``interval_exponent``.
        """
        kernel, out = self.kernel, np.ones(asked.count)
        for part in _parts(asked.count, self._known.count):
            near = kernel.variance * correlation(asked.at(part), self._known, kernel.lengths)
            explained = np.sum((near @ self._inverse) * near, axis=1)
            out[part] = narrowed(kernel.variance + kernel.noise - explained, kernel)
        return out

    def nearness(self, asked: Features) -> Array:
        """Correlation with the closest row [M]: 1 for the same configuration, 0 far from all."""
        out = np.zeros(asked.count)
        for part in _parts(asked.count, self._known.count):
            out[part] = correlation(asked.at(part), self._known, self.kernel.lengths).max(axis=1, initial=0.0)
        return out


def narrowed(variance: Array, kernel: Kernel) -> Array:
    """Factor on half-widths for a given posterior variance of a measurement."""
    whole = kernel.variance + kernel.noise
    return np.power(np.clip(variance / whole, kernel.noise / whole, 1.0), kernel.interval_exponent / 2.0)


def inverse_of(covariance: Array, noise: float) -> Array:
    """(K + noise)⁻¹ [N, N] by Cholesky factorization. Raises NumPy's LinAlgError if K is not a covariance
    matrix.
    """
    half = np.linalg.inv(np.linalg.cholesky(covariance + noise * np.eye(covariance.shape[0])))
    return as_array(half.T @ half)


def _parts(asked: int, known: int) -> list[slice]:
    size = max(1, AT_ONCE // max(known, 1))
    return [slice(start, start + size) for start in range(0, asked, size)]
