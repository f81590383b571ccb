"""Curves over time: prices, bands and running sums, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from markupsafe import Markup, escape

from api.pages.parts.charts import WIDE, Plot, Scale, money_axis, opened, scale_over
from api.pages.parts.timelines import day_axis, x_of
from api.pages.parts.words import moment

WORD_HEIGHT = 14
MOST_NOTES = 400
"""Places of a chart that answer the pointer; more would weigh more than they tell."""


@dataclass(frozen=True, slots=True)
class Curve:
    """USD over time. With ``stepped`` each value holds until the next; ``look`` is a CSS class of
    ``.line``."""

    name: str
    points: tuple[tuple[datetime, float], ...]
    look: str = ""
    stepped: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """The band of a curve: low and high USD over time."""

    name: str
    points: tuple[tuple[datetime, float, float], ...]
    stepped: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """A level that matters, such as a budget."""

    name: str
    usd: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """What a chart of curves shows. With ``from_zero`` the axis begins at zero."""

    start: datetime
    end: datetime
    curves: tuple[Curve, ...]
    bands: tuple[Band, ...] = ()
    limits: tuple[Limit, ...] = ()
    now: datetime | None = None
    from_zero: bool = False
    decimals: int = field(default=2)

    def levels(self) -> list[float]:
        """Every value that the axis must contain."""
        found = [usd for curve in self.curves for _, usd in curve.points]
        found += [end for band in self.bands for point in band.points for end in point[1:]]
        found += [limit.usd for limit in self.limits]
        return [0.0, *found] if self.from_zero or not found else found


def curves(drawing: Drawing, title: str, width: int = WIDE, height: int = 280) -> Markup:
    """Bands, then curves, then limits, over days. The points of a curve have tooltips."""
    plot = Plot(58, 26, width - 58 - 14, height - 26 - 12)
    levels = drawing.levels()
    scale = scale_over(min(levels), max(levels))
    parts = [opened(width, height, title), *money_axis(plot, scale)]
    parts += day_axis(plot, drawing.start, drawing.end)
    parts += [_band(plot, scale, drawing, band) for band in drawing.bands]
    parts += [_curve(plot, scale, drawing, curve) for curve in drawing.curves]
    parts += [_limit(plot, scale, limit) for limit in drawing.limits]
    if drawing.now is not None and drawing.start < drawing.now < drawing.end:
        x = x_of(plot, drawing.now, drawing.start, drawing.end)
        parts.append(f'<line class="now" x1="{x:.1f}" x2="{x:.1f}" y1="{plot.top:g}" y2="{plot.bottom:g}"/>')
    for curve in drawing.curves[:1]:
        parts += _notes(plot, drawing, curve)
    parts.append("</svg>")
    return Markup("".join(parts))  # noqa: S704  every text above went through escape


def _band(plot: Plot, scale: Scale, drawing: Drawing, band: Band) -> str:
    low = _path(plot, scale, drawing, [(at, least) for at, least, _ in band.points], band.stepped)
    high = _path(plot, scale, drawing, [(at, most) for at, _, most in band.points], band.stepped)
    if not low:
        return ""
    outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*low, *reversed(high)))
    return f'<polygon class="band" points="{outline}"><title>{escape(band.name)}</title></polygon>'


def _curve(plot: Plot, scale: Scale, drawing: Drawing, curve: Curve) -> str:
    path = _path(plot, scale, drawing, list(curve.points), curve.stepped)
    if not path:
        return ""
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
    look = f"line {curve.look}".strip()
    return f'<polyline class="{look}" points="{points}"><title>{escape(curve.name)}</title></polyline>'


def _path(
    plot: Plot, scale: Scale, drawing: Drawing, points: Sequence[tuple[datetime, float]], stepped: bool
) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for at, usd in points:
        x, y = x_of(plot, at, drawing.start, drawing.end), scale.y(plot, usd)
        if stepped and found:
            found.append((x, found[-1][1]))
        found.append((x, y))
    if stepped and found:
        found.append((x_of(plot, drawing.now or drawing.end, drawing.start, drawing.end), found[-1][1]))
    return found


def _limit(plot: Plot, scale: Scale, limit: Limit) -> str:
    y, right = scale.y(plot, limit.usd), plot.left + plot.width
    word_y = y - 5 if y - plot.top > WORD_HEIGHT else y + WORD_HEIGHT
    return (
        f'<line class="limit" x1="{plot.left:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="limit-word" x="{plot.left + 6:g}" y="{word_y:.1f}">{escape(limit.name)}</text>'
    )


def _notes(plot: Plot, drawing: Drawing, curve: Curve) -> list[str]:
    """Tooltips with the time and value of each point."""
    every = max(1, -(-len(curve.points) // MOST_NOTES))
    chosen = curve.points[::every]
    parts = []
    for i, (at, usd) in enumerate(chosen):
        x = x_of(plot, at, drawing.start, drawing.end)
        after = chosen[i + 1][0] if i + 1 < len(chosen) else drawing.end
        wide = max(1.0, x_of(plot, after, drawing.start, drawing.end) - x)
        note = escape(f"{moment(at)} · {curve.name}: ${usd:,.{drawing.decimals}f}")
        parts.append(
            f'<rect class="hit" x="{x:.1f}" y="{plot.top:g}" width="{wide:.1f}" '
            f'height="{plot.height:g}"><title>{note}</title></rect>'
        )
    return parts
