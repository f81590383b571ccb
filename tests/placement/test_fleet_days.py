"""The least of a fleet day by day: whole commitments, no holding charged more than it pays."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optimizer.placement.day_case import Block, DayCase, build_day_case
from optimizer.placement.day_prices import DayPrices, first_prices, tightened
from optimizer.placement.day_program import DayProgram
from optimizer.placement.fleet_bound import bound_fleet
from optimizer.placement.fleet_covers import cover_columns
from optimizer.placement.fleet_days import certified_usd, with_days
from optimizer.placement.ladders import free_nodes

from broker.domain.offer import Tier
from tests.placement.market import offer, request, serving
from tests.placement.test_fleet_dual import (
    PROFILE,
    CommittedService,
    _case,
    _diurnal,
    _with,
    committed_services,
    no_fleet_costs_less,
)


@pytest.mark.usefixtures("short_days")
@PROFILE
@given(committed_services())
def test_no_fleet_costs_less_than_its_days(problem: CommittedService) -> None:
    no_fleet_costs_less(problem, lambda built, case: with_days(built, case, bound_fleet(built, case)).due_usd)


def _weekly(days: int) -> DayCase:
    service = serving(hourly=_diurnal(3.0, 7.5, 24))
    offers = [
        offer("week", "0.80", tier=Tier.COMMITTED, min_hours=168.0, billing_increment_s=3600),
        offer("days", "0.95", gpu="MID", tier=Tier.COMMITTED, min_hours=50.0, billing_increment_s=3600),
        offer("free", "1.90", billing_increment_s=3600),
    ]
    problem, case = _case(request(service, hours=24 * days), offers)
    return build_day_case(problem, case, 0, np.ones(24 * days))


@PROFILE
@given(st.integers(0, 10_000), st.integers(8, 12))
def test_no_holding_of_a_term_is_charged_more_than_it_pays(seed: int, days: int) -> None:
    case, rng = _weekly(days), np.random.default_rng(seed)
    usd, term_h = case.menu.usd[case.termed], case.menu.term_h[case.termed]
    off = usd * rng.uniform(0, 0.2, len(usd))
    wish = rng.uniform(0, 3, (len(usd), len(case.needs))) ** 2
    edges = _edges(case)
    blocks = [_block(case, first, last) for first, last in itertools.pairwise(edges)]
    parts = [tightened(case, off, wish, (block,)) for block in blocks]
    assert all((part >= 0).all() for part in parts)
    for _ in range(40):
        unit = int(rng.integers(len(usd)))
        begin = int(rng.integers(0, edges[-1]))
        end = int(min(edges[-1], begin + term_h[unit] + rng.integers(0, 60)))
        charged = 0.0
        for block, part, (first, last) in zip(blocks, parts, itertools.pairwise(edges), strict=True):
            there = np.arange(max(begin, first), min(end, last))
            whole = (usd[unit] - off[unit]) * (last - first)
            whole += off[unit] * term_h[unit] / 2 * (block.first + block.last)
            some = float(part[unit, case.classes.of[there]].sum())
            charged += whole if len(there) == last - first else min(whole, some)
        assert charged <= usd[unit] * max(term_h[unit], end - begin) + 1e-6


@PROFILE
@given(st.integers(0, 10_000), st.floats(0.0, 1.0), st.sampled_from([60.0, 168.0, 200.0, 216.0]))
def test_no_prices_prove_more_than_one_commitment_costs(seed: int, share: float, term_h: float) -> None:
    """One unit alone that is needed throughout, held for less than two terms; whatever is charged where."""
    week = offer("week", "0.80", tier=Tier.COMMITTED, min_hours=term_h, billing_increment_s=3600)
    problem, built = _case(request(serving(hourly=_diurnal(1.0, 2.4, 24)), hours=240), [week])
    case, rng = build_day_case(problem, built, 0, np.ones(240)), np.random.default_rng(seed)
    usd = case.menu.usd[case.termed]
    part = usd[:, None] * rng.uniform(0, 3, (1, len(case.needs))) ** 2
    hourly = np.repeat(case.menu.usd[:, None], len(case.needs), axis=1)
    proven = certified_usd(case, DayPrices(hourly, share * usd, part))
    assert 0 < proven <= 240 * 0.80 + 1e-6


def _block(case: DayCase, first: int, last: int) -> Block:
    """The day of the case that has these hours."""
    ends = first == 0, last == len(case.classes.of)
    alike = [b for b in case.blocks if (b.first, b.last) == ends and len(b.of) == last - first]
    (found,) = [b for b in alike if (b.of == case.classes.of[first:last]).all()][:1]
    return found


def _edges(case: DayCase) -> np.ndarray:
    hours = len(case.classes.of)
    first = int(np.argmax(case.needs[case.classes.of[:24]]))
    return np.unique([0, *range(first, hours, 24), hours])


def test_days_prove_whole_commitments_where_hours_take_halves() -> None:
    """One big commitment and a small unit for the peak: by hours, two halves of other fleets look cheaper."""
    service = serving(hourly=_diurnal(2.6, 5.4, 24))
    offers = [
        offer("week", "0.80", tier=Tier.COMMITTED, min_hours=168.0, billing_increment_s=3600),
        offer("month", "1.75", gpus=2, tier=Tier.COMMITTED, min_hours=720.0, billing_increment_s=3600),
        offer("free", "1.90", billing_increment_s=3600),
        offer("small", "0.70", gpu="TINY", billing_increment_s=3600),
    ]
    problem, case = _case(request(service, hours=720), offers)
    known = bound_fleet(problem, case)
    found = with_days(problem, case, known)
    columns = list(cover_columns(problem, _with(case, found.covers), free_nodes(problem), [None]))
    cheapest = min(column.total_cents for column in columns) / 100
    assert known.due_usd < found.due_usd <= cheapest
    assert found.due_usd >= 0.97 * cheapest


def test_what_is_proven_in_no_time_holds_as_well() -> None:
    service = serving(hourly=_diurnal(3.0, 7.5, 24))
    offers = [
        offer("week", "0.80", tier=Tier.COMMITTED, min_hours=168.0, billing_increment_s=3600),
        offer("free", "1.90", billing_increment_s=3600),
    ]
    problem, case = _case(request(service, hours=720), offers)
    known = bound_fleet(problem, case)
    hurried = with_days(problem, case, known, out_of_time=lambda: True)
    longer = with_days(problem, case, known)
    assert known.due_usd <= hurried.due_usd <= longer.due_usd + 1e-9


def test_what_stands_all_day_may_be_nothing_but_no_cover_is() -> None:
    """All by the hour: what has no unit is no fleet to build on, however little of the market is free."""
    service = serving(hourly=[0.0] * 12 + [3.0] * 12)
    problem, case = _case(request(service, hours=96), [offer("free", "1.90", billing_increment_s=3600)])
    found = with_days(problem, case, bound_fleet(problem, case))
    assert len(found.covers)
    assert found.covers.any(axis=1).all()


@pytest.mark.parametrize("solved", [0, 1, 3])
def test_a_program_that_the_solver_cannot_do_leaves_what_is_proven(
    solved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = serving(hourly=_diurnal(3.0, 7.5, 24))
    offers = [
        offer("week", "0.80", tier=Tier.COMMITTED, min_hours=168.0, billing_increment_s=3600),
        offer("free", "1.90", billing_increment_s=3600),
    ]
    problem, case = _case(request(service, hours=720), offers)
    known, solve, asked = bound_fleet(problem, case), DayProgram.solve, []

    def failing(program: DayProgram) -> float | None:
        asked.append(program)
        return solve(program) if len(asked) <= solved else None

    whole = with_days(problem, case, known)
    monkeypatch.setattr(DayProgram, "solve", failing)
    found = with_days(problem, case, known)
    assert known.due_usd <= found.due_usd <= whole.due_usd + 1e-9
    assert len(asked) >= min(solved, 1)


def test_the_solver_is_asked_in_another_way_where_the_first_comes_to_nothing() -> None:
    case = _weekly(8)
    program, asked = DayProgram(case), []

    class Stubborn:
        def __init__(self) -> None:
            self.real = program.solver

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

        def Solve(self, parameters: object) -> int:
            asked.append(parameters)
            status: int = self.real.Solve(parameters)
            return status if len(asked) > 1 else 6

    empty = np.zeros(len(case.menu), dtype=np.int64)
    program.add(empty, np.zeros((len(case.needs), len(case.menu)), dtype=np.int64))
    program.solver = Stubborn()
    assert program.solve() == pytest.approx(0.0)
    assert len(asked) == 2


def test_a_service_of_a_day_has_no_days() -> None:
    problem, case = _case(request(serving(hourly=[3.0, 7.0]), hours=24), [offer("free", "1.90")])
    known = bound_fleet(problem, case)
    assert with_days(problem, case, known) is known


def test_what_the_program_says_of_a_unit_holds_for_its_likes() -> None:
    """Two alike commitments, and two alike units by the hour; the program meets the cheaper of each alone."""
    service = serving(hourly=_diurnal(3.0, 7.5, 24))
    terms: dict[str, Any] = {"tier": Tier.COMMITTED, "min_hours": 168.0, "billing_increment_s": 3600}
    offers = [
        offer("week", "0.80", nodes=2, **terms),
        offer("dearer-week", "0.90", nodes=2, **terms),
        offer("free", "1.90", nodes=2, billing_increment_s=3600),
        offer("dearer-free", "2.30", nodes=2, billing_increment_s=3600),
    ]
    problem, built = _case(request(service, hours=720), offers)
    case = build_day_case(problem, built, 0, np.ones(720))
    menu, nobody = case.menu, np.zeros(len(case.menu), dtype=np.int64)
    assert len(menu) == 4
    week, free = (int(np.argmin(np.where(mask, menu.usd, np.inf))) for mask in (menu.term_h > 0, case.hourly))
    program = DayProgram(case)
    for standing in (nobody, np.where(np.arange(len(menu)) == week, 1, 0)):
        joining = np.zeros((len(case.needs), len(menu)), dtype=np.int64)
        joining[:, free] = np.ceil(case.needs / menu.steps[free]) - standing.sum()
        program.add(standing, joining)
    assert program.solve() is not None
    prices = program.prices(first_prices(case, np.repeat(menu.usd[:, None], 720, axis=1)))
    shape = prices.hourly / menu.usd[:, None]
    assert shape[case.hourly][0] == pytest.approx(shape[case.hourly][1])
    assert np.ptp(shape[case.hourly][0]) > 0
    assert np.ptp(prices.off / menu.usd[case.termed]) == pytest.approx(0.0)
