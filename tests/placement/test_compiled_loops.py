"""Compiled loops: paths are the cheapest, and what is compiled ahead is what a plan calls."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer.placement.best_fleets import fleets
from optimizer.placement.fleet_bound import bound_fleet
from optimizer.placement.fleet_days import with_days
from optimizer.placement.ladders import free_nodes
from optimizer.placement.shortest_path import cheapest_after, cheapest_way

from optimizer.placement import (
    compile_ahead,
    compiled,
    cover,
    day_knapsack,
    hour_knapsack,
    rungs,
    sharing_steps,
    shortest_path,
)
from optimizer.placement.estimates import build_estimates
from optimizer.placement.fleet_cases import build_fleet_case
from optimizer.placement.problem import build_problem
from tests.depth import examples
from tests.placement.fake_estimator import FakeEstimator
from tests.placement.market import T0, offer, request, serving

LOOPS: tuple[Any, ...] = (
    cover._least_cover,
    day_knapsack.beside_set,
    day_knapsack.cheapest_days,
    day_knapsack.cheapest_sets,
    day_knapsack.set_of,
    hour_knapsack.cover_hours,
    rungs.build_rungs,
    sharing_steps.climbed,
    sharing_steps.shared,
    sharing_steps.stretched,
    shortest_path.cheapest_after,
    shortest_path.cheapest_way,
)


def test_what_is_kept_is_that_of_all_sources(tmp_path: Path) -> None:
    """A function takes in others of other files: a change of any of them must compile all anew."""
    (tmp_path / "calls.py").write_text("@compiled\ndef calls(): ...")
    (tmp_path / "called.py").write_text("@compiled\ndef called(): ...")
    before = compiled.fingerprint(tmp_path)
    (tmp_path / "plain.py").write_text("def plain(): ...")
    assert compiled.fingerprint(tmp_path) == before
    (tmp_path / "called.py").write_text("@compiled\ndef called(): pass")
    assert compiled.fingerprint(tmp_path) != before
    kept = str(compiled.kept_in())
    assert kept.endswith(compiled.fingerprint(compiled.HERE))
    assert all(str(loop._cache.cache_path).startswith(kept) for loop in LOOPS)


def test_what_other_sources_became_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = tmp_path / "compiled-1", tmp_path / "compiled-2"
    for folder in (mine, other):
        (folder / "placement").mkdir(parents=True)
    monkeypatch.setattr(compiled, "kept_in", lambda: mine)
    compiled.forget_others()
    assert mine.exists()
    assert not other.exists()


@settings(max_examples=examples(30), derandomize=True, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 999))
def test_a_path_is_the_cheapest_of_all_ways_through_the_hours(hours: int, states: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    usd, change = rng.integers(1, 9, states).astype(float), rng.integers(0, 5, (states, states)).astype(float)
    np.fill_diagonal(change, 0.0)
    reach, needs = rng.integers(0, 4, states).astype(float), rng.integers(0, 4, hours).astype(float)
    lengths = rng.uniform(0.5, 1.0, hours)
    after = cheapest_after(usd, np.ascontiguousarray(change.T), reach, needs, lengths)

    def cost(way: tuple[int, ...]) -> float:
        meets = all(reach[state] >= needs[hour] for hour, state in enumerate(way) if hour)
        paid = sum(usd[state] * lengths[hour] for hour, state in enumerate(way) if hour)
        moved = sum(change[a, b] for a, b in itertools.pairwise(way))
        return float(paid + moved) if meets else np.inf

    for first in range(states):
        ways = [(first, *rest) for rest in itertools.product(range(states), repeat=hours - 1)]
        assert after[0, first] == pytest.approx(min(cost(way) for way in ways))
        onward = np.where(reach >= needs[:, None], usd * lengths[:, None] + after, np.inf)
        if np.isfinite(after[0, first]):
            taken = tuple(int(state) for state in cheapest_way(change, onward, 0, first))
            assert taken[0] == first
            assert cost(taken) == pytest.approx(after[0, first])


def test_what_is_compiled_ahead_is_what_a_service_needs() -> None:
    """Else the first plan would spend seconds on it."""
    for name in compile_ahead.LOOPS:
        compile_ahead.compile_one(name)
    ahead = [len(loop.signatures) for loop in LOOPS]
    market = [
        offer("base", "1.30", min_hours=24, zone="a"),
        offer("near", "2.00", zone="b"),
        offer("cheap", "1.00", nodes=2, zone="a"),
        offer("small", "0.40", gpu="TINY", zone="b"),
    ]
    service = serving(hourly=[1.0, 6.0, 14.0, 3.0] * 6, zones=2, spare=1)
    problem = build_problem(request(service, hours=48), market, T0)
    estimates = build_estimates(problem, FakeEstimator())  # type: ignore[arg-type]
    case = build_fleet_case(problem, estimates, problem.services()[0])
    bound = bound_fleet(problem, case)
    assert bound.feasible
    assert with_days(problem, case, bound).due_usd > 0
    assert fleets(problem, case, free_nodes(problem), [None], None, 2)
    assert [len(loop.signatures) for loop in LOOPS] == ahead
