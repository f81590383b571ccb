"""Prices by the hour that no holding pays more than: how a start or a minimum term is shared among hours.

A *shape* gives each hour a factor on a unit's hourly price. It is valid when over every stretch that a
unit may be ready, the factors sum to no more than the hours that are paid for. High hours are those above
a threshold of demand. H hours from the first that is due.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.placement.problem import Bools, Floats, Ints

MAX_ROUNDS = 12


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """``start`` [H]: share of one start paid in each hour; ``term`` by minimum term in hours: factors [H]."""

    start: Floats
    term: dict[float, Floats]


def flat_shape(hours: int, terms: tuple[float, ...]) -> Shape:
    """Every hour alike."""
    return Shape(np.zeros(hours), {term: np.ones(hours) for term in terms})


def peaked_shape(high: Bools, lengths: Floats, terms: tuple[float, ...]) -> Shape:
    """Starts and terms charged to the ``high`` hours."""
    return Shape(start_shares(high), {term: term_factors(high, lengths, term) for term in terms})


def start_shares(high: Bools) -> Floats:
    """One start charged to each run of high hours, one taken off each run of low hours before it.

    Up to the end of the first run of high hours nothing is charged: a unit may be held since before it.
    Any stretch from a later hour sums to at most one; any from the first hour to at most zero.
    """
    shares = np.zeros(len(high))
    edges = np.flatnonzero(np.diff(np.concatenate(([0], high.astype(np.int8), [0]))))
    starts, ends = edges[::2], edges[1::2]
    if len(starts) < 2:
        return shares
    lengths, gaps = ends[1:] - starts[1:], starts[1:] - ends[:-1]
    charge = 1.0 / float(lengths.max())
    discount = float((charge * lengths / gaps).max())
    shares[high], shares[~high] = charge, -discount
    shares[: ends[0]] = -discount
    return shares


def term_factors(high: Bools, lengths: Floats, term_h: float) -> Floats:
    """Factors of a unit that is paid for ``term_h`` at least: nothing in low hours, evenly in high ones.

    Scaled so that no stretch of the term or longer sums to more than its hours; a shorter one pays the
    term anyway.
    """
    if not high.any():
        return np.ones(len(high))
    factors = np.where(high, float(lengths.sum()) / float(lengths[high].sum()), 0.0)
    return factors / _worst_ratio(factors, lengths, int(term_h) - 1)


def _worst_ratio(factors: Floats, lengths: Floats, least_hours: int) -> float:
    """Largest mean factor over stretches of ``least_hours`` rows or more (all rows at least)."""
    paid = np.concatenate(([0.0], np.cumsum(factors * lengths)))
    held = np.concatenate(([0.0], np.cumsum(lengths)))
    gap = max(1, min(least_hours, len(lengths)))
    ratio = float(paid[-1] / held[-1])
    for _ in range(MAX_ROUNDS):
        excess = paid - ratio * held
        floor = np.minimum.accumulate(excess[:-gap])
        end = int(np.argmax(excess[gap:] - floor))
        begin = int(np.argmin(excess[: end + 1]))
        better = float((paid[end + gap] - paid[begin]) / (held[end + gap] - held[begin]))
        if better <= ratio * (1 + 1e-12):
            break
        ratio = better
    return ratio * (1 + 1e-9)


def thresholds(demand: Floats, most: int) -> Floats:
    """Levels of demand to part high hours from low ones by; below all of them first."""
    levels = np.unique(demand)[:-1]
    if len(levels) <= most:
        return levels
    at: Ints = np.unique(np.linspace(0, len(levels) - 1, most).round().astype(np.int64))
    return levels[at]
