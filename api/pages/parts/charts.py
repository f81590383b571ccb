"""Charts as SVG text: pure functions from numbers to markup, styled by classes of ``style.css``.

Series carry a class ``s0`` … ``s7`` (colour-blind-safe in light and dark); each mark has a
``<title>`` for pointer and screen reader, and every page puts the same numbers in a table beside.
Each chart is drawn twice, for a wide and a narrow window, so that its text stays legible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from markupsafe import Markup, escape

from api.pages.parts.colours import Look
from broker.domain.basics.money import usd_words

SERIES_CLASSES = 8
WIDE, NARROW = 1080, 340
WIDEST_BAR = 64.0
ROUNDED_UP = 0.9995
"""What three digits make a whole of."""
FLATTEST = 0.05
"""Share of the highest value that a scale spans at least, so that its labels differ."""
REACH = 2.5
"""Times the highest bar that a line may be above nought."""
TEXT_WIDTH = 6.2
"""Mean width of a character of 11-pixel text."""


@dataclass(frozen=True, slots=True)
class Series:
    """One stacked series: a value for each period. ``look`` None: by its place in the stack."""

    name: str
    values: tuple[float, ...]
    look: Look | None = None


@dataclass(frozen=True, slots=True)
class Charts:
    """One chart for each width; the style sheet shows the one that fits."""

    wide: Markup
    narrow: Markup


@dataclass(frozen=True, slots=True)
class Plot:
    """The part of a drawing that the marks fill, in pixels."""

    left: float
    top: float
    width: float
    height: float

    @property
    def bottom(self) -> float:
        """The y coordinate of zero."""
        return self.top + self.height


def both_widths(draw: Callable[[int], Markup]) -> Charts:
    """The drawing of ``draw`` for each of the two widths in pixels."""
    return Charts(draw(WIDE), draw(NARROW))


def nice_step(largest: float, ticks: int = 4) -> float:
    """A round step (1, 2, 2.5 or 5 times a power of ten) that covers ``largest`` in about ``ticks``."""
    if largest <= 0:
        return 1.0
    raw = largest / ticks
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)


def short_usd(usd: float) -> str:
    """``$1.2k``-like labels for axes."""
    sign, size = ("-" if usd < 0 else ""), abs(usd)
    for limit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if size >= limit * ROUNDED_UP:
            return f"{sign}${size / limit:.3g}{suffix}"
    return f"{sign}${size:.3g}"


@dataclass(frozen=True, slots=True)
class Scale:
    """A money axis from ``floor`` to ``ceiling`` in round steps, USD."""

    floor: float
    ceiling: float
    step: float

    def y(self, plot: Plot, usd: float) -> float:
        """The y coordinate of ``usd``."""
        return plot.bottom - plot.height * (usd - self.floor) / (self.ceiling - self.floor)


def scale_over(least: float, most: float) -> Scale:
    """A scale with round ends that contains both values, and begins at zero where ``least`` is 0.

    Values that are equal to three digits are drawn as a flat line.
    """
    spread = max(most - least, FLATTEST * abs(most)) if most > least else abs(most) or 1.0
    step = nice_step(spread)
    floor = math.floor(least / step + 1e-9) * step
    return Scale(floor, max(floor + step, math.ceil(most / step - 1e-9) * step), step)


@dataclass(frozen=True, slots=True)
class Level:
    """A line over the bars from index ``first`` to before ``last``, in USD."""

    name: str
    usd: float
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Overlay:
    """What is drawn over bars. ``intervals`` has the low and high end for each bar: a band over an area,
    whiskers on bars. ``today`` is the index of the current period."""

    intervals: Sequence[tuple[float, float] | None] = ()
    level: Level | None = None
    today: int | None = None


NOTHING_OVER = Overlay()


def is_in_reach(level: float, highest: float) -> bool:
    """Whether bars up to ``highest`` are still tall enough to read under a line at ``level``."""
    return 0 < level <= REACH * highest


def stacked_bars(
    labels: Sequence[str],
    series: Sequence[Series],
    title: str,
    width: int = WIDE,
    height: int = 300,
    ticks: Sequence[str] | None = None,
    *,
    touching: bool = False,
    over: Overlay = NOTHING_OVER,
) -> Markup:
    """Stacked bars, one for each label, lowest series first. Values are in USD; refunds hang below zero.

    ``ticks`` are shorter labels for the axis; as many are written as fit. With ``touching`` the bars have no
    gaps and look like a stepped area. A level far above all bars is left out.
    """
    plot = Plot(52, 16, width - 52 - 18, height - 16 - 34)
    above, below = (
        [sum(sign * max(0.0, sign * s.values[i]) for s in series) for i in range(len(labels))]
        for sign in (1, -1)
    )
    known = [ends for ends in over.intervals if ends is not None]
    highest = max((*above, *(high for _, high in known)), default=0.0)
    lowest = min((0.0, *below, *(low for low, _ in known)))
    level = over.level if over.level is not None and is_in_reach(over.level.usd, highest) else None
    scale = scale_over(lowest, max(highest, 0.0 if level is None else level.usd))
    parts = [opened(width, height, title, "area" if touching else ""), *money_axis(plot, scale)]
    slot = plot.width / max(1, len(labels))
    bar = slot if touching else min(slot * 0.8, WIDEST_BAR)
    for i, text in enumerate(labels):
        parts.extend(_stack(plot, slot, bar, i, text, series, scale))
    if touching:
        parts.extend(_bands(plot, slot, over.intervals, scale))
    else:
        ends_of = ((i, ends) for i, ends in enumerate(over.intervals) if ends is not None)
        parts.extend(_whisker(plot, slot, i, labels[i], ends, scale) for i, ends in ends_of)
    parts.extend(_level(plot, slot, level, scale) if level is not None else ())
    parts.extend(_today(plot, slot, over.today) if over.today is not None else ())
    parts.extend(_label_axis(plot, slot, ticks or labels))
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  every text above went through escape


def money_axis(plot: Plot, scale: Scale) -> list[str]:
    """Grid lines with their labels."""
    parts = []
    for k in range(round((scale.ceiling - scale.floor) / scale.step) + 1):
        usd = scale.floor + k * scale.step
        y = scale.y(plot, usd)
        parts.append(
            f'<line class="grid" x1="{plot.left:g}" x2="{plot.left + plot.width:g}" '
            f'y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick end" x="{plot.left - 6:g}" y="{y + 4:.1f}">{short_usd(usd)}</text>'
        )
    return parts


def _stack(
    plot: Plot, slot: float, bar: float, i: int, label: str, series: Sequence[Series], scale: Scale
) -> list[str]:
    """The bar of one label: what is spent grows up from zero, what comes back grows down from it."""
    x = plot.left + slot * i + (slot - bar) / 2
    parts, top_usd, bottom_usd = [], 0.0, 0.0
    for number, one in enumerate(series):
        usd = one.values[i]
        if usd > 0:
            ends, top_usd = (top_usd, top_usd + usd), top_usd + usd
        elif usd < 0:
            ends, bottom_usd = (bottom_usd + usd, bottom_usd), bottom_usd + usd
        else:
            continue
        low, high = (scale.y(plot, end) for end in ends)
        note = escape(f"{label} · {one.name}: {'-' if usd < 0 else ''}${abs(usd):,.2f}")
        look = one.look or Look(number % SERIES_CLASSES)
        at = f'x="{x:.2f}" y="{high:.2f}" width="{bar:.2f}" height="{low - high:.2f}"'
        parts.append(f'<rect class="s{look.colour}" {at}><title>{note}</title></rect>')
        if look.hatch:
            parts.append(f'<rect class="hatch" fill="url(#hatch-{look.hatch})" {at}/>')
    return parts


def _bands(
    plot: Plot, slot: float, intervals: Sequence[tuple[float, float] | None], scale: Scale
) -> list[str]:
    """A stepped band over each unbroken run of labels that have an interval."""
    parts, low, high = [], [], []
    for i, ends in enumerate([*intervals, None]):
        if ends is not None and ends[1] > ends[0]:
            left, right = plot.left + slot * i, plot.left + slot * (i + 1)
            low += [(x, scale.y(plot, ends[0])) for x in (left, right)]
            high += [(x, scale.y(plot, ends[1])) for x in (left, right)]
        elif low:
            outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*low, *reversed(high)))
            parts.append(f'<polygon class="over" points="{outline}"><title>P10 to P90</title></polygon>')
            low, high = [], []
    return parts


def _whisker(plot: Plot, slot: float, i: int, label: str, ends: tuple[float, float], scale: Scale) -> str:
    """A line from the low to the high end, with end marks where there is room."""
    x, foot = plot.left + slot * (i + 0.5), min(4.0, slot * 0.3)
    low, high = scale.y(plot, ends[0]), scale.y(plot, ends[1])
    note = escape(f"{label} · P10 to P90: ${ends[0]:,.2f} to ${ends[1]:,.2f}")
    return (
        f'<path class="whisker" d="M{x - foot:.1f} {high:.1f}h{2 * foot:.1f}M{x:.1f} {high:.1f}V{low:.1f}'
        f'M{x - foot:.1f} {low:.1f}h{2 * foot:.1f}"><title>{note}</title></path>'
    )


def _level(plot: Plot, slot: float, level: Level, scale: Scale) -> list[str]:
    """A dashed line. The legend names it, because words over bars would be hard to read."""
    y = scale.y(plot, level.usd)
    left, right = (plot.left + slot * at for at in (level.first, level.last))
    return [
        f'<line class="limit" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}">'
        f"<title>{escape(level.name)}</title></line>"
    ]


def _today(plot: Plot, slot: float, today: int) -> list[str]:
    x = plot.left + slot * today
    return [
        f'<line class="now" x1="{x:.1f}" x2="{x:.1f}" y1="{plot.top:g}" y2="{plot.bottom:g}"/>'
        f'<text class="tick mid" x="{max(x, plot.left + 14):.1f}" y="{plot.top - 3:g}">now</text>'
    ]


def _label_axis(plot: Plot, slot: float, ticks: Sequence[str]) -> list[str]:
    longest = max((len(text) for text in ticks), default=0) * TEXT_WIDTH + 14
    every = max(1, math.ceil(longest / slot))
    return [
        f'<text class="tick mid" x="{plot.left + slot * (i + 0.5):.1f}" y="{plot.bottom + 18:.1f}">'
        f"{escape(text)}</text>"
        for i, text in enumerate(ticks)
        if i % every == 0
    ]


def opened(width: int, height: float, title: str, look: str = "") -> str:
    """The opening tag of a drawing, with its name; ``look`` is a further CSS class."""
    return (
        f'<svg class="{f"chart {look}".strip()}" viewBox="0 0 {width} {height:g}" role="img" '
        f'aria-label="{escape(title)}" preserveAspectRatio="xMidYMid meet">'
    )


@dataclass(frozen=True, slots=True)
class Step:
    """A level, or a change from the last level, in USD."""

    name: str
    usd: float
    is_level: bool = False


def steps(parts: Sequence[Step], title: str, width: int = WIDE, height: int = 220) -> Markup:
    """Levels as bars from zero; each change begins where the bar before it ended."""
    plot = Plot(58, 18, width - 58 - 14, height - 18 - 26)
    stretches = _stretches(parts)
    ends = [end for stretch in stretches for end in stretch]
    scale = scale_over(min(0.0, *ends), max(0.0, *ends))
    slot = plot.width / len(parts)
    bar = min(slot * 0.7, 1.6 * WIDEST_BAR)
    drawn = [opened(width, height, title), *money_axis(plot, scale)]
    for i, (part, (start, end)) in enumerate(zip(parts, stretches, strict=True)):
        top, bottom = sorted((scale.y(plot, start), scale.y(plot, end)))
        x = plot.left + slot * i + (slot - bar) / 2
        look = "s0" if part.is_level else "s5" if part.usd > 0 else "s2"
        sign = "" if part.is_level or part.usd <= 0 else "+"
        note = escape(f"{part.name}: {sign}{usd_words(Decimal(str(part.usd)))}")
        middle = x + bar / 2
        drawn.append(
            f'<rect class="{look}" x="{x:.1f}" y="{top:.1f}" width="{bar:.1f}" '
            f'height="{max(1.0, bottom - top):.1f}"><title>{note}</title></rect>'
            f'<text class="tick mid" x="{middle:.1f}" y="{top - 4:.1f}">{sign}{short_usd(part.usd)}</text>'
            f'<text class="tick mid" x="{middle:.1f}" y="{plot.bottom + 17:.1f}">{escape(part.name)}</text>'
        )
    drawn.append("</svg>")
    return Markup("".join(drawn))  # noqa: S704  every text above went through escape


def _stretches(parts: Sequence[Step]) -> list[tuple[float, float]]:
    """The start and end of each bar."""
    found, level = [], 0.0
    for part in parts:
        start = 0.0 if part.is_level else level
        level = part.usd if part.is_level else level + part.usd
        found.append((start, level))
    return found
