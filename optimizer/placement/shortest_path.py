"""The cheapest way through hours, at one of several states in each, compiled. H hours, S states."""

from __future__ import annotations

import numpy as np

from optimizer.placement.compiled import compiled
from optimizer.placement.problem import Floats, Ints
from optimizer.placement.rows import fill, lower


@compiled
def cheapest_after(usd: Floats, onward_usd: Floats, reach: Floats, needs: Floats, hours: Floats) -> Floats:
    """Least USD after each hour that was met at a state [H, S]; inf where what follows cannot be met.

    ``usd`` [S] an hour; ``onward_usd`` [S, S] to the first from the second; a state meets the ``needs`` [H]
    that it reaches (``reach`` [S]); ``hours`` [H]: how long each is.
    """
    count, states = len(needs), len(usd)
    after = np.zeros((count, states))
    for hour in range(count - 2, -1, -1):
        least = after[hour]
        fill(least, np.inf)
        for then in range(states):
            later = usd[then] * hours[hour + 1] + after[hour + 1, then]
            if reach[then] >= needs[hour + 1] and later < np.inf:
                lower(least, onward_usd[then], later)
    return after


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
