"""Steps towards the sharing that proves most over a pool of covers, compiled.

U units, K classes of hours, M covers. ``terms`` [U, 5] of each unit: whether it is bound by a term, USD of
the whole time, USD an hour, USD for its starts over all peaks, minimum term (h) (``hour_prices.Sharing``).
"""

from __future__ import annotations

import numpy as np

from optimizer.placement.compiled import compiled
from optimizer.placement.problem import Bools, Floats, Ints
from optimizer.placement.rows import fill

BOUND, TOTAL, HOURLY, STARTS, TERM = range(5)
DAY_H = 24
TINY = 1e-12
SLACK = 1e-9
PATIENCE, SHORTER = 4, 0.6
LEAST_AIM = 1e-3
REACHED = 1e-4


@compiled
def shared(prices: Floats, terms: Floats, hours: Floats, day: Ints) -> Floats:
    """Prices [U, K] moved to where a unit held throughout, or over each peak, is charged what it costs.

    ``hours`` [K] of each class; ``day`` [24]: the class of each hour of a day that repeats, or empty.
    """
    found = np.empty_like(prices)
    whole = _total(hours)
    for unit in range(len(prices)):
        if terms[unit, BOUND] > 0:
            _share_total(found[unit], prices[unit], terms[unit], hours, day, whole)
        else:
            _share_starts(found[unit], prices[unit], terms[unit], hours, whole)
    return found


@compiled
def _total(hours: Floats) -> float:
    total = 0.0
    for column in range(len(hours)):
        total += hours[column]
    return total


@compiled
def _share_total(
    found: Floats, prices: Floats, terms: Floats, hours: Floats, day: Ints, whole: float
) -> None:
    charged = 0.0
    for column in range(len(hours)):
        found[column] = max(prices[column], 0.0)
        charged += found[column] * hours[column]
    scale = terms[TOTAL] / charged if charged > TINY else 1.0
    for column in range(len(hours)):
        found[column] *= scale
    if len(day) and terms[TERM] < whole - 1e-9 and terms[HOURLY] > 0:
        ratio = _daily_ratio(found, terms[HOURLY], terms[TERM], day)
        for column in range(len(hours)):
            found[column] /= ratio


@compiled
def _daily_ratio(prices: Floats, usd: float, term_h: float, day: Ints) -> float:
    """How much more than it pays a unit is charged at most over any so many days and a part of one."""
    paid = np.zeros(2 * DAY_H + 1)
    for hour in range(2 * DAY_H):
        paid[hour + 1] = paid[hour] + prices[day[hour % DAY_H]] / usd
    whole, days = paid[DAY_H], np.floor(term_h / DAY_H)
    found: float = whole / DAY_H
    for part in range(DAY_H):
        charged = 0.0
        for begin in range(DAY_H):
            charged = max(charged, paid[begin + part] - paid[begin])
        for more in range(2):
            due = max(term_h, (days + more) * DAY_H + part)
            found = max(found, ((days + more) * whole + charged) / due)
    return found


@compiled
def _share_starts(found: Floats, prices: Floats, terms: Floats, hours: Floats, whole: float) -> None:
    usd, mean, above = terms[HOURLY], 0.0, 0.0
    for column in range(len(hours)):
        mean += (prices[column] - usd) * hours[column] / whole
    for column in range(len(hours)):
        found[column] = max(prices[column] - usd - mean, -usd)
        above += max(found[column], 0.0) * hours[column]
    scale = min(1.0, terms[STARTS] / above) if above > TINY else 1.0
    for column in range(len(hours)):
        found[column] = usd + scale * found[column]


@compiled
def climbed(
    prices: Floats,
    scarce_usd: Floats,
    terms: Floats,
    covers: Ints,
    reach: Ints,
    hours: Floats,
    day: Ints,
    aim: float,
    steps: int,
) -> tuple[Floats, float]:
    """Steps from ``prices`` towards a pool's bound of ``aim``; the best prices and their bound.

    ``covers`` [M, U] counts; ``reach`` [M]: the highest class that each meets; ``scarce_usd`` [U] an hour.
    """
    now = shared(prices, terms, hours, day)
    best, best_usd, stale, length_of_step = now, -np.inf, 0, 1.0
    for _ in range(steps):
        chosen, value = _cheapest(now, scarce_usd, covers, reach, hours)
        if value > best_usd:
            best, best_usd, stale = now, value, 0
        else:
            stale += 1
            if stale % PATIENCE == 0:
                length_of_step *= SHORTER
        slope, length = _slope(covers, chosen, hours)
        if length < TINY or best_usd >= aim * (1 - REACHED):
            break
        step = length_of_step * max(aim - value, LEAST_AIM * aim) / length
        now = shared(now + step * slope, terms, hours, day)
    return best, best_usd


