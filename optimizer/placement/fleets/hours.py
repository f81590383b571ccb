"""Classes of equal hours, and dual prices of starts that turn the sum of hourly covers into a lower bound.

Let p be the cost of a held node per hour, c the cost of a start, and n[h] the nodes held in hour h. For any
multipliers 0 ≤ u[h] ≤ c,

  Σ_h c·(n[h] − n[h−1])⁺ ≥ Σ_h u[h]·(n[h] − n[h−1]),

so a fleet costs at least Σ_h (p + u[h] − u[h+1])·n[h]. With u = c while demand rises and u = 0 while it
falls, the price of an hour is p + c at a peak, p − c in a trough, and p in between. This choice is valid for
every set of pools.

The horizon is cut into few *eras*. Whatever offer ends in an era is there throughout it as far as these
prices know, and costs inf in later ones.

A service has one or two stages, in which different rates of a replica count. H hours, C classes, E eras, G
stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.placement.fleets.terms import TermBands, term_bands
from optimizer.placement.problem.problem import Bools, Floats, Ints
from optimizer.placement.problem.units import HOUR_S, NO_HOUR
from optimizer.placement.runtime.tuning import TUNING

TROUGH, SLOPE, PEAK = 0, 1, 2
PHASES = 3
SAME_DEMAND = 1e-12
NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class HourClasses:
    """The hours [H] of a service: ``length`` in hours, and ``demand_of``, an index into ``levels`` [D] in
    requests/s, which ascend within each ``level_stage`` [D].

    Classes [C] have equal demand, stage, phase and era; ``weight`` is the sum of their lengths; classes with
    the largest total demand come first. ``dual`` [C] indexes the P dual prices, one for each of the three
    phases in each era of each stage, which ``phase``, ``era`` and ``stage`` [P] identify. ``band`` [C]: each
    class's band of demand, for nodes with minimum terms (``bands``). ``period``: hours after which
    demand repeats until the end; 0 if it does not. From hour ``steady`` on the stage is the last one.
    ``begin_s`` [H] and ``end_s``: when the hours begin, and the horizon ends, in seconds of the problem;
    ``era_s`` [E]: when the eras begin.
    """

    length: Floats
    levels: Floats
    level_stage: Ints
    demand_of: Ints
    demand: Floats
    dual: Ints
    weight: Floats
    period: int
    steady: int
    phase: Ints
    era: Ints
    stage: Ints
    band: Ints
    begin_s: Ints
    end_s: int
    era_s: Ints
    bands: TermBands | None = None

    def in_first_era(self, stage: Ints, phase: int) -> Ints:
        """The dual prices of a phase in the first era of each ``stage``."""
        found: Ints = stage * PHASES * len(self.era_s) + phase
        return found

    def is_gone(self, until_s: Ints) -> Bools:
        """Whether an offer that ends at ``until_s`` [m] is gone when each hour begins [H, m]."""
        gone: Bools = self.begin_s[:, None] >= until_s[None, :]
        return gone

    def is_cut(self, until_s: Ints) -> Bools:
        """Whether it is gone before each hour is over [H, m]."""
        ends_s = np.append(self.begin_s[1:], self.end_s)
        cut: Bools = ends_s[:, None] > until_s[None, :]
        return cut


def era_begins(gone_s: Ints, first_s: int, end_s: int) -> Ints:
    """The seconds [E] at which eras begin: the first, and the first full hours in which offers that end at
    ``gone_s`` are gone; of many, a few that are evenly spread among them.
    """
    cuts = np.unique(-(-gone_s // HOUR_S) * HOUR_S)
    cuts = cuts[(cuts > first_s) & (cuts < end_s)]
    if len(cuts) >= TUNING.fleets.most_eras:
        cuts = cuts[np.linspace(0, len(cuts) - 1, TUNING.fleets.most_eras - 1).round().astype(np.int64)]
    return np.append(np.int64(first_s), cuts)


def hour_classes(
    demand: Floats,
    length: Floats,
    lead_h: int,
    period: int,
    *,
    with_terms: bool = False,
    first_hour: int = 0,
    end_s: int | None = None,
    gone_s: Ints = NONE,
    later_from: int = NO_HOUR,
    later_share: float = 1.0,
) -> HourClasses:
    """The classes of hours with ``demand`` [H]; dips no longer than ``lead_h`` hours are bridged.

    ``later_from``: the first hour of the second stage, in which replicas carry about ``later_share`` times as
    much. ``with_terms``: prices are divided into bands, for nodes with minimum terms. ``first_hour``: which
    hour of the grid is the first; ``end_s``: when the last one ends; ``gone_s``: when offers end.
    """
    begin_s = (first_hour + np.arange(len(demand))) * HOUR_S
    end_s = int(begin_s[-1]) + HOUR_S if end_s is None else end_s
    era_s = era_begins(gone_s, int(begin_s[0]), end_s)
    era_of_hour = np.searchsorted(era_s, begin_s, side="right") - 1
    stage_of_hour = (np.arange(len(demand)) >= later_from).astype(np.int64)
    levels, level_stage, of_hour = _levels(demand, later_from)
    load = demand / np.where(stage_of_hour > 0, later_share, 1.0)
    phase = _phases(load, np.abs(length - 1.0) > 1e-9, lead_h)
    keys = (era_of_hour * len(levels) + of_hour) * PHASES + phase
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    weight = np.zeros(len(unique))
    np.add.at(weight, inverse.reshape(-1), length)
    level = unique // PHASES % len(levels)
    wanted: Floats = levels[level]
    order = np.argsort(-wanted * weight, kind="stable")
    bands = term_bands(load, length) if with_terms else None
    era = unique // (PHASES * len(levels))
    dual = (level_stage[level] * len(era_s) + era) * PHASES + unique % PHASES
    duals = np.arange(PHASES * len(era_s) * (int(level_stage.max(initial=0)) + 1))
    return HourClasses(
        length,
        levels,
        level_stage,
        of_hour,
        wanted[order],
        dual[order].astype(np.int64),
        weight[order],
        period if _repeats(demand, length, period) else 0,
        min(later_from, len(demand)) if level_stage.any() else 0,
        duals % PHASES,
        duals // PHASES % len(era_s),
        duals // (PHASES * len(era_s)),
        (np.zeros(len(demand), dtype=np.int64) if bands is None else bands.band)[first][order],
        begin_s,
        end_s,
        era_s,
        bands,
    )


def _levels(demand: Floats, later_from: int) -> tuple[Floats, Ints, Ints]:
    """The levels [D] of demand [H], ascending within each stage, the stage of each, and the level of each
    hour.
    """
    first, of_first = np.unique(demand[:later_from], return_inverse=True)
    later, of_later = np.unique(demand[later_from:], return_inverse=True)
    stage = np.repeat(np.arange(2), (len(first), len(later)))
    of_hour = np.concatenate((of_first.reshape(-1), len(first) + of_later.reshape(-1)))
    return np.concatenate((first, later)), stage, of_hour.astype(np.int64)


def _phases(demand: Floats, odd: Bools, lead_h: int) -> Ints:
    """The phase of each hour. Starts before the first hour and all releases are free.

    An hour of irregular length (``odd``) is a slope, so that the price in a trough is never negative.
    """
    smooth = _bridged(demand, max(1, lead_h))
    rising = np.zeros(len(demand) + 1, dtype=np.int64)
    for hour in range(1, len(demand)):
        step = smooth[hour] - smooth[hour - 1]
        rising[hour] = rising[hour - 1] if abs(step) <= SAME_DEMAND else int(step > 0)
        if odd[hour - 1] and not rising[hour - 1]:
            rising[hour] = 0
    phase: Ints = SLOPE + rising[:-1] - rising[1:]
    phase[odd] = SLOPE
    return phase


def _bridged(demand: Floats, lead_h: int) -> Floats:
    """Demand with dips of at most ``lead_h`` hours raised to the lower of their edges."""
    padded = np.pad(demand, lead_h, mode="edge")
    width = lead_h + 1
    highest = np.lib.stride_tricks.sliding_window_view(padded, width).max(axis=1)
    lowest: Floats = np.lib.stride_tricks.sliding_window_view(highest, width).min(axis=1)
    return np.maximum(lowest[: len(demand)], demand)


def _repeats(demand: Floats, length: Floats, period: int) -> bool:
    if period <= 0 or len(demand) < 3 * period:
        return False
    same = np.allclose(demand[period:], demand[:-period], rtol=0, atol=SAME_DEMAND)
    return bool(same and np.allclose(length[1:-1], 1.0, rtol=0, atol=1e-9))
