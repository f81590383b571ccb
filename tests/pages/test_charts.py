"""Charts are well-formed SVG, escape what users wrote, and draw what the numbers say."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from defusedxml import ElementTree
from hypothesis import given
from hypothesis import strategies as st

from api.pages.parts.charts import Series, nice_step, short_usd, stacked_bars
from api.pages.parts.timelines import Bar, TimelineRow, timeline

T0 = datetime(2026, 11, 23, tzinfo=UTC)
EVIL = '<script>alert("x")</script>&'


@given(st.lists(st.lists(st.floats(0, 1e7), min_size=5, max_size=5), min_size=1, max_size=4))
def test_stacks_fill_the_plot_in_proportion(values: list[list[float]]) -> None:
    series = [Series(f"g{i}", tuple(row)) for i, row in enumerate(values)]
    svg = str(stacked_bars(list("abcde"), series, "t"))
    heights = [float(h) for h in re.findall(r'<rect class="s\d"[^>]* height="([\d.]+)"', svg)]
    drawn = sum(v > 0 for row in values for v in row)
    assert len(heights) <= drawn
    assert sum(heights) <= 5 * (300 - 12 - 34) + 0.1
    ElementTree.fromstring(svg)


def test_user_text_is_escaped() -> None:
    svg = str(stacked_bars([EVIL], [Series(EVIL, (1.0,))], EVIL))
    svg += str(
        timeline(
            [TimelineRow(EVIL, EVIL, 0, (Bar(T0, T0 + timedelta(days=1), 1.0, EVIL),))],
            T0,
            T0 + timedelta(days=2),
            EVIL,
        )
    )
    assert "<script>" not in svg
    assert "&lt;script&gt;" in svg


def test_a_bar_stands_where_its_window_is() -> None:
    lane = TimelineRow("run", "", 0, (Bar(T0 + timedelta(days=1), T0 + timedelta(days=2), 0.5, "half"),))
    root = ElementTree.fromstring(str(timeline([lane], T0, T0 + timedelta(days=4), "t", width=638)))
    bar = next(e for e in root.iter() if e.get("class") == "s0").attrib
    assert float(bar["x"]) == pytest.approx(230 + 100, abs=0.1)
    assert float(bar["width"]) == pytest.approx(100, abs=0.1)
    assert float(bar["height"]) == pytest.approx(12)


def test_steps_are_round() -> None:
    assert [nice_step(v) for v in (0, 3.9, 37, 412, 980_000)] == [1, 1, 10, 200, 250_000]
    assert [short_usd(v) for v in (0, 950, 1200, 2_500_000)] == ["$0", "$950", "$1.2k", "$2.5M"]
