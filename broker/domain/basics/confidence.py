"""Quantiles and means of what an estimate's interval says.

A time is two halves of log-normals that meet at its median: its P90 is ``median · (1 + r)``, with r the
relative half-width of the slow side, and its P10 is ``median / (1 + r')``. So ln(1 + r) is z(0.9) = 1.2816
standard deviations σ, and a quantile c above the median is the median times exp(z(c)·σ) for the standard
normal quantile z. With σ' of the fast side the mean is the median times
exp(σ²/2)·Φ(σ) + exp(σ'²/2)·Φ(−σ').
"""

from __future__ import annotations

import math
from statistics import NormalDist

MEDIAN = 0.5
MEMORY_LEAST = 0.75
"""Running out of memory is not a slower run but a failed one, so a layout fits with at least this chance."""

_NORMAL = NormalDist()
NINTH_DECILE = _NORMAL.inv_cdf(0.9)


def quantile_factor(relative: float, confidence: float) -> float:
    """The quantile ``confidence`` divided by the median, for the relative half-width of an 80 % interval."""
    if confidence == MEDIAN:
        return 1.0
    factor: float = (1.0 + relative) ** (_NORMAL.inv_cdf(confidence) / NINTH_DECILE)
    return factor


def mean_factor(slower: float, faster: float) -> float:
    """The mean divided by the median, for the relative half-widths of the two sides of an 80 % interval."""
    slow, fast = (math.log1p(relative) / NINTH_DECILE for relative in (slower, faster))
    return math.exp(slow**2 / 2.0) * _NORMAL.cdf(slow) + math.exp(fast**2 / 2.0) * _NORMAL.cdf(-fast)


def work_factors(slower: float, faster: float, confidence: float) -> tuple[float, float]:
    """The time of work that suffices with ``confidence``, and its mean, each divided by the median, for the
    relative half-widths of the two sides of its 80 % interval. Both are 1 where medians are planned.
    """
    if confidence == MEDIAN:
        return 1.0, 1.0
    return quantile_factor(slower, confidence), mean_factor(slower, faster)


def chance_below(share: float, relative: float) -> float:
    """The chance that the metric is at most ``share`` times its median; 1 of a metric that is certain."""
    if share <= 0.0:
        return 0.0
    if relative <= 0.0:
        return float(share >= 1.0)
    return _NORMAL.cdf(math.log(share) * NINTH_DECILE / math.log1p(relative))


def normal_quantile(confidence: float) -> float:
    """The quantile of the standard normal distribution."""
    return _NORMAL.inv_cdf(confidence)


def joint_deviations(confidence: float, kinds: int) -> float:
    """By how many standard deviations more each of some independent errors counts, so that all of them stay
    within what is counted with ``confidence`` c: z(c^(1/kinds)) − z(c). None where medians are planned.
    """
    if confidence == MEDIAN or kinds < 2:
        return 0.0
    return _NORMAL.inv_cdf(confidence ** (1.0 / kinds)) - _NORMAL.inv_cdf(confidence)


def deviation_of(relative: float) -> float:
    """The standard deviation σ of the logarithm, for the relative half-width of an 80 % interval."""
    return math.log1p(relative) / NINTH_DECILE


def overrun(share: float, deviation: float) -> tuple[float, float]:
    """The chance that a time exceeds ``share`` ≥ 1 times its median, and by how many medians on average where
    it does: P(X > x) and E[X - x | X > x] for ln X ~ N(0, σ²), with σ the ``deviation`` > 0.
    """
    z = math.log(share) / deviation
    chance = 0.5 * math.erfc(z / math.sqrt(2))
    upper = 0.5 * math.exp(deviation**2 / 2) * math.erfc((z - deviation) / math.sqrt(2))
    return chance, upper / chance - share if chance else 0.0


def memory_margin(half_width: float, confidence: float) -> float:
    """Factor from predicted memory to what a card must hold so that the layout fits with ``confidence``."""
    return quantile_factor(half_width, max(confidence, MEMORY_LEAST))
