"""The array type of the performance core, and smooth joins of competing times."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

TINY = 1e-300


def as_array(values: object) -> Array:
    """Float64 array of numbers (0-d for a scalar)."""
    return np.asarray(values, dtype=np.float64)


def number(value: float) -> Array:
    """One case's number, which stands where others have an array of cases (see ``elementwise``)."""
    return cast("Array", float(value))


def smooth_max(a: Array | float, b: Array | float, norm: float) -> Array:
    """``(aᵖ + bᵖ)^(1/p)``: near the larger, above both where they meet. Non-negative times."""
    if isinstance(a, float) and isinstance(b, float):
        least, most = (a, b) if a < b else (b, a)
        return cast("Array", most * (1.0 + (least / max(most, TINY)) ** norm) ** (1.0 / norm))
    larger = np.maximum(a, b)
    share = np.minimum(a, b) / np.maximum(larger, TINY)
    return cast("Array", larger * np.power(1.0 + np.power(share, norm), 1.0 / norm))
