"""Corrections of predictions from a user's own measured rows, by block of metrics."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache

import numpy as np

from optimizer.performance.arrays import Array
from optimizer.performance.constants.calibrated import CONFIG
from optimizer.performance.own.features import ANY, WORDS, Features
from optimizer.performance.own.gaussian_process import Correction, Evidence, Kernel

KERNELS = CONFIG.with_name("performance_nearby.toml")


@cache
def load_kernels() -> Mapping[str, Kernel]:
    """The kernel of each block of metrics."""
    data = tomllib.loads(KERNELS.read_text())
    return {
        name: Kernel(
            float(entry["variance"]),
            float(entry["noise"]),
            dict(entry["lengths"]),
            float(entry["interval_exponent"]),
        )
        for name, entry in data["kernels"].items()
    }


class OwnShift:
    """Corrections learned from measured rows; without rows nothing is corrected."""

    def __init__(self, evidence: Mapping[str, Evidence], kernels: Mapping[str, Kernel]) -> None:
        self._evidence, self._kernels = dict(evidence), kernels
        self._corrections = {block: Correction(found, kernels[block]) for block, found in evidence.items()}

    def __bool__(self) -> bool:
        return bool(self._corrections)

    def with_evidence(self, more: Mapping[str, Evidence]) -> OwnShift:
        """A copy with more rows."""
        joined = dict(self._evidence)
        for block, found in more.items():
            joined[block] = joined[block].joined(found) if block in joined else found
        return OwnShift(joined, self._kernels)

    def log_shift(self, block: str, asked: Features) -> Array:
        """Log of the factor on times or sizes of ``block`` [M]."""
        correction = self._corrections.get(block)
        return np.zeros(asked.count) if correction is None else correction.shift(self._of_known(block, asked))

    def shrink(self, block: str, asked: Features) -> Array:
        """Factor on the half-widths of intervals of logarithms [M]."""
        correction = self._corrections.get(block)
        return np.ones(asked.count) if correction is None else correction.shrink(self._of_known(block, asked))

    def nearness(self, block: str, asked: Features) -> Array:
        """Correlation with the closest row [M]."""
        correction = self._corrections.get(block)
        return (
            np.zeros(asked.count) if correction is None else correction.nearness(self._of_known(block, asked))
        )

    def _of_known(self, block: str, asked: Features) -> Features:
        """Treats an unknown source as missing, which means the user's own system."""
        place = WORDS.index("source")
        known = np.isin(asked.words[:, place], self._evidence[block].features.words[:, place])
        words = asked.words.copy()
        words[~known, place] = ANY
        return Features(words, asked.numbers)
