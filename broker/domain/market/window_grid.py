"""Snapping of a requested time outward to the windows that a provider sells. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise, takewhile

from broker.domain.basics.window import Window
from broker.domain.market.offer import WindowKind, WindowTerms

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
MOST_NAMED_LENGTHS = 6


@dataclass(frozen=True, slots=True)
class Snapped:
    """The shortest ``window`` on sale whose ``usable`` part contains the requested time ``wish``."""

    wish: Window
    window: Window
    usable: Window

    @property
    def unwanted_hours(self) -> float:
        """Hours that are paid for but were not requested, including the provider's teardown."""
        return self.window.hours - self.wish.hours


def usable_window(window: Window, terms: WindowTerms | None) -> Window | None:
    """``window`` without the provider's teardown at its end; None if nothing is left."""
    end = window.end - timedelta(seconds=terms.teardown_s if terms is not None else 0)
    return Window(window.start, end) if window.start < end else None


def snap_outward(wish: Window, terms: WindowTerms) -> Snapped | None:
    """The shortest window of ``terms`` whose usable part contains ``wish``; None if none is long enough.

    A listed window is one of the listed segments. Other windows start on the grid, at the last start that is
    not after the requested one; an earlier start would never be shorter. A window that begins when capacity
    appears may end earlier by its longest wait, so it is bought longer by that much. Free stock and lead time
    are not checked here.
    """
    if terms.kind is WindowKind.LISTED:
        windows = sorted((s.window for s in terms.segments), key=lambda w: (w.duration, w.start))
        return next((found for window in windows if (found := _snapped(wish, window, terms))), None)
    start = last_start(wish.start, terms)
    least = wish.end + timedelta(seconds=terms.teardown_s) + terms.longest_wait - start
    duration = least_duration(least, terms)
    return None if duration is None else _snapped(wish, Window(start, start + duration), terms)


def _snapped(wish: Window, window: Window, terms: WindowTerms) -> Snapped | None:
    usable = usable_window(window, terms)
    if usable is not None and terms.waits:
        sure_end = usable.end - terms.longest_wait
        usable = Window(usable.start, sure_end) if usable.start < sure_end else None
    if usable is None or wish.start < usable.start or usable.end < wish.end:
        return None
    return Snapped(wish, window, usable)


def last_start(instant: datetime, terms: WindowTerms) -> datetime:
    """The last start on the grid not after ``instant``. The grid begins anew at each day's anchor."""
    step = timedelta(hours=terms.step_hours)
    if not step:
        return instant
    midnight = instant.replace(hour=0, minute=0, second=0, microsecond=0)
    start = _start_of_day(instant, midnight, step, terms)
    if start < midnight:
        start = _start_of_day(midnight - timedelta(microseconds=1), midnight - DAY, step, terms)
    return start


def first_start(instant: datetime, terms: WindowTerms) -> datetime:
    """The first start on the grid not before ``instant``."""
    step = timedelta(hours=terms.step_hours)
    if not step:
        return instant
    midnight = instant.replace(hour=0, minute=0, second=0, microsecond=0)
    anchor = _anchor(midnight, terms)
    start = anchor - (anchor - instant) // step * step
    if start < midnight + DAY:
        return start
    anchor += DAY
    return anchor - (anchor - midnight - DAY) // step * step


def _start_of_day(limit: datetime, midnight: datetime, step: timedelta, terms: WindowTerms) -> datetime:
    anchor = _anchor(midnight, terms)
    return anchor + (limit - anchor) // step * step


def _anchor(midnight: datetime, terms: WindowTerms) -> datetime:
    at = terms.anchor_utc
    return midnight if at is None else midnight + timedelta(hours=at.hour, minutes=at.minute)


def least_duration(least: timedelta, terms: WindowTerms) -> timedelta | None:
    """The shortest duration on sale that is at least ``least``; None if all are shorter."""
    if terms.durations_hours is not None:
        menu = (timedelta(hours=hours) for hours in sorted(terms.durations_hours))
        return next((duration for duration in menu if duration >= least), None)
    step = timedelta(hours=terms.step_hours)
    return max(1, -(-least // step)) * step if step else least


def hours_words(hours: Sequence[float]) -> str:
    """Lengths on sale, such as ``24, 48 or 96 h``; of many in even steps the ends and the step."""
    parts: list[str] = []
    rest = tuple(hours)
    while rest:
        even = _even_part(rest)
        if len(even) > MOST_NAMED_LENGTHS:
            parts.append(f"{even[0]:g} to {even[-1]:g} in steps of {even[1] - even[0]:g}")
        else:
            even = rest[:1]
            parts.append(f"{even[0]:g}")
        rest = rest[len(even) :]
    *some, last = parts
    return f"{', '.join(some)} or {last} h" if some else f"{last} h"


def _even_part(hours: Sequence[float]) -> Sequence[float]:
    """The first of ``hours``, as long as the step between them stays."""
    steps = [later - earlier for earlier, later in pairwise(hours)]
    return hours[: 1 + sum(1 for _ in takewhile(lambda step: step == steps[0], steps))]