@compiled
def _cheapest(
    prices: Floats, scarce_usd: Floats, covers: Ints, reach: Ints, hours: Floats
) -> tuple[Ints, float]:
    """The cheapest cover of each class [K], and what they cost together."""
    chosen, least, usd = np.zeros(len(hours), dtype=np.int64), np.empty(len(hours)), np.empty(len(hours))
    fill(least, np.inf)
    for cover in range(len(covers)):
        fill(usd, 0.0)
        for unit in range(covers.shape[1]):
            count = covers[cover, unit]
            if count:
                for column in range(len(hours)):
                    usd[column] += count * (prices[unit, column] + scarce_usd[unit])
        for column in range(reach[cover] + 1):
            if usd[column] < least[column]:
                least[column], chosen[column] = usd[column], cover
    value = 0.0
    for column in range(len(hours)):
        value += least[column] * hours[column]
    return chosen, value


@compiled
def _slope(covers: Ints, chosen: Ints, hours: Floats) -> tuple[Floats, float]:
    """How far each unit is used above its mean [U, K], and the square of that over all hours."""
    units, whole, length = covers.shape[1], _total(hours), 0.0
    slope = np.empty((units, len(hours)))
    for unit in range(units):
        mean = 0.0
        for column in range(len(hours)):
            mean += covers[chosen[column], unit] * hours[column] / whole
        for column in range(len(hours)):
            slope[unit, column] = covers[chosen[column], unit] - mean
            length += slope[unit, column] ** 2 * hours[column]
    return slope, length


@compiled
def stretched(
    factors: Floats, of: Ints, lengths: Floats, is_spared: Bools, parts: Floats, gap: int, rounds: int
) -> tuple[Floats, Floats]:
    """For each of some ``parts`` of the price on spared days: by how much ``factors`` [K] of a unit with a
    term must be scaled so that no stretch of ``gap`` rows or longer is charged more than its hours, and what
    all rows are then charged. ``of``, ``lengths``, ``is_spared`` [H] of each row.
    """
    rows = len(of)
    scale, total = np.empty(len(parts)), np.empty(len(parts))
    paid, held = np.zeros(rows + 1), np.zeros(rows + 1)
    for row in range(rows):
        held[row + 1] = held[row] + lengths[row]
    for number in range(len(parts)):
        for row in range(rows):
            part = parts[number] if is_spared[row] else 1.0
            paid[row + 1] = paid[row] + part * factors[of[row]] * lengths[row]
        scale[number] = 1.0 / _worst_ratio(paid, held, gap, rounds)
        total[number] = scale[number] * paid[rows]
    return scale, total


@compiled
def _worst_ratio(paid: Floats, held: Floats, gap: int, rounds: int) -> float:
    """Surely no less than (paid[b] − paid[a]) / (held[b] − held[a]) over all b ≥ a + ``gap``."""
    ratio = max(paid[-1] / held[-1], TINY)
    shortest = np.inf
    for end in range(gap, len(paid)):
        shortest = min(shortest, held[end] - held[end - gap])
    most = 0.0
    for number in range(rounds + 1):
        most, low, begin, first, last = 0.0, np.inf, 0, 0, gap
        for end in range(gap, len(paid)):
            excess = paid[end - gap] - ratio * held[end - gap]
            if excess < low:
                low, begin = excess, end - gap
            if paid[end] - ratio * held[end] - low > most:
                most, first, last = paid[end] - ratio * held[end] - low, begin, end
        if most <= SLACK:
            break
        if number < rounds:
            ratio = max(ratio, (paid[last] - paid[first]) / (held[last] - held[first]))
    # What the last round left is spread over at least ``gap`` rows of it.
    found: float = (ratio + most / shortest) * (1 + SLACK)
    return found
