"""The cheapest set of units for each of many hours, each with its own need and its own prices, in one pass.

Units come in ascending order of their largest replica, so that what is read after each size is the
cheapest among fleets with no larger replica. N units, Q hours, S states of zones, E = ``STEPS``. A table
[S, Q, E + 1] holds the least USD an hour of units that bring at least so many steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.placement.fleet_menu import STEPS, Menu
from optimizer.placement.hour_knapsack import cover_hours
from optimizer.placement.problem import Floats, Ints

MAX_TRACKED = 3


@dataclass(frozen=True, slots=True, eq=False)
class Covers:
    """``usd`` [Q] an hour (inf: none), no more than that of any fleet; ``counts`` [Q, N] that cost it."""

    usd: Floats
    counts: Ints


@dataclass(frozen=True, slots=True, eq=False)
class ZoneStates:
    """Where a fleet stands: nowhere, in one tracked zone alone, in others, or spread out.

    Untracked zones count as one until a second unit joins, so a state never asks for more than the truth.
    With no zones to spread over there is one state.
    """

    tracked: tuple[int, ...]
    spread: bool

    @property
    def count(self) -> int:
        """How many states."""
        return len(self.tracked) + 3 if self.spread else 1

    @property
    def done(self) -> int:
        """The state that meets the request."""
        return self.count - 1

    def of(self, zone: int) -> int:
        """State of a unit that stands alone."""
        if not self.spread:
            return 0
        return self.tracked.index(zone) + 1 if zone in self.tracked else self.done - 1


def zone_states(menu: Menu, zones: int) -> ZoneStates:
    """States that track the zones with the cheapest units."""
    if zones < 2:
        return ZoneStates((), spread=False)
    best: dict[int, int] = {}
    for price in (menu.whole_usd, menu.whole_usd / menu.steps):
        for place, at in enumerate(np.argsort(price, kind="stable")):
            zone = int(menu.zone[at])
            best[zone] = min(best.get(zone, place), place)
    return ZoneStates(tuple(sorted(best, key=lambda z: (best[z], z))[:MAX_TRACKED]), spread=True)


def hour_covers(menu: Menu, states: ZoneStates, usd: Floats, needs: Ints) -> Covers:
    """The cheapest fleet for each hour at prices ``usd`` [N, Q] and ``needs`` [Q] in steps."""
    order, counts, least = _covered(menu, states, usd, needs, kept=True)
    placed = np.zeros_like(counts)
    placed[:, order] = counts
    return Covers(least, placed)


def least_usd(menu: Menu, states: ZoneStates, usd: Floats, needs: Ints) -> Floats:
    """What the cheapest fleet of each hour costs [Q], without saying which it is."""
    return _covered(menu, states, usd, needs, kept=False)[2]


def _covered(
    menu: Menu, states: ZoneStates, usd: Floats, needs: Ints, *, kept: bool
) -> tuple[Ints, Ints, Floats]:
    """The order of the units, the counts of each hour's cheapest fleet in it, and what that costs.

    A unit that, once, makes no entry cheaper makes none cheaper however often and beside whatever comes
    later: what it would bring is there for as little. So alike units are left out together.
    """
    own = np.array([states.of(int(zone)) for zone in menu.zone], dtype=np.int64)
    order, heads = alike(menu.size, menu.net, menu.steps, own, usd.mean(axis=1))
    prices = np.ascontiguousarray(usd[order].T)
    units = np.stack((menu.steps, menu.net, own, menu.most), axis=1)[order]
    spared = bool(menu.size.any())
    least, counts = cover_hours(units, heads, prices, needs, states.count, STEPS, spared, kept)
    return order, counts, least


def alike(size: Floats | Ints, net: Ints, steps: Ints, own: Ints, usd: Floats) -> tuple[Ints, Ints]:
    """Units of the same replica, rate and state of zones together, those that cost least by their rate first.

    Ascending in the replica: whatever may join a lead is on the table when it is tried. With where each
    group begins, and the end. All [N].
    """
    order = np.lexsort((usd, own, net, steps, size))
    same = np.stack((own, net, steps, size))[:, order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (same[:, 1:] != same[:, :-1]).any(axis=0)
    group = np.cumsum(first) - 1
    heads = order[first]
    rank = np.lexsort((usd[heads] / steps[heads], size[heads]))
    place = np.empty(len(heads), dtype=np.int64)
    place[rank] = np.arange(len(heads))
    order = order[np.argsort(place[group], kind="stable")]
    counts = np.bincount(place[group], minlength=len(heads))
    return order, np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts)))
