"""The array type of the performance core, and a smooth maximum of two times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Places = NDArray[np.intp]

TINY = 1e-300

T = TypeVar("T")


def as_array(values: object) -> Array:
    """Float64 array of numbers (0-d for a scalar)."""
    return np.asarray(values, dtype=np.float64)


def number(value: Any) -> Array:
    """A number in place of an array of cases; formulas accept both (see ``elementwise``)."""
    plain: Any = float(value)
    typed: Array = plain
    return typed


def stacked(parts: Sequence[T], places: Places) -> T:
    """One dataclass of arrays from dataclasses of numbers, indexed by ``places``; fields that are None stay
    None.
    """
    first: Any = parts[0]
    columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(first)}
    whole: T = type(first)(
        **{name: None if column[0] is None else as_array(column)[places] for name, column in columns.items()}
    )
    return whole


def smooth_max(a: Any, b: Any, norm: float) -> Array:
    """Smooth maximum of two non-negative times.

      (aᵖ + bᵖ)^(1/p)

    It is close to the larger time, and above both where they are similar. ``norm`` is p.
    """
    if isinstance(a, float) and isinstance(b, float):
        least, most = (a, b) if a < b else (b, a)
        plain: Any = most * (1.0 + (least / most) ** norm) ** (1.0 / norm) if most > TINY else most
        joint: Array = plain
        return joint
    larger = np.maximum(a, b)
    share = np.minimum(a, b) / np.maximum(larger, TINY)
    joined: Array = larger * np.power(1.0 + np.power(share, norm), 1.0 / norm)
    return joined
