"""The page of a simulation, and the price of confidence on the page of a plan."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest
from defusedxml import ElementTree

from api.pages.plans.chance_view import cost_histogram, late_words, price_chart
from broker.domain.planning.plan import ConfidencePrice
from broker.domain.planning.simulation import CostQuantiles, CostShare, Simulation
from tests.api.house import Home, House
from tests.fakes.examples import a_plan
from tests.pages.test_forms import form_of, visitor
from tests.pages.test_what_if import a_plan as a_stored_plan


@pytest.fixture
async def home(tmp_path: Path, migrated_sqlite: Path) -> AsyncIterator[Home]:
    shutil.copy(migrated_sqlite, tmp_path / "broker.db")
    async with House(tmp_path / "broker.db").open() as living:
        yield living


def price(confidence: float, usd: str | None) -> ConfidencePrice:
    cost = None if usd is None else Decimal(usd)
    return ConfidencePrice(confidence, cost, cost, confidence)


def test_the_curve_rises_with_the_cost_and_leaves_out_what_has_none() -> None:
    rows = (price(0.5, "100"), price(0.8, "150"), price(0.9, "200"), price(0.95, None))
    svg = str(price_chart(replace(a_plan(), confidence_prices=rows)))
    dots = [(float(x), float(y)) for x, y in re.findall(r'<circle[^>]*cx="([\d.]+)" cy="([\d.]+)"', svg)]
    assert len(dots) == 3
    assert [x for x, _ in dots] == sorted(x for x, _ in dots)
    heights = [-y for _, y in dots]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.2)
    assert "80 %: $150.00, $150.00 paid on average" in svg
    ElementTree.fromstring(svg)
    assert price_chart(replace(a_plan(), confidence_prices=rows[2:])) is None


def test_the_bars_are_as_tall_as_their_shares() -> None:
    ends = [Decimal(usd) for usd in (10, 20, 30, 40)]
    shares = (0.25, 0.5, 0.25)
    steps = tuple(CostShare(*span, share) for span, share in zip(pairwise(ends), shares, strict=True))
    quantiles = CostQuantiles(*ends)
    charts = cost_histogram(Simulation(100, (), quantiles, (), steps))
    assert charts is not None
    heights = [float(tall) for tall in re.findall(r'class="s0"[^>]* height="([\d.]+)"', str(charts.narrow))]
    assert [tall / max(heights) for tall in heights] == pytest.approx([0.5, 1, 0.5], abs=0.01)
    assert "$20.00 to $30.00: 50 % of draws" in charts.wide
    assert cost_histogram(Simulation(100, (), quantiles, (), steps[:1])) is None


def test_lateness_is_told_in_half_and_in_nine_of_ten_cases() -> None:
    assert late_words(None, None) == "–"
    assert late_words(0.0, 0.0) == "in nine of ten cases not at all"
    assert late_words(0.0, 3.14) == "in half of the cases not at all, in nine of ten up to 3.1\u00a0h"


async def test_a_plan_leads_to_its_simulation_and_to_the_price_of_confidence(home: Home) -> None:
    client, plan_id = await visitor(home), await a_stored_plan(home)
    page = f"/plans/{plan_id}"
    assert f'href="{page}/simulation"' in (await client.get(page)).text
    drawn = html.unescape((await client.get(f"{page}/simulation?seed=3")).text)
    assert "drawn 4,000 times" in drawn
    assert f'href="{page}/simulation?seed=4"' in drawn
    form = await form_of(client, page, f"{page}/confidence")
    asked = await client.post(f"{page}/confidence", data=form)
    assert asked.headers["Location"] == f"{page}#confidence", asked.text
    shown = html.unescape((await client.get(page)).text)
    assert "Cost against confidence" in shown or "cannot be placed" in shown
    assert f'action="{page}/confidence"' not in shown
    assert (await client.get("/plans/plan-none/simulation")).status_code == 404
