"""Where an increasing function crosses zero, for many cases at once or for one in plain numbers."""

from __future__ import annotations

from collections.abc import Callable

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import TINY, Array

ROUNDS_MOST = 80
TOLERANCE = 1e-13


def crossing(function: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """``x`` in [low, high], both positive, where ``function`` is 0 to ``TOLERANCE``: ``high`` where it stays
    at or below 0, ``low`` where it is above throughout.

    Regula falsi in log x. The value of an end that stays twice is shrunk, so that the other end moves too: by
    1 − f(new)/f(replaced), or a half where that is not positive (Anderson and Björck, BIT 13, 1973): order
    1.7, never outside the bracket.
    """
    at_high = function(high)
    below = at_high <= 0.0
    if xp.all(below):
        return high
    middle = xp.sqrt(low * high)
    at_middle = function(middle)
    right = below | (at_middle <= 0.0)
    if xp.all(right):
        low, at_low = middle, at_middle
    else:
        least = xp.where(right, middle, low)
        at_low = function(least)
        low, high = least, xp.where(right, high, middle)
        at_high = xp.where(right, at_high, at_middle)
    above = (at_low > 0.0) & (at_high > 0.0)
    low, high = xp.where(below, high, low), xp.where(above, low, high)
    if xp.all(below | above):
        return low
    at_low, at_high = xp.minimum(at_low, -TOLERANCE), xp.maximum(at_high, TOLERANCE)
    last, found = xp.zeros_like(at_low), low
    for _ in range(ROUNDS_MOST):
        found = low * xp.power(high / low, at_low / (at_low - at_high))
        value = function(found)
        up = value > 0.0
        if xp.all((abs(value) <= TOLERANCE) | (high - low <= TOLERANCE * high)):
            break
        low, high = xp.where(up, low, found), xp.where(up, found, high)
        shrunk = 1.0 - value / xp.where(up, at_high, xp.minimum(at_low, -TINY))
        side = xp.where(up, 1.0, -1.0)
        shrunk = xp.where(side == last, xp.where(shrunk > 0.0, shrunk, 0.5), 1.0)
        at_low, at_high = xp.where(up, at_low * shrunk, value), xp.where(up, value, at_high * shrunk)
        last = side
    return found
