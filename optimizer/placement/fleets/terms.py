"""Minimum terms shorter than the horizon, modelled as a rate and a start cost, and their dual prices by hour.

Holding a node for ℓ hours at p USD an hour with a minimum term of T hours costs p·max(ℓ, T). For any 0 ≤ λ ≤
1,

  p·max(ℓ, T) ≥ λ·p·ℓ + (1 − λ)·p·T,

which is a rate λ·p and a start cost (1 − λ)·p·T. With λ = T/(T + d), holding through a gap of d hours costs
as much as a new start, so a node that is needed every day is held through the nights.

As in ``hours``, a start's cost can be shifted between hours: a gap of d hours is then free, and the hours in
which the node is needed are charged for it. If a node costs the share f of on-demand capacity, holding it
pays for demand that is present in more than the share f of all hours, so it is charged in just those hours. B
bands of equal duration, hours of highest demand first; U units, G groups of units, H hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem
from optimizer.placement.problem.units import HOUR_S, FleetCase, Units
from optimizer.placement.runtime.tuning import TUNING

TINY_USD = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class TermBands:
    """``band`` [H] of each hour, and the charges of nodes that are charged in the first j bands [B + 1].

    ``rest_h``: length of a gap that costs as much as a new start; ``share`` [B + 1, B]: the least share of
    its rate that a node is charged in each band.
    """

    band: Ints
    rest_h: Floats
    share: Floats

    @property
    def usual_rest_h(self) -> float:
        """The gap of nodes that are needed for half of the time, or for less if demand has few levels."""
        rests = self.rest_h[TUNING.fleets.bands // 2 :: -1]
        return float(rests[np.argmax(rests > 0)])

    def shares_of(self, charged: int, term_h: Floats, full_share: Floats, paid_share: Floats) -> Floats:
        """The least share of its rate [B, L] that each part is charged in each band, if only the first
        ``charged`` bands are charged. The arguments [L] are those of the parts (``Pool``).
        """
        kept = term_h / np.maximum(term_h + self.rest_h[charged], TINY_USD)
        rate = (1 + (full_share - 1) / paid_share) * kept
        share = rate[None, :] * self.share[charged][:, None]
        found: Floats = np.where(share > 1, 1 + (share - 1) * paid_share[None, :], share)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Which units [U] have a term, their hourly price with dual prices, their start cost, and the hours
    ``least_h`` that are paid at least.

    ``full_share`` [G]: the full price of each group without a start cost (λ = 1), as a multiple of that
    price; ``paid_share`` [G]: the least part of that price that is not a dual price.
    """

    has: Bools
    usd_per_hour: Floats
    start_usd: Floats
    least_h: Floats
    full_share: Floats
    paid_share: Floats

    @classmethod
    def none(cls, units: Units, groups: int) -> Terms:
        """Terms for units without any minimum term."""
        no, usd = np.zeros(len(units), dtype=np.bool_), units.usd_per_hour + units.surcharge_usd_per_hour
        nothing, whole = np.zeros(len(units)), np.ones(groups)
        return cls(no, usd, nothing, nothing.copy(), whole, whole.copy())


def has_term(problem: Problem, case: FleetCase) -> Bools:
    """Units [U] with a minimum term that ends within the horizon, of offers that do not."""
    offers, table = case.units.offer, problem.table
    term_s = table.min_s[offers]
    found: Bools = (term_s >= TUNING.fleets.least_term_s) & (term_s < problem.end_s - problem.t0_s)
    found &= table.gone_s[offers] >= problem.end_s
    return found


def term_bands(demand: Floats, length: Floats) -> TermBands:
    """The bands of hours [H], and what nodes with a term are charged in each."""
    order = np.argsort(-demand, kind="stable")
    levels, first = np.unique(-demand[order], return_index=True)
    before = np.append(0.0, np.cumsum(length[order])[:-1])[first]
    of_level = np.minimum(
        TUNING.fleets.bands - 1, np.floor(TUNING.fleets.bands * before / length.sum() + 1e-9)
    ).astype(np.int64)
    band: Ints = of_level[np.searchsorted(levels, -demand)]
    rest_h, share = np.zeros(TUNING.fleets.bands + 1), np.ones((TUNING.fleets.bands + 1, TUNING.fleets.bands))
    for bands in range(1, TUNING.fleets.bands + 1):
        rest_h[bands], each = _shares(band < bands, length)
        for one in range(TUNING.fleets.bands):
            share[bands, one] = each[band == one].min(initial=1.0 if one >= bands else np.inf)
    share[~np.isfinite(share)] = 1.0
    return TermBands(band, rest_h, share)


def _shares(wanted: Bools, length: Floats) -> tuple[float, Floats]:
    """The gap in hours that costs as much as a start, and the share of its rate [H] that a node is charged.

    The node is charged in the ``wanted`` hours [H]. θ is the part of a start that is charged to later hours:
    it rises to 1 in a gap that is long enough and falls to 0 while the node is needed. An hour is charged the
    rate minus the increase of θ in it.
    """
    edges = np.flatnonzero(np.diff(wanted)) + 1
    bounds = np.concatenate(([0], edges, [len(wanted)]))
    hours = np.add.reduceat(length, bounds[:-1])
    inner = [float(hours[i]) for i in range(1, len(hours) - 1) if not wanted[bounds[i]]]
    share = np.ones(len(wanted))
    if not inner:
        return 0.0, share
    rest = min(TUNING.fleets.longest_rest_h, float(np.median(inner)))
    # Before the first hour, a start is charged in full.
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
    """Rates and start costs of units with terms, for a service that is held for ``hours``."""
    units, has = case.units, has_term(problem, case)
    found = Terms.none(units, len(groups))
    if not has.any():
        return found
    term_h = problem.table.min_s[units.offer] / HOUR_S
    # If less time is left than the term, it is owed in full however long the node is held.
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
            found.paid_share[group] = (rate[mine] / np.maximum(found.usd_per_hour[mine], TINY_USD)).min()
            found.full_share[group] = 1 + (1 / kept[mine].max() - 1) * found.paid_share[group]
    return found
