"""Prices of a service's days under which no holding is charged more than it pays.

A commitment with a minimum term T pays its price p for at least T hours. Of that price ``off`` an hour is
charged where it begins and where it ends instead, T/2 × ``off`` at each: no stretch of T hours or more is
charged more than it pays, nor one that begins or ends with the whole time and is charged for that on its
first or last day. On a day it then stands throughout, at (p − off) an hour, or it is there in part: up to an
hour, from an hour on, or with a gap, as it cannot begin and end within a day. Where that costs as much as
the whole day, the whole day is as good; any ``part`` prices by the hour that charge none of the
other parts more than they pay may stand for them, others on other days. N units, W with a term, K classes
of hours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimizer.placement.day_case import Block, DayCase
from optimizer.placement.problem import Floats, Ints

QUIET_H = 10
QUIET_PART = 0.45
SPARED_H = 10.0
SURELY = 1 - 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class DayPrices:
    """USD an hour: of ``hourly`` units [N, K], ``off`` [W] the price of a term, and of a ``part`` [W, K] of a
    day. Prices of scarcity are not in them."""

    hourly: Floats
    off: Floats
    part: Floats

    def towards(self, other: DayPrices, share: float) -> DayPrices:
        """Between the two: valid where both are, as far as whole days are no part."""
        return DayPrices(
            self.hourly + share * (other.hourly - self.hourly),
            self.off + share * (other.off - self.off),
            self.part + share * (other.part - self.part),
        )


def first_prices(case: DayCase, by_hour: Floats) -> DayPrices:
    """Units by the hour as ``by_hour`` [N, H] says; a term let go over ten hours pays what that saves."""
    term_h, usd = case.menu.term_h[case.termed], case.menu.usd[case.termed]
    off = usd * SPARED_H / (term_h + SPARED_H)
    _, first = np.unique(case.classes.of, return_index=True)
    hourly = np.where(case.hourly[:, None], by_hour[:, first], case.share.flat())
    return DayPrices(hourly, off, shaped_parts(case, off))


def shaped_parts(case: DayCase, off: Floats) -> Floats:
    """The highest part prices [W, K] that are lower in the quiet hours of a usual day."""
    usd = case.menu.usd[case.termed]
    return tightened(
        case, off, np.repeat(_shape(case)[None, :], len(usd), axis=0) * usd[:, None], (case.usual,)
    )


def _shape(case: DayCase) -> Floats:
    """Low in the quietest hours in a row."""
    of = case.usual.of
    needs, shape = case.needs[of], np.ones(len(case.needs))
    if len(needs) > QUIET_H:
        total = np.concatenate(([0], np.cumsum(needs)))
        at = int(np.argmin(total[QUIET_H:] - total[:-QUIET_H]))
        shape[of[at : at + QUIET_H]] = QUIET_PART
    return shape


def tried_parts(case: DayCase, part: Floats, block: Block) -> tuple[Floats, ...]:
    """Part prices [W, K] of which a day may have those that prove most: the given ones were found for usual
    days, so where the whole time begins or ends flatter ones, too."""
    if not (block.first or block.last):
        return (part,)
    flat = np.repeat(case.menu.usd[case.termed][:, None], part.shape[1], axis=1)
    return part, np.sqrt(part * flat), flat


def tightened(case: DayCase, off: Floats, part: Floats, blocks: tuple[Block, ...]) -> Floats:
    """Part prices [W, K] times the most that leaves them valid on all of some days."""
    most = np.full(len(off), np.inf)
    for block in blocks:
        most = np.minimum(most, _most(case, off, part, block))
    found: Floats = part * np.where(np.isfinite(most), most, 1.0)[:, None] * SURELY
    return found


def _most(case: DayCase, off: Floats, part: Floats, block: Block) -> Floats:
    """Factors [W]: the least of what a part of a day pays over what it is charged."""
    paid = np.concatenate(([0.0], np.cumsum(block.lengths)))
    zero = np.zeros((len(off), 1))
    charged = np.concatenate((zero, np.cumsum(part[:, block.of] * block.lengths, axis=1)), axis=1)
    usd = case.menu.usd[case.termed] - off
    event_usd = off * case.menu.term_h[case.termed] / 2
    begin, end, events = _absences(block)
    away_h = paid[end] - paid[begin]
    there_h = paid[-1] - away_h
    pays = usd[:, None] * there_h + event_usd[:, None] * events
    whole = usd * paid[-1] + event_usd * (block.first + block.last)
    charges = charged[:, -1:] - (charged[:, end] - charged[:, begin])
    # Prices of scarcity are paid beside these, for the hours that it is there.
    scarce = case.menu.surcharge_usd[case.termed][:, None] * away_h
    less = (pays < (whole[:, None] + scarce) * (1 - 1e-12)) & (charges > 1e-12)
    ratio = np.divide(pays, charges, out=np.full(pays.shape, np.inf), where=less)
    found: Floats = ratio.min(axis=1, initial=np.inf)
    return found


def _absences(block: Block) -> tuple[Ints, Ints, Ints]:
    """First and last hour without a unit that is there for part of a day, and how often it begins or ends."""
    hours = len(block.of)
    begin, end = np.triu_indices(hours + 1, 1)
    some = (begin > 0) | (end < hours)
    begin, end = begin[some], end[some]
    return begin, end, (begin > 0) * (1 + block.first) + (end < hours) * (1 + block.last)
