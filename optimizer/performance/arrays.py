"""The array type of the performance core, and smooth joins of competing times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def as_array(values: object) -> Array:
    """Float64 array of numbers (0-d for a scalar)."""
    return np.asarray(values, dtype=np.float64)


def smooth_max(a: Array, b: Array, norm: float) -> Array:
    """``(aᵖ + bᵖ)^(1/p)``: near the larger, above both where they meet. Non-negative times."""
    larger = np.maximum(a, b)
    share = np.divide(np.minimum(a, b), larger, out=np.zeros_like(larger), where=larger > 0)
    return larger * np.power(1.0 + np.power(share, norm), 1.0 / norm)
