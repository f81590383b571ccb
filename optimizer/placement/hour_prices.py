"""Prices by the hour that no holding pays more than, one for each unit and class of hours.

What a unit costs over a holding is shared out among the hours in which it is ready; any sharing under
which no holding is charged more than it pays gives a valid bound. N units, K classes of hours, H hours
from the first that is due.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from optimizer.placement.fleet_menu import EPSILON, Menu
from optimizer.placement.problem import Bools, Floats, Ints

DAY_H = 24
MAX_ROUNDS = 12


@dataclass(frozen=True, slots=True, eq=False)
class HourClasses:
    """``of`` [H]: the class of each hour; ``lengths`` [H] that it is held; ``hours`` [K] of each class.

    ``settled``: from this hour on, all that is held since the first has seen a quiet hour; before it no
    start is charged. ``starts``: how often demand rises from low to high.
    """

    of: Ints
    lengths: Floats
    hours: Floats
    settled: int
    starts: int


def hour_classes(demand: Floats, lengths: Floats, needs: Ints) -> HourClasses:
    """Hours of the same need [H] are one class."""
    classes, of = np.unique(needs, return_inverse=True)
    hours = np.bincount(of, weights=lengths, minlength=len(classes))
    first = int(np.argmax(demand[:DAY_H]))
    settled = first + int(np.argmin(demand[first : first + DAY_H]))
    high = demand > demand.mean()
    starts = int(np.count_nonzero(high[1:] & ~high[:-1]))
    return HourClasses(of, lengths, hours, settled, starts)


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """Which units share what: ``total_usd`` [N] of a whole time for those with a term (``bound``), and what
    hourly ones (``~bound``) pay an hour and for a start."""

    bound: Bools
    total_usd: Floats
    term_h: Floats
    usd: Floats
    start_usd: Floats
    classes: HourClasses

    def take(self, rows: Ints) -> Sharing:
        """The same of some units."""
        kept = {n: getattr(self, n)[rows] for n in ("bound", "total_usd", "term_h", "usd", "start_usd")}
        return replace(self, **kept)

    def flat(self) -> Floats:
        """Every hour alike [N, K]."""
        each = np.where(self.bound, self.total_usd / self.classes.hours.sum(), self.usd)
        return np.repeat(each[:, None], len(self.classes.hours), axis=1)

    def near(self, prices: Floats) -> Floats:
        """The prices [N, K] moved to where, in a repeating day, no holding is charged too much."""
        hours = self.classes.hours
        shared = np.maximum(prices, 0.0)
        charged = shared @ hours
        scale = np.divide(self.total_usd, charged, out=np.ones(len(charged)), where=charged > 0)
        shared *= scale[:, None]
        part = np.flatnonzero(self.bound & (self.term_h < hours.sum() - EPSILON))
        if len(part):
            ratio = _term_ratio(shared[part] / self.usd[part, None], self.term_h[part], self.classes)
            shared[part] /= ratio[:, None]
        over = prices - self.usd[:, None]
        over -= (over @ hours / hours.sum())[:, None]
        over = np.maximum(over, -self.usd[:, None])
        charged = np.maximum(over, 0.0) @ hours
        limit = self.start_usd * self.classes.starts
        scale = np.minimum(1.0, np.divide(limit, charged, out=np.ones(len(charged)), where=charged > 0))
        return np.where(self.bound[:, None], shared, self.usd[:, None] + over * scale[:, None])


def sharing(menu: Menu, classes: HourClasses) -> Sharing:
    """How the units of a menu share their costs, prices of scarcity not counted."""
    bound = menu.term_h > 0
    total = menu.whole_usd - menu.surcharge_usd * classes.lengths.sum()
    return Sharing(bound, total, menu.term_h, menu.usd, menu.usd * menu.lead_h, classes)


def valid_prices(menu: Menu, share: Sharing, prices: Floats) -> tuple[Floats, Floats]:
    """Prices [N, K] that surely hold: before all is settled, and after."""
    classes, hours = share.classes, share.classes.lengths.sum()
    owed = share.bound & (menu.term_h > hours - EPSILON)
    early, late = prices.copy(), prices.copy()
    part = np.flatnonzero(share.bound & ~owed)
    if len(part):
        ratio = _term_ratio(prices[part] / menu.usd[part, None], menu.term_h[part], classes)
        early[part] = late[part] = prices[part] / ratio[:, None]
    whole = prices @ classes.hours
    over = owed & (whole > share.total_usd)
    early[over] = late[over] = (prices * np.divide(share.total_usd, whole, out=np.ones(len(whole)), where=whole > 0)[:, None])[over]
    free = np.flatnonzero(~share.bound)
    if len(free):
        early[free], late[free] = _start_prices(menu, free, prices[free], classes)
    return early, late


def _term_ratio(factors: Floats, term_h: Floats, classes: HourClasses) -> Floats:
    """Largest mean factor [N] over stretches of the term or longer."""
    zero = np.zeros((len(factors), 1))
    paid = np.concatenate((zero, np.cumsum(factors[:, classes.of] * classes.lengths, axis=1)), axis=1)
    held = np.concatenate(([0.0], np.cumsum(classes.lengths)))
    ratio = np.maximum(paid[:, -1] / held[-1], 1e-12)
    for term in np.unique(term_h):
        rows = np.flatnonzero(term_h == term)
        gap = max(1, min(int(term) - 1, len(held) - 1))
        for _ in range(MAX_ROUNDS):
            excess = paid[rows] - ratio[rows, None] * held
            gain = excess[:, gap:] - np.minimum.accumulate(excess[:, :-gap], axis=1)
            end = gain.argmax(axis=1)
            wrong = np.flatnonzero(gain[np.arange(len(rows)), end] > 1e-9)
            if not len(wrong):
                break
            for row in wrong:
                stop = int(end[row])
                begin = int(np.argmin(excess[row, : stop + 1]))
                charged = paid[rows[row], stop + gap] - paid[rows[row], begin]
                ratio[rows[row]] = charged / (held[stop + gap] - held[begin])
    return ratio * (1 + 1e-9)


def _start_prices(menu: Menu, rows: Ints, prices: Floats, classes: HourClasses) -> tuple[Floats, Floats]:
    """Prices of hourly units scaled towards flat until no stretch is charged more than a start over it."""
    usd, lead = menu.usd[rows], menu.lead_h[rows]
    late = prices - usd[:, None]
    early = np.minimum(late, 0.0)
    settled = np.arange(len(classes.of)) >= classes.settled
    each = np.where(settled, late[:, classes.of], early[:, classes.of]) * classes.lengths
    total = np.concatenate((np.zeros((len(rows), 1)), np.cumsum(each, axis=1)), axis=1)
    most = (total - np.minimum.accumulate(total, axis=1)).max(axis=1)
    scale = np.minimum(1.0, np.divide(usd * lead, most, out=np.ones(len(rows)), where=most > 1e-12))
    # What is held since the first hour has paid for no start.
    scale[total.max(axis=1) > 1e-9] = 0.0
    scale = (scale * (1 - 1e-9))[:, None]
    return usd[:, None] + early * scale, usd[:, None] + late * scale
