"""Categories, numbers and blocks of metrics that describe measured rows and queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.spread import family

WORDS = ("source", "gpu", "architecture", "model", "family", "engine", "precision", "regime", "metric")
NUMBERS = ("size", "gpus", "tensor", "pipeline", "expert", "batch", "input", "output")
ANY = ""
TOKEN_TIME, TOKEN_RATE, FIRST_TOKEN, STEP, MEMORY = (
    "token_time",
    "token_rate",
    "first_token",
    "step",
    "memory",
)
BLOCKS = (TOKEN_TIME, TOKEN_RATE, FIRST_TOKEN, STEP, MEMORY)
OWN_SOURCE = "own"

Described = tuple[Mapping[str, str], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Features:
    """Rows by their categories [N, C] (``ANY``: missing) and log2 of their numbers [N, D]."""

    words: NDArray[np.str_]
    numbers: Array

    @property
    def count(self) -> int:
        """Number of rows N."""
        return int(self.words.shape[0])

    def at(self, places: NDArray[np.intp] | slice) -> Features:
        """The rows at ``places``."""
        return Features(self.words[places], self.numbers[places])


def stack_features(rows: Sequence[tuple[Mapping[str, str], Mapping[str, float]]]) -> Features:
    """Features of rows that are given as categories and (positive) numbers by name; what is missing is
    ``ANY`` or 1.
    """
    words = [[row[0].get(name, ANY) for name in WORDS] for row in rows]
    numbers = [[row[1].get(name, 1.0) for name in NUMBERS] for row in rows]
    shaped = np.asarray(words, dtype=np.str_).reshape(len(rows), len(WORDS))
    return Features(shaped, np.log2(np.maximum(as_array(numbers).reshape(len(rows), len(NUMBERS)), 2.0**-10)))


def words_of(model: ModelShape, gpu: str, gpus: Mapping[str, GpuSpec]) -> dict[str, str]:
    """Categories of a GPU and a model."""
    return {
        "gpu": gpu,
        "architecture": gpus[gpu].arch if gpu in gpus else ANY,
        "model": model.name,
        "family": family(model.name),
    }
