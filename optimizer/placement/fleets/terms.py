"""Minimum terms shorter than the horizon, as a rate and the cost of a start, and their dual prices by hour.

A stretch of ℓ hours of a node at p USD an hour with a minimum term of T hours costs p·max(ℓ, T). For any
0 ≤ λ ≤ 1 that is at least λ·p·ℓ + (1 − λ)·p·T, which is a rate and the cost of a start. With λ = T/(T + d) a
rest of d hours costs as much held as begun again, so what is needed every day is held through its nights.

As in ``hours`` a start's cost can be moved between hours: a rest of d hours is then free, and the hours in
which the node is wanted are charged for it. A node at a share f of what serving by the hour costs is worth
holding for those that are wanted for more than that share of all hours, so it is charged in just these. B
bands of equal time, the hours of highest demand first; U units, G groups of units, H hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem
from optimizer.placement.problem.units import HOUR_S, FleetCase, Units

BANDS = 6
LEAST_TERM_S = 24 * HOUR_S
"""A shorter minimum term counts as none."""
LONGEST_REST_H = 24.0
TINY_USD = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class TermBands:
    """``band`` [H] of each hour. For nodes that are charged in the first j bands [B + 1]: the rest ``rest_h``
    that is as dear as a new start, and the ``share`` [B + 1, B] of its rate that a node is charged in each
    band at least."""

    band: Ints
    rest_h: Floats
    share: Floats

    @property
    def usual_rest_h(self) -> float:
        """The rest of nodes that are wanted for half of the time, or for less where demand has few levels."""
        rests = self.rest_h[BANDS // 2 :: -1]
        return float(rests[np.argmax(rests > 0)])


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Which units [U] have a term, their hourly price with any dual price, what a start costs beside it, and
    the hours ``least_h`` that are paid at least.

    Of each group the ``share`` [G, B + 1] of that rate that is charged at least in each band, and at last
    that without any cost of a start: λ = 1.
    """

    has: Bools
    usd_per_hour: Floats
    start_usd: Floats
    least_h: Floats
    share: Floats

    @classmethod
    def none(cls, units: Units, groups: int) -> Terms:
        """No unit has a term."""
        no, usd = np.zeros(len(units), dtype=np.bool_), units.usd_per_hour + units.surcharge_usd_per_hour
        nothing, share = np.zeros(len(units)), np.ones((groups, BANDS + 1))
        return cls(no, usd, nothing, nothing.copy(), share)


def has_term(problem: Problem, case: FleetCase) -> Bools:
    """Units [U] with a minimum term that ends within the horizon."""
    term_s = problem.table.min_s[case.units.offer]
    found: Bools = (term_s >= LEAST_TERM_S) & (term_s < problem.end_s - problem.t0_s)
    return found


def term_bands(demand: Floats, length: Floats) -> TermBands:
    """The bands of hours [H] of some demand and length, and what nodes with a term are charged in each."""
    order = np.argsort(-demand, kind="stable")
    levels, first = np.unique(-demand[order], return_index=True)
    before = np.append(0.0, np.cumsum(length[order])[:-1])[first]
    of_level = np.minimum(BANDS - 1, np.floor(BANDS * before / length.sum() + 1e-9)).astype(np.int64)
    band: Ints = of_level[np.searchsorted(levels, -demand)]
    rest_h, share = np.zeros(BANDS + 1), np.ones((BANDS + 1, BANDS))
    for bands in range(1, BANDS + 1):
        rest_h[bands], each = _shares(band < bands, length)
        for one in range(BANDS):
            share[bands, one] = each[band == one].min(initial=1.0 if one >= bands else np.inf)
    share[~np.isfinite(share)] = 1.0
    return TermBands(band, rest_h, share)


