"""What of a bought window is wanted, what can be used, and what is paid for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.window import Segment, Window
from broker.domain.market.offer import WindowTerms
from broker.domain.market.window_grid import HOUR, usable_window


@dataclass(frozen=True, slots=True)
class WindowUse:
    """``wanted`` is the time of the work, ``bought`` what is paid for, ``usable`` that less the teardown.

    ``unwanted_hours``: bought and not wanted, of each node; ``unwanted_usd``: their money, in cents.
    """

    wanted: Window
    bought: Window
    usable: Window
    unwanted_hours: float
    unwanted_usd: Decimal


def use_of(terms: WindowTerms, segments: Sequence[Segment], wanted: Window, cost_usd: Decimal) -> WindowUse:
    """How ``segments``, which cost ``cost_usd``, serve ``wanted``. ValueError where nothing is usable."""
    bought = Window(min(s.start for s in segments), max(s.end for s in segments))
    usable = usable_window(bought, terms)
    if usable is None:
        raise ValueError(f"nothing is usable between {bought.start.isoformat()} and {bought.end.isoformat()}")
    idle = [s.window.duration - _shared(s.window, wanted) for s in segments]
    held = sum((s.nodes * s.window.duration for s in segments), timedelta())
    for_nothing = sum((s.nodes * part for s, part in zip(segments, idle, strict=True)), timedelta())
    share = Decimal(for_nothing // timedelta(microseconds=1)) / Decimal(held // timedelta(microseconds=1))
    return WindowUse(
        wanted=wanted,
        bought=bought,
        usable=usable,
        unwanted_hours=sum(idle, timedelta()) / HOUR,
        unwanted_usd=to_cents(cost_usd * share) if share else ZERO,
    )


def _shared(window: Window, other: Window) -> timedelta:
    both = window.intersection(other)
    return timedelta() if both is None else both.duration
