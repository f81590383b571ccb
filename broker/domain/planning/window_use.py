"""How much of a bought window is wanted, usable, and paid for without use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.window import Segment, Window, instant_words
from broker.domain.market.offer import WindowBilling, WindowTerms
from broker.domain.market.window_grid import HOUR, usable_window


@dataclass(frozen=True, slots=True)
class WindowUse:
    """``wanted`` is the time of the work, ``bought`` is paid for, ``usable`` is ``bought`` minus teardown.

    ``unwanted_hours`` are bought but not wanted (hours per node); ``unwanted_usd`` is their cost in whole
    cents. ``billed`` is when the provider bills it.
    """

    wanted: Window
    bought: Window
    usable: Window
    unwanted_hours: float
    unwanted_usd: Decimal
    billed: WindowBilling = WindowBilling.AT_ORDER


def use_of(terms: WindowTerms, segments: Sequence[Segment], wanted: Window, cost_usd: Decimal) -> WindowUse:
    """How much of ``segments``, which cost ``cost_usd``, is ``wanted``. ValueError if nothing is usable."""
    bought = Window(min(s.start for s in segments), max(s.end for s in segments))
    usable = usable_window(bought, terms)
    if usable is None:
        span = f"{instant_words(bought.start)} to {instant_words(bought.end)}"
        raise ValueError(f"the window {span} is not longer than the provider's teardown")
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
        billed=WindowBilling.AT_ORDER if terms.is_prepaid else WindowBilling.FROM_START,
    )


def _shared(window: Window, other: Window) -> timedelta:
    both = window.intersection(other)
    return timedelta() if both is None else both.duration
