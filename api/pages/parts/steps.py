"""A bridge of steps from one sum to another, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from markupsafe import Markup, escape

from api.pages.parts.charts import WIDE, WIDEST_BAR, Plot, money_axis, opened, scale_over, short_usd
from broker.domain.basics.money import usd_words


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
