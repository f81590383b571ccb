"""The relaxation over known columns against what its own prices prove, and against every choice of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.placement.columns.column_pool import ColumnPool
from optimizer.placement.columns.prices import StockPrices
from optimizer.placement.columns.relaxation import Relaxed, relax
from optimizer.placement.problem.columns import Column, Piece
from optimizer.placement.problem.problem import Problem, build_problem
from optimizer.placement.problem.stock import Ledger
from tests.depth import examples
from tests.placement.market import T0, offer, request, serving, training

PROFILE = settings(max_examples=examples(40), derandomize=True, deadline=None)
HOURS = 4
NAMES = ("s0", "s1", "r0", "r1")
LEAVE_USD = {"s0": 9.0, "s1": 14.0, "r0": 5.0, "r1": 11.0}


def problem_of(nodes: Sequence[int]) -> Problem:
    services = [serving(name, [1.0] * HOURS) for name in ("s0", "s1")]
    runs = [training(name, 1.0, unplaced_usd=Decimal(5)) for name in ("r0", "r1")]
    offers = [offer(f"o{i}", "1.00", nodes=count) for i, count in enumerate(nodes)]
    return build_problem(request(*services, *runs, hours=HOURS), offers, T0)


@st.composite
def columns_of(draw: st.DrawFn, name: str) -> Column:
    """Up to two pieces of an unbroken stretch each, at any price."""
    pieces = []
    for at in sorted(draw(st.sets(st.integers(0, 2), min_size=1, max_size=2))):
        begin = draw(st.integers(0, HOURS - 1))
        end = draw(st.integers(begin + 1, HOURS))
        pieces.append(
            Piece(at, 0, ((begin * 3600, end * 3600, draw(st.integers(1, 2))),), draw(st.integers(1, 900)))
        )
    end_s = 0.0 if name.startswith("s") else float(max(span[1] for p in pieces for span in p.spans))
    return Column(name, tuple(pieces), sum(piece.cost_cents for piece in pieces), end_s=end_s)


@st.composite
def pools(draw: st.DrawFn) -> ColumnPool:
    """A few ways of two services and two runs over three offers of one or two nodes."""
    pool = ColumnPool(problem_of(draw(st.lists(st.integers(1, 2), min_size=3, max_size=3))))
    for name in NAMES:
        pool.add(draw(st.lists(columns_of(name), min_size=1, max_size=4)))
    return pool


def relaxed(pool: ColumnPool) -> Relaxed:
    found = relax(pool, LEAVE_USD, (), StockPrices(), 10.0)
    assert found is not None
    return found


@PROFILE
@given(pools())
def test_its_prices_prove_what_it_costs(pool: ColumnPool) -> None:
    """Strong duality, by the sum that the bound uses: each workload at its least, less the stock."""
    found = relaxed(pool)
    least = pool.least_usd(found.prices, NAMES)
    proven = sum(min(least[name], LEAVE_USD[name]) for name in NAMES) - found.prices.stock_usd(pool.problem)
    # Solved as if a ten-thousandth more were sold of everything.
    assert proven == pytest.approx(found.usd + 1e-4 * found.prices.stock_usd(pool.problem), abs=1e-5)


@PROFILE
@given(pools())
def test_rows_that_join_later_are_as_good_as_rows_from_the_beginning(pool: ColumnPool) -> None:
    found = relaxed(pool)
    at_once = relax(pool, LEAVE_USD, found.rows, StockPrices(), 10.0)
    assert at_once is not None
    assert at_once.usd == pytest.approx(found.usd, rel=1e-3)


@PROFILE
@given(pools())
def test_no_choice_that_fits_costs_less(pool: ColumnPool) -> None:
    assert relaxed(pool).usd <= min(choices(pool)) + 1e-5


def test_without_contention_everything_takes_its_cheapest() -> None:
    pool = ColumnPool(problem_of([2, 2, 2]))
    for number, name in enumerate(NAMES):
        piece = Piece(number % 3, 0, ((number * 3600, (number + 1) * 3600, 1),), 100)
        pool.add([Column(name, (piece,), 100, end_s=0.0 if name.startswith("s") else piece.spans[0][1])])
    found = relaxed(pool)
    assert found.usd == pytest.approx(4.0)
    assert not found.prices.usd
    assert {name: [share for _, share in pairs] for name, pairs in found.shares.items()} == {
        name: [pytest.approx(1.0)] for name in NAMES
    }


def choices(pool: ColumnPool) -> Iterator[float]:
    """USD of every way to place or leave everything that the stock allows."""
    for chosen in itertools.product(*([None, *pool.of(name)] for name in NAMES)):
        placed: Mapping[str, Column] = {c.workload: c for c in chosen if c is not None}
        ledger = Ledger(pool.problem)
        fits = True
        for column in placed.values():
            fits = fits and ledger.fits(column)
            if fits:
                ledger.add(column)
        if fits:
            yield sum(placed[n].total_cents / 100 if n in placed else LEAVE_USD[n] for n in NAMES)
