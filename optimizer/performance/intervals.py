"""80 % intervals, and the distribution behind them: two halves of log-normals that meet at the prediction.

The prediction is the median. What somebody measures lies between P10 and P90 in 80 of 100 cases: a
prediction, its P10 and its P90 therefore give every other quantile (``at_deviation``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from broker.domain.basics.confidence import NINTH_DECILE, normal_quantile
from broker.domain.basics.estimate import Estimate, Provenance
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.groups import Intervals
from optimizer.performance.constants.spread import Question, Sides, Spread

SHARES = frozenset({"communication_share", "checkpoint_share", "goodput", "mfu"})
SAME, NEAR = 0.95, 0.9
APART = 0.05
"""Points of a curve that are nearer to each other, in standard deviations, give no slope."""
GRID_STACK = "eager"


@dataclass(frozen=True, slots=True)
class Closeness:
    """How close own measurements are: the correlation with the closest one, and factors on the sides of
    intervals, for times and rates (``shrink``) and for first tokens (``shrink_first``).
    """

    nearness: float = 0.0
    shrink: float = 1.0
    shrink_first: float = 1.0


NO_ROWS = Closeness()


def at_deviation(value: ArrayLike, low: ArrayLike, high: ArrayLike, deviations: ArrayLike) -> Array:
    """A prediction with its P10 and P90 at a number of standard deviations from its median, elementwise.

    Predictions of one model, GPU and engine err together: with c = ``Spread.common`` of the block, and
    standard normal draws z (one of each model, GPU and engine) and y (one of each prediction), draw at
    √c·z + √(1 − c)·y.
    """
    middle, asked = as_array(value), as_array(deviations)
    below, above = np.log(middle / as_array(low)), np.log(as_array(high) / middle)
    return as_array(middle * np.exp(asked / NINTH_DECILE * np.where(asked < 0.0, below, above)))


def rate_at(estimate: Estimate, confidence: float, deviations: ArrayLike) -> Array:
    """Requests/s of a replica whose times lie some standard deviations above their medians, elementwise.

    The logarithm is interpolated between P90, median, P10 and the rate that holds with ``confidence``, with
    which the service was planned, and goes on straight beyond them. Of a service all of these are evaluated
    at slower times, so that they lie on one curve, whatever the confidence.
    """
    rate = "requests_per_s_per_replica"
    points = {0.0: estimate[rate], -NINTH_DECILE: estimate.high[rate], NINTH_DECILE: estimate.low[rate]}
    sure = normal_quantile(confidence)
    if estimate.at_confidence and abs(sure) > APART:
        points = {at: value for at, value in points.items() if abs(at - sure) > APART}
        points[sure] = estimate.sure_requests_per_s
    at = as_array(sorted(points))
    logs, slower = np.log([points[one] for one in at.tolist()]), as_array(deviations)
    slopes = np.diff(logs) / np.diff(at)
    part = np.clip(np.searchsorted(at, slower) - 1, 0, len(slopes) - 1)
    return as_array(np.exp(logs[part] + slopes[part] * (slower - at[part])))


def tail_deviation(median: ArrayLike, sure: ArrayLike, low: ArrayLike, confidence: float) -> Array:
    """The standard deviation of the logarithm of a rate beyond the one that holds with ``confidence``: the
    slope of ``rate_at`` there. ``low`` is the P10. Near its latency objective a replica loses more there.
    """
    at = normal_quantile(confidence)
    if abs(NINTH_DECILE - at) <= APART:
        return as_array(np.log(as_array(median) / as_array(sure)) / at)
    return as_array(np.log(as_array(sure) / as_array(low)) / (NINTH_DECILE - at))


def with_interval(value: Mapping[str, float], sides: Mapping[str, Sides], provenance: Provenance) -> Estimate:
    """The estimate with P10 and P90 of each metric; shares stay at most 1."""
    low = {name: number * math.exp(-sides[name].below) for name, number in value.items()}
    high = {name: number * math.exp(sides[name].above) for name, number in value.items()}
    for name in SHARES.intersection(high):
        high[name] = max(min(high[name], 1.0), value[name])
    return Estimate(dict(value), low, high, provenance)


def even(relative: float) -> Sides:
    """The sides of an interval from ``value / (1 + r)`` to ``value · (1 + r)``."""
    return Sides(math.log1p(relative), math.log1p(relative))


def memory_regime(software: str, adapters: bool = False) -> str:
    """Class of memory predictions with a common interval: adapters, and ``eager``, ``old`` or other
    (``tuned``) stacks.
    """
    if adapters:
        return "adapters"
    if software == "eager":
        return software
    return "old" if software.endswith("_2022") else "tuned"


def step_regime(software: str, moe: bool, adapters: bool = False) -> str:
    """Class of step times with a common interval: models with experts, adapters, eager stacks, others."""
    if moe:
        return "moe"
    return "adapters" if adapters else software if software == GRID_STACK else "dense"


def training_sides(
    question: Question,
    regimes: tuple[str, str],
    measured: bool,
    constants: Intervals,
    spread: Spread,
    near: Closeness = NO_ROWS,
) -> dict[str, Sides]:
    """Sides of each training metric; ``regimes``: of step time and memory. ``measured``: the user measured
    this GPU."""
    least = math.log1p(constants.measured)
    modelled = narrowed(spread.of("step", regimes[0], question), near.shrink, least)
    time = even(constants.measured) if measured else modelled
    lost = math.log1p(constants.goodput)
    return {
        "step_s": time,
        "mfu": time.inverse,
        "tokens_per_s": time.inverse,
        "hours": Sides(time.below + lost, time.above + lost),
        "memory_gb_per_gpu": spread.of("memory", regimes[1], question),
        "communication_share": time.times(2.0),
        "checkpoint_share": time.inverse.times(2.0),
        "goodput": even(constants.goodput),
    }


def serving_sides(
    question: Question,
    batch: bool,
    measured: bool,
    constants: Intervals,
    spread: Spread,
    near: Closeness = NO_ROWS,
) -> dict[str, Sides]:
    """Sides of each serving metric. Of a service: rates as of closed loops with many clients, first tokens as
    of open loops; of a batch: rates as of offline runs, first tokens as of closed loops. Times between tokens
    as of closed loops."""
    least = math.log1p(constants.measured)
    loaded = spread.of("rate", "offline" if batch else "crowded", question)
    modelled = narrowed(loaded, near.shrink, least)
    rate = even(constants.measured) if measured else modelled
    ttft = spread.of("ttft", "closed" if batch else "open", question)
    return {
        "requests_per_s_per_replica": rate,
        "ttft_p95_ms": narrowed(ttft, near.shrink_first, least),
        "itl_p95_ms": narrowed(spread.of("itl", "closed", question), near.shrink, least),
        "tokens_per_s": rate,
        "memory_gb_per_gpu": even(constants.kv),
        "kv_tokens": even(constants.kv),
        "usd_per_million_tokens": rate.inverse,
        "cold_start_s": even(constants.cold_start),
    }


def narrowed(sides: Sides, shrink: float, least: float) -> Sides:
    """Sides narrowed by rows nearby, but not below ``least``, by which repeated measurements differ."""
    if shrink >= 1.0:
        return sides
    narrow = sides.times(shrink).at_least(least)
    return Sides(min(narrow.below, sides.below), min(narrow.above, sides.above))


def provenance_of(measured: bool, known_gpu: bool, near: Closeness = NO_ROWS) -> Provenance:
    """Whether an estimate is measured by the user (same configuration), calibrated (on rows nearby or on
    published rows of the GPU), or modelled from the data sheet alone.
    """
    if measured or near.nearness >= SAME:
        return Provenance.MEASURED
    return Provenance.CALIBRATED if known_gpu or near.shrink <= NEAR else Provenance.MODELLED
