"""The cheapest way through hours, at one of several states in each, compiled. H hours, S states."""

from __future__ import annotations

import numpy as np

from optimizer.compiled import compiled
from optimizer.placement.problem import Floats, Ints


@compiled
def cheapest_after(usd: Floats, change_usd: Floats, reach: Floats, needs: Floats, hours: Floats) -> Floats:
    """Least USD after each hour that was met at a state [H, S]; inf where what follows cannot be met.

    ``usd`` [S] an hour; ``change_usd`` [S, S] from the first to the second; a state meets the ``needs`` [H]
    that it reaches (``reach`` [S]); ``hours`` [H]: how long each is.
    """
    count, states = len(needs), len(usd)
    after = np.zeros((count, states))
    onward = np.ascontiguousarray(change_usd.T)
    for hour in range(count - 2, -1, -1):
        least = after[hour]
        least[:] = np.inf
        for then in range(states):
            later = usd[then] * hours[hour + 1] + after[hour + 1, then]
            if reach[then] >= needs[hour + 1] and later < np.inf:
                _lower(least, onward[then], later)
    return after


@compiled
def _lower(least: Floats, change_usd: Floats, later: float) -> None:
    for state in range(len(least)):
        found = change_usd[state] + later
        least[state] = found if found < least[state] else least[state]


@compiled
def cheapest_way(change_usd: Floats, onward_usd: Floats, first: int, at: int) -> Ints:
    """The states from hour ``first`` on, of which the first is ``at``: of equally cheap ones the lowest.

    ``onward_usd`` [H, S]: least USD from an hour on at a state.
    """
    way = np.empty(len(onward_usd) - first, dtype=np.int64)
    way[0] = at
    for hour in range(first + 1, len(onward_usd)):
        before, best = way[hour - first - 1], np.inf
        way[hour - first] = 0
        for state in range(len(change_usd)):
            usd = change_usd[before, state] + onward_usd[hour, state]
            if usd < best:
                best = usd
                way[hour - first] = state
    return way
