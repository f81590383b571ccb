"""Intervals of projected spend by Monte Carlo simulation; fulfils ``broker.ports.spend.SpendSimulator``.

P paths, D days from today on, G periods. Durations are lognormal with the given 10th and 90th percentiles. A
run that takes longer continues at its mean daily cost; one that takes less ends earlier. Growth of traffic is
lognormal and compounds daily. Runs and services are independent; prices follow the given futures, which are
correlated where their histories were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from broker.domain.basics.confidence import NINTH_DECILE
from broker.domain.spend.intervals import IntervalRules, PriceRule, Quantiles, RiskLine, Simulated

Array = NDArray[np.float64]
DAYS_PER_GROWTH = 30.0
LEVELS = (0.1, 0.5, 0.9)
LONGEST_OVERRUN = 3.0
"""Longest simulated duration of a run, as a multiple of the expected one."""


class MonteCarlo:
    """The Monte Carlo simulator of spend."""

    def simulate(
        self,
        lines: Sequence[RiskLine],
        futures: Mapping[str, Sequence[Sequence[float]]],
        periods: Sequence[int],
        rules: IntervalRules,
        seed: int,
    ) -> Simulated:
        """Quantiles of the cost of ``lines``; see the port."""
        return self.summarise((self.draw(lines, futures, len(periods), rules, seed),), periods)

    def draw(
        self,
        lines: Sequence[RiskLine],
        futures: Mapping[str, Sequence[Sequence[float]]],
        days: int,
        rules: IntervalRules,
        seed: int,
    ) -> Array:
        """USD of each future and day [P, D]; see the port."""
        return simulate_days(lines, futures, days, rules, seed)

    def summarise(self, drawn: Sequence[Array], periods: Sequence[int]) -> Simulated:
        """Quantiles of the sum of the draws; days beyond ``periods`` are ignored."""
        total = sum(drawn[1:], drawn[0])
        return _summed(total[:, : len(periods)], np.asarray(periods, dtype=np.int64))


def simulate_days(
    lines: Sequence[RiskLine],
    futures: Mapping[str, Sequence[Sequence[float]]],
    days: int,
    rules: IntervalRules,
    seed: int,
) -> Array:
    """USD of each path and day [P, D]; costs after the last day are left out."""
    prices = {offer: np.asarray(rows, dtype=np.float64) for offer, rows in futures.items() if len(rows)}
    total = np.zeros((rules.paths, days))
    for line in lines:
        if line.first_day < days:
            normal = np.random.default_rng([seed, *line.job.encode()]).standard_normal((2, rules.paths))
            cost = _durations(line, days, normal[0])
            cost *= _prices(line, prices.get(line.offer_id), days, rules.paths)
            if line.follows_traffic:
                cost *= _traffic(days, rules, normal[1])
            total += cost
    return total


def _durations(line: RiskLine, days: int, normal: Array) -> Array:
    """USD at expected prices [P, D]."""
    planned = np.asarray(line.usd_by_day)
    paths, rest = normal.shape[0], float(planned.sum())
    if line.duration is None or rest <= 0:
        return _placed(np.broadcast_to(planned, (paths, planned.size)), line.first_day, days)
    low, high = line.duration
    middle, spread = (log(low) + log(high)) / 2, (log(high) - log(low)) / (2 * NINTH_DECILE)
    whole = (rest + line.done_usd) * np.exp(middle + spread * normal)
    owed = np.maximum(whole - line.done_usd, 0.0)[:, None]
    overrun = np.full(ceil(planned.size * LONGEST_OVERRUN), rest / planned.size)
    daily = np.concatenate([planned, overrun])
    before = np.concatenate([[0.0], np.cumsum(daily)[:-1]])
    return _placed(np.clip(owed - before, 0.0, daily), line.first_day, days)


def _placed(cost: Array, first: int, days: int) -> Array:
    """Costs [P, D] of something that begins on day ``first``."""
    found = np.zeros((cost.shape[0], days))
    shown = min(cost.shape[1], days - first)
    found[:, first : first + shown] = cost[:, :shown]
    return found


def _prices(line: RiskLine, futures: Array | None, days: int, paths: int) -> Array:
    """Price factors that broadcast to [P, D]; a shorter forecast is extended with its last day."""
    if futures is None or line.price is PriceRule.FIXED:
        return np.ones((1, 1))
    drawn: Array = futures[np.arange(paths) % futures.shape[0]]
    if line.price is PriceRule.AT_START:
        return drawn[:, min(line.first_day, drawn.shape[1] - 1), None]
    daily: Array = drawn[:, np.minimum(np.arange(days), drawn.shape[1] - 1)]
    return daily


def _traffic(days: int, rules: IntervalRules, normal: Array) -> Array:
    """Factors [P, D] of traffic relative to today."""
    growth = log(1.0 + rules.traffic_growth) + rules.traffic_spread * normal
    return np.exp(growth[:, None] * np.arange(days) / DAYS_PER_GROWTH)


def _summed(drawn: Array, periods: NDArray[np.int64]) -> Simulated:
    count = int(periods.max(initial=-1)) + 1
    sums = np.zeros((drawn.shape[0], count))
    for period in range(count):
        sums[:, period] = drawn[:, periods == period].sum(axis=1)
    return Simulated(
        _quantiles(sums), _quantiles(np.cumsum(sums, axis=1)), _quantiles(sums.sum(axis=1, keepdims=True))[0]
    )


def _quantiles(sums: Array) -> tuple[Quantiles, ...]:
    """Quantiles of each column, in whole cents."""
    found = np.quantile(sums, LEVELS, axis=0).round(2)
    return tuple(Quantiles(*(Decimal(f"{value:.2f}") for value in column)) for column in found.T)
