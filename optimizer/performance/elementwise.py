"""The elementwise functions of the formulas, for arrays and for one case alike.

A formula is written once. Given arrays, these functions are NumPy's; given plain numbers they stay with plain
numbers, on which Python is about ten times as fast as NumPy: a single estimate takes tens of microseconds.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from optimizer.performance.arrays import Array, Mask

Value = Array | float
Truth = Mask | bool


def where(condition: Truth, a: Value, b: Value) -> Array:
    """``a`` where ``condition`` holds, else ``b``."""
    if condition.__class__ is bool:
        return cast("Array", a if condition else b)
    return np.where(condition, a, b)


def maximum(a: Value, b: Value) -> Array:
    """The larger of both."""
    if isinstance(a, float) and isinstance(b, float):
        return cast("Array", a if a > b else b)
    return cast("Array", np.maximum(a, b))


def minimum(a: Value, b: Value) -> Array:
    """The smaller of both."""
    if isinstance(a, float) and isinstance(b, float):
        return cast("Array", a if a < b else b)
    return cast("Array", np.minimum(a, b))


def clip(value: Value, least: Value, most: Value) -> Array:
    """``value`` between ``least`` and ``most``; ``most`` where they cross, as in NumPy."""
    return minimum(maximum(value, least), most)


def floor(value: Value) -> Array:
    """Largest whole number not above ``value``."""
    if isinstance(value, float):
        return cast("Array", float(math.floor(value)) if math.isfinite(value) else value)
    return cast("Array", np.floor(value))


def ceil(value: Value) -> Array:
    """Smallest whole number not below ``value``."""
    if isinstance(value, float):
        return cast("Array", float(math.ceil(value)) if math.isfinite(value) else value)
    return cast("Array", np.ceil(value))


def sqrt(value: Value) -> Array:
    """Square root."""
    return cast("Array", math.sqrt(value) if isinstance(value, float) else np.sqrt(value))


def power(base: Value, exponent: Value) -> Array:
    """``base`` to ``exponent``; of plain numbers possibly one unit in the last place off NumPy's."""
    if isinstance(base, float) and isinstance(exponent, float):
        return cast("Array", base**exponent)
    return cast("Array", np.power(base, exponent))


def log(value: Value) -> Array:
    """Natural logarithm; of plain numbers possibly one unit in the last place off NumPy's."""
    return cast("Array", math.log(value) if isinstance(value, float) else np.log(value))


def log2(value: Value) -> Array:
    """Logarithm to base 2, NumPy's in every digit: hours of a table and of one run must agree."""
    return cast("Array", float(np.log2(value)) if isinstance(value, float) else np.log2(value))


def exp(value: Value) -> Array:
    """Exponential, NumPy's in every digit."""
    return cast("Array", float(np.exp(value)) if isinstance(value, float) else np.exp(value))


def expm1(value: Value) -> Array:
    """``exp(value) − 1``, NumPy's in every digit."""
    return cast("Array", float(np.expm1(value)) if isinstance(value, float) else np.expm1(value))


def isfinite(value: Value) -> Mask:
    """Neither infinite nor nan."""
    return cast("Mask", math.isfinite(value) if isinstance(value, float) else np.isfinite(value))


def any(condition: Truth) -> bool:
    """Whether it holds anywhere."""
    return condition if isinstance(condition, bool) else bool(np.any(condition))


def all(condition: Truth) -> bool:
    """Whether it holds everywhere."""
    return condition if isinstance(condition, bool) else bool(np.all(condition))


def zeros_like(value: Value) -> Array:
    """Zeros of the same shape."""
    return full_like(value, 0.0)


def ones_like(value: Value) -> Array:
    """Ones of the same shape."""
    return full_like(value, 1.0)


def full_like(value: Value, content: float) -> Array:
    """``content`` in the same shape."""
    return cast("Array", content if isinstance(value, float) else np.full_like(value, content))
