"""Prices by the hour that no holding pays more than, one for each unit and class of hours.

What a unit costs over a holding is shared out among the hours in which it is ready; any sharing under
which no holding is charged more than it pays gives a valid bound. N units, K classes of hours, H hours
from the first that is due, D kinds of day.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from optimizer.placement.fleet_menu import EPSILON, Menu
from optimizer.placement.problem import Bools, Floats, Ints
from optimizer.placement.sharing_steps import DAY_H, shared, stretched

FIRST, USUAL, SPARED = range(3)
SPARED_PARTS = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MAX_ROUNDS = 8


@dataclass(frozen=True, slots=True, eq=False)
class HourClasses:
    """``of`` [H]: the class of each hour; ``lengths`` [H] that it is held; ``hours`` [K] of each class.

    ``day`` [H]: in ``FIRST`` hours no start is charged, since a unit may be held since before them; on
    ``SPARED`` days a unit with a term is charged less, so that it may be released over one quiet time
    for each term. ``starts``: how often demand rises from low to high.
    """

    of: Ints
    lengths: Floats
    hours: Floats
    day: Ints
    starts: int

    def cycle(self) -> Ints | None:
        """The class of each hour of a day that repeats; None when days differ."""
        day = self.of[:DAY_H]
        same = len(day) == DAY_H and bool((self.of == np.resize(day, len(self.of))).all())
        return day if same else None

    def spread(self) -> Floats:
        """Hours [D, K] of each class on each kind of day."""
        count = len(self.hours)
        each = [np.bincount(self.of, self.lengths * (self.day == d), minlength=count) for d in range(3)]
        return np.stack(each)


def hour_classes(demand: Floats, lengths: Floats, needs: Ints, shortest_term_h: float) -> HourClasses:
    """Hours of the same need [H] are one class; days part where demand is lowest."""
    classes, of = np.unique(needs, return_inverse=True)
    hours = np.bincount(of, weights=lengths, minlength=len(classes)).astype(np.float64)
    first = int(np.argmax(demand[:DAY_H]))
    settled = first + int(np.argmin(demand[first : first + DAY_H]))
    high = demand > demand.mean()
    starts = int(np.count_nonzero(high[1:] & ~high[:-1]))
    rows = np.arange(len(demand))
    number = (rows - settled) // DAY_H + 1
    every = int(shortest_term_h // DAY_H) + 1
    day = np.where(rows < settled, FIRST, np.where((number + 1) % every == 0, SPARED, USUAL))
    return HourClasses(of, lengths, hours, day, starts)


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """Which units share what: ``total_usd`` [N] of a whole time for those with a term (``bound``), and what
    hourly ones pay an hour (``usd``) and for a start."""

    bound: Bools
    total_usd: Floats
    usd: Floats
    start_usd: Floats
    term_h: Floats
    classes: HourClasses

    def take(self, rows: Ints) -> Sharing:
        """The same of some units."""
        kept = {
            name: getattr(self, name)[rows] for name in ("bound", "total_usd", "usd", "start_usd", "term_h")
        }
        return replace(self, **kept)

    def flat(self) -> Floats:
        """Every hour alike [N, K]."""
        each = np.where(self.bound, self.total_usd / self.classes.hours.sum(), self.usd)
        return np.repeat(each[:, None], len(self.classes.hours), axis=1)

    def near(self, prices: Floats) -> Floats:
        """The prices [N, K] moved to where a unit held throughout, or over each peak, is charged its cost."""
        return shared(np.ascontiguousarray(prices), self.terms(), self.classes.hours, self.day())

    def terms(self) -> Floats:
        """What each unit pays [N, 5], as ``sharing_steps`` takes it."""
        starts = self.start_usd * self.classes.starts
        return np.stack(
            (self.bound.astype(np.float64), self.total_usd, self.usd, starts, self.term_h), axis=1
        )

    def day(self) -> Ints:
        """The class of each hour of a day that repeats; empty when days differ."""
        day = self.classes.cycle()
        return np.zeros(0, dtype=np.int64) if day is None else day


def sharing(menu: Menu, classes: HourClasses) -> Sharing:
    """How the units of a menu share their costs, prices of scarcity not counted."""
    total = menu.whole_usd - menu.surcharge_usd * classes.lengths.sum()
    return Sharing(menu.term_h > 0, total, menu.usd, menu.usd * menu.lead_h, menu.term_h, classes)


def valid_prices(menu: Menu, share: Sharing, prices: Floats, spared: tuple[float, ...]) -> Floats:
    """Prices [D, N, K] near the given ones under which surely no holding is charged more than it pays.

    ``spared``: parts of the price that units with a term may be charged on spared days.
    """
    classes, hours = share.classes, float(share.classes.lengths.sum())
    valid = np.repeat(prices[None, :, :], 3, axis=0)
    owed = share.bound & (menu.term_h > hours - EPSILON)
    excess = np.minimum(1.0, _ratio(share.total_usd, prices @ classes.hours))
    valid[:, owed] *= excess[owed, None]
    part = np.flatnonzero(share.bound & ~owed)
    for row in part:
        # A unit with a term pays its price for every hour; what it pays up front is left out.
        factors = prices[row] / menu.usd[row] if menu.usd[row] > 0 else np.zeros(len(classes.hours))
        valid[:, row] = menu.usd[row] * _term_factors(factors, menu.term_h[row], spared, classes)
    free = np.flatnonzero(~share.bound)
    if len(free):
        valid[:, free] = start_prices(menu, free, prices[free], classes)
    return valid


def _ratio(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.ones(len(bottom)), where=bottom > 1e-12)


def _term_factors(factors: Floats, term_h: float, spared: tuple[float, ...], classes: HourClasses) -> Floats:
    """Factors [D, K] with the most on spared days such that no stretch sums to more than what it pays.

    A stretch of the term or longer pays its hours; a shorter one pays the term, and is part of a longer.
    """
    # Counted in rows, of which one may be longer than an hour.
    rows = max(1, min(int(term_h) - int(np.ceil(classes.lengths.max())), len(classes.of)))
    parts = np.array(spared)
    scale, total = stretched(
        factors, classes.of, classes.lengths, classes.day == SPARED, parts, rows, MAX_ROUNDS
    )
    best = int(np.argmax(total))
    found = np.repeat(factors[None, :] * scale[best], 3, axis=0)
    found[SPARED] *= parts[best]
    return found


def start_prices(menu: Menu, rows: Ints, prices: Floats, classes: HourClasses) -> Floats:
    """Prices [D, N, K] of hourly units, nearer to flat until no stretch is charged more than a start.

    What is held since the first hour has paid for no start: it is charged so much less in the first hours.
    """
    usd, start_usd = menu.usd[rows], menu.usd[rows] * menu.lead_h[rows]
    usual = prices - usd[:, None]
    first = np.minimum(usual, 0.0)
    begun = classes.day == FIRST
    each = np.where(begun, first[:, classes.of], usual[:, classes.of]) * classes.lengths
    total = np.concatenate((np.zeros((len(rows), 1)), np.cumsum(each, axis=1)), axis=1)
    most = (total - np.minimum.accumulate(total, axis=1)).max(axis=1)
    over = np.maximum(total.max(axis=1), 0.0)
    hours = np.bincount(classes.of[begun], classes.lengths[begun], minlength=len(classes.hours))
    least_usd = (usd[:, None] + first) @ hours
    scale = np.minimum(1.0, _ratio(start_usd, most))
    scale = np.minimum(scale, np.where(over > least_usd, _ratio(least_usd, over), 1.0)) * (1 - 1e-9)
    found = usd[:, None] + np.stack((first, usual, usual)) * scale[None, :, None]
    paid = found[FIRST] @ hours
    found[FIRST] *= np.where(paid > 0, 1 - over * scale / np.maximum(paid, 1e-12), 1.0)[:, None] * (1 - 1e-9)
    return found
