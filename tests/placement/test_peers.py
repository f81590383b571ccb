"""Peers' optimizers and ours on the same problem: never dearer where both can say it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optimizer.performance.estimator import Estimator
from tests.bench import chains, melange
from tests.peers_env import run

pytestmark = pytest.mark.xdist_group("peers")


@pytest.fixture(scope="module")
def estimator() -> Estimator:
    return melange.our_estimator()


def test_the_rebuilt_programme_gives_the_published_answer(tmp_path: Path) -> None:
    """The authors' toy example: three A10G and one A100 for $6.70 an hour."""
    capacity = [[2, 20], [1, 20], [5, 40], [2, 20]]
    rates = [30 * share for share in (0.25, 0.125, 0.375, 0.25)]
    asked = {"usd": [1.01, 3.67], "req_per_s": rates, "capacity": capacity, "slices": 4, "limit_s": 30}
    path = tmp_path / "example.json"
    path.write_text(json.dumps([asked]))
    (answer,) = run("melange", "solve_melange.py", str(path), environ={})
    assert (answer["instances"], round(answer["usd"], 2), answer["proven"]) == ([3, 1], 6.70, True)


@pytest.mark.parametrize(("number", "rates"), [(0, (5.0, 16.0)), (2, (4.0,))])
def test_fleets_for_one_size_and_for_mixes_cost_no_more_than_melange_s(
    number: int, rates: tuple[float, ...], estimator: Estimator
) -> None:
    """Two kinds of instance, and four; routed by size there as in our lanes."""
    profile = melange.read_profiles(estimator)[number]
    for found in melange.compare(list(melange.draw_problems(profile, rates)), estimator):
        assert found.our_usd <= found.their_usd + 0.005, found.problem.name


@pytest.mark.slow
def test_chains_cost_no_more_than_skypilot_s() -> None:
    for found in chains.compare(lengths=(1, 5), rows_each=200):
        assert found.proven
        assert found.our_usd <= found.their_usd + 0.005