def _shares(wanted: Bools, length: Floats) -> tuple[float, Floats]:
    """The rest in hours that is as dear as a start, and the share of its rate [H] that a node is charged when
    it is charged in the ``wanted`` hours [H].

    θ, the part of a start that is charged to what comes, rises to 1 in a rest that is long enough and falls
    to 0 while the node is wanted; an hour is charged its rate less what θ rises in it.
    """
    edges = np.flatnonzero(np.diff(wanted)) + 1
    bounds = np.concatenate(([0], edges, [len(wanted)]))
    hours = np.add.reduceat(length, bounds[:-1])
    inner = [float(hours[i]) for i in range(1, len(hours) - 1) if not wanted[bounds[i]]]
    share = np.ones(len(wanted))
    if not inner:
        return 0.0, share
    rest = min(LONGEST_REST_H, float(np.median(inner)))
    # Before the first hour a start is charged whole.
    theta = 1.0
    for i, (a, b) in enumerate(pairwise(bounds)):
        if wanted[a]:
            share[a:b] = 1.0 + theta * rest / hours[i]
            theta = 0.0
        elif i == 0:
            share[a:b] = max(0.0, 1.0 - rest / hours[i])
        elif i < len(hours) - 1:
            theta = min(1.0, hours[i] / rest)
            share[a:b] = 1.0 - theta * rest / hours[i]
    return rest, share


def term_prices(
    problem: Problem, case: FleetCase, groups: Sequence[Ints], bands: TermBands, hours: float
) -> Terms:
    """Rates and starts of units with terms, for a service that is held for ``hours``."""
    units, has = case.units, has_term(problem, case)
    found = Terms.none(units, len(groups))
    if not has.any():
        return found
    each = found.usd_per_hour / units.requests_per_s
    by_hour = _by_the_hour_usd(problem, case, groups, each)
    term_h = problem.table.min_s[units.offer] / HOUR_S
    # What has less time than its term is owed in full however long it is held.
    reach_h = np.minimum(term_h, hours + float(units.cold_s.max()) / HOUR_S + 1)
    kept = reach_h / np.maximum(reach_h + bands.usual_rest_h, TINY_USD)
    owed_usd = units.usd_per_hour * term_h / np.maximum(reach_h, 1)
    rate = kept * owed_usd
    found.has[:] = has
    found.usd_per_hour[has] = (rate + units.surcharge_usd_per_hour)[has]
    found.start_usd[has] = ((1 - kept) * units.usd_per_hour * term_h)[has]
    found.least_h[has] = reach_h[has]
    for group, every in enumerate(groups):
        mine = every[has[every]]
        if len(mine):
            ratio = float(each[mine].min()) / by_hour
            count = int(np.clip(np.ceil(BANDS * ratio - 1e-9), 1, BANDS))
            # In the hours alone, nodes that rest for less are begun again for less.
            scale = float((reach_h[mine] / (reach_h[mine] + bands.rest_h[count]) / kept[mine]).min())
            paid = float((rate[mine] / np.maximum(found.usd_per_hour[mine], TINY_USD)).min())
            share = np.append(scale * bands.share[count], 1 / kept[mine].max())
            found.share[group] = np.where(share > 1, 1 + (share - 1) * paid, share)
    return found


def _by_the_hour_usd(problem: Problem, case: FleetCase, groups: Sequence[Ints], each: Floats) -> float:
    """USD per request/s and hour for which the cheapest group carries half of the peak without terms; inf
    where none can."""
    units = case.units
    mine, group = np.concatenate(groups), np.repeat(np.arange(len(groups)), [len(one) for one in groups])
    free = problem.table.min_s[units.offer[mine]] < LEAST_TERM_S
    mine, group = mine[free], group[free]
    order = np.lexsort((each[mine], group))
    mine, group = mine[order], group[order]
    reach = np.cumsum((units.requests_per_s * units.most)[mine])
    before = np.concatenate(([0.0], reach))[np.searchsorted(group, group)]
    enough = reach - before >= float(case.demand.max(initial=0.0)) / 2
    return float(each[mine[enough]].min(initial=np.inf))
