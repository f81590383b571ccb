"""Where an increasing function crosses zero, for many cases at once or for one in plain numbers."""

from __future__ import annotations

from collections.abc import Callable

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array

ROUNDS_MOST = 80
TOLERANCE = 1e-13


def crossing(function: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """``x`` in [low, high], both positive, where ``function`` is 0 to ``TOLERANCE``: ``high`` where it stays
    at or below 0, ``low`` where it is above throughout.

    Regula falsi in log x. The value of an end that stays twice is halved, so that the other end moves too
    (the Illinois algorithm): order 1.44, never outside the bracket.
    """
    at_low, at_high = function(low), function(high)
    below = at_high <= 0.0
    above = (at_low > 0.0) & (at_high > 0.0)
    low, high = xp.where(below, high, low), xp.where(above, low, high)
    if xp.all(below | above):
        return low
    at_low, at_high = xp.minimum(at_low, 0.0), xp.maximum(at_high, TOLERANCE)
    last, found = xp.zeros_like(at_low), low
    for _ in range(ROUNDS_MOST):
        found = low * xp.power(high / low, at_low / (at_low - at_high))
        value = function(found)
        up = value > 0.0
        if xp.all((abs(value) <= TOLERANCE) | (high - low <= TOLERANCE * high)):
            break
        low, high = xp.where(up, low, found), xp.where(up, found, high)
        kept_low, kept_high = xp.where(last > 0.0, 0.5, 1.0), xp.where(last < 0.0, 0.5, 1.0)
        at_low, at_high = xp.where(up, at_low * kept_low, value), xp.where(up, value, at_high * kept_high)
        last = xp.where(up, 1.0, -1.0)
    return found
