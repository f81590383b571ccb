"""The ledger of stock against counting node by node, and the rows of stock by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.market.offer import GpuPool, Offer, Stock, WindowKind
from broker.domain.planning.workload import Policy, Quota
from optimizer.placement.problem.columns import Column, Piece, Span
from optimizer.placement.problem.problem import UNLIMITED_NODES, Problem, build_problem
from optimizer.placement.problem.stock import Ledger, contended_rows, limits_at, overlap, single_fits
from tests.depth import examples
from tests.placement.market import T0, offer, request, training, window

STOCK = 4
END = 24
PROBLEM = build_problem(request(training()), [offer("a", "1.00", nodes=STOCK)], T0)


@st.composite
def columns(draw: st.DrawFn) -> Column:
    """One or two pieces of one offer, each a step function of up to twelve stretches."""
    pieces = []
    for choice in range(draw(st.integers(1, 2))):
        edges = sorted(draw(st.sets(st.integers(0, END), min_size=2, max_size=24)))
        spans: list[Span] = [
            (a, b, draw(st.integers(1, 2)))
            for a, b in zip(edges[::2], edges[1::2], strict=False)
            if draw(st.booleans())
        ]
        pieces.append(Piece(0, choice, tuple(spans) or ((0, 1, 1),), 0))
    return Column("w", tuple(pieces), 0)


def held_at(second: int, found: list[Column]) -> int:
    return sum(n for c in found for p in c.pieces for a, b, n in p.spans if a <= second < b)


@settings(max_examples=examples(30), derandomize=True, deadline=None)
@given(st.lists(columns(), max_size=8), st.integers(0, END))
def test_what_fits_is_what_leaves_every_instant_within_stock(wished: list[Column], start_s: int) -> None:
    ledger, kept = Ledger(PROBLEM), list[Column]()
    for number, column in enumerate(wished):
        within = all(held_at(s, [*kept, column]) <= STOCK for s in range(END + 1) if held_at(s, [column]))
        assert ledger.fits(column) == ledger.copy().fits(column) == within
        if within:
            kept.append(column)
            ledger.add(column)
        elif kept and number % 2:
            ledger.remove(kept.pop(0))
        most = max((held_at(s, kept) for s in range(start_s, END + 1)), default=0)
        assert ledger.free_nodes(0, start_s) == STOCK - most
        assert ledger.most_taken(0) == max((held_at(s, kept) for s in range(END + 1)), default=0)


def problem_of(*offers: Offer, quotas: tuple[Quota, ...] = ()) -> Problem:
    return build_problem(request(training(), policy=Policy(quotas=quotas)), offers, T0)


def holding(workload: str, *held: tuple[int, Span]) -> Column:
    """A column with a piece for each (offer, span); spans count seconds."""
    return Column(workload, tuple(Piece(offer, 0, (span,), 0) for offer, span in held), 0)


def cut(name: str, gpus: int, pool_gpus: int = 8) -> Offer:
    """A size of so many GPUs, out of one pool."""
    stock = Stock(nodes=pool_gpus // gpus, pool=GpuPool("hall/h100", pool_gpus))
    return replace(offer(name, "1.00", gpus=gpus), stock=stock)


def rows_of(problem: Problem, *columns: Column, beside: Ledger | None = None) -> list[tuple[object, ...]]:
    rows = contended_rows(problem, columns, ledger=beside)
    assert rows is not None
    return [(row.offer, row.columns, row.nodes, row.limit) for row in rows]


@pytest.mark.parametrize(
    ("first", "second", "meets"),
    [
        ([(0, 2, 1)], [(2, 4, 1)], False),
        ([(2, 4, 1)], [(0, 2, 1)], False),
        ([(0, 3, 1)], [(2, 4, 1)], True),
        ([(0, 3, 1), (8, 9, 1)], [(2, 4, 1), (6, 7, 1)], True),
        ([(0, 3, 1)], [], False),
    ],
)
def test_holdings_overlap_where_any_two_share_an_instant(
    first: list[Span], second: list[Span], meets: bool
) -> None:
    assert overlap(first, second) == meets


def test_two_workloads_contend_only_beyond_the_stock() -> None:
    one, other = holding("one", (0, (0, 10, 3))), holding("other", (0, (5, 15, 2)))
    assert rows_of(PROBLEM, one, other) == [(0, (0, 1), (3, 2), 4)]
    assert rows_of(PROBLEM, one, holding("other", (0, (5, 15, 1)))) == []
    assert rows_of(PROBLEM, one, holding("other", (0, (10, 15, 2)))) == []


def test_ways_of_one_workload_never_contend() -> None:
    ways = [holding("one", (0, (0, 10, 3))), holding("one", (0, (5, 15, 2)))]
    assert rows_of(PROBLEM, *ways) == []
    assert rows_of(PROBLEM, holding("one", (0, (0, 10, STOCK + 1)))) == []
    twice = holding("one", (0, (0, 10, 3)), (0, (5, 15, 2)))
    assert rows_of(PROBLEM, twice) == [(0, (0,), (5,), 4)]


def test_what_is_taken_beside_lowers_the_limit() -> None:
    ledger = Ledger(PROBLEM)
    ledger.add(holding("held", (0, (0, 10, 2))))
    assert rows_of(PROBLEM, holding("one", (0, (5, 15, 3))), beside=ledger) == [(0, (0,), (3,), 2)]


def test_an_unlimited_offer_has_no_row() -> None:
    problem = problem_of(offer("a", "1.00", nodes=2 * UNLIMITED_NODES))
    half = UNLIMITED_NODES // 2 + 1
    assert rows_of(problem, *(holding(name, (0, (0, 10, half))) for name in ("one", "other"))) == []
    assert Ledger(problem).fits(holding("one", (0, (0, 10, UNLIMITED_NODES + 1))))


def test_sizes_of_one_pool_contend_in_gpus() -> None:
    problem = problem_of(cut("four", 4), cut("one", 1))
    columns = holding("a", (0, (0, 10, 1))), holding("b", (1, (5, 15, 5)))
    assert rows_of(problem, *columns) == [(0, (0, 1), (4, 5), 8)]
    ledger = Ledger(problem)
    ledger.add(columns[0])
    assert rows_of(problem, columns[1], beside=ledger) == [(0, (0,), (5,), 4)]


def test_a_column_of_a_quota_contends_in_its_units() -> None:
    problem = problem_of(offer("a", "1.00"), offer("b", "1.00"), quotas=(Quota("lambda", nodes=3),))
    columns = holding("one", (0, (0, 10, 2))), holding("other", (1, (0, 10, 2)))
    assert rows_of(problem, *columns) == [(0, (0, 1), (2, 2), 3)]
    ledger = Ledger(problem)
    ledger.add(columns[0])
    assert rows_of(problem, columns[1], beside=ledger) == [(0, (0,), (2,), 1)]


def test_a_window_limits_from_its_start_until_before_its_end() -> None:
    problem = problem_of(offer("a", "1.00", nodes=STOCK, window=window(WindowKind.SLOTS, (1, 2, 3))))
    times = np.array([0, 3600, 7199, 7200])
    assert limits_at(problem, 0, times).tolist() == [STOCK, 3, 3, STOCK]


def test_a_window_holds_no_more_than_its_segments_allow() -> None:
    problem = problem_of(offer("a", "1.00", nodes=STOCK, window=window(WindowKind.SLOTS, (0, 24, 2))))
    ledger = Ledger(problem)
    assert ledger.fits(holding("one", (0, (0, 3600, 2))))
    assert not ledger.fits(holding("one", (0, (0, 3600, 3))))
    ledger.add(holding("held", (0, (0, 3600, 3))))
    assert ledger.fits(holding("one", (0, (3600, 7200, 1)))), "what others hold too much of is not its fault"


def test_a_column_fits_only_where_each_piece_and_each_stretch_does() -> None:
    problem = problem_of(offer("a", "1.00", nodes=4), offer("b", "1.00", nodes=1))
    assert Ledger(problem).fits(holding("one", (0, (0, 10, 4)), (1, (0, 10, 1))))
    assert not Ledger(problem).fits(holding("one", (0, (0, 10, 4)), (1, (0, 10, 2))))
    growing = Column("one", (Piece(0, 0, ((0, 10, 1), (10, 20, 5)), 0),), 0)
    assert not Ledger(problem).fits(growing)


def test_what_one_size_takes_the_other_sizes_lack() -> None:
    problem = problem_of(cut("four", 4), cut("one", 1))
    ledger = Ledger(problem)
    ledger.add(holding("held", (0, (10, 20, 1))))
    starts, ends = np.array([0.0, 5.0, 10.0, 20.0]), np.array([10.0, 15.0, 20.0, 30.0])
    assert ledger.free_between(1, starts, ends).tolist() == [8, 4, 4, 8]
    assert ledger.free_between(0, starts, ends).tolist() == [2, 1, 1, 2]
    assert [ledger.free_nodes(1, start) for start in (0, 19, 20)] == [4, 4, 8]
    ledger.add(holding("later", (0, (20, 30, 1))))
    assert [ledger.free_nodes(1, start) for start in (15, 20, 30)] == [4, 4, 8], "one after the other"


def test_a_quota_counts_over_all_offers_of_its_provider() -> None:
    offers = [offer("a", "1.00"), offer("b", "1.00"), offer("c", "1.00", provider="aws")]
    problem = problem_of(*offers, quotas=(Quota("lambda", nodes=3),))
    ledger = Ledger(problem)
    ledger.add(holding("held", (0, (0, 10, 2))))
    (row,) = {ledger.broken_quota(holding("one", (1, (5, 15, 2))))}
    assert str(row) == "3 nodes at lambda"
    for fitting in ((1, (5, 15, 1)), (1, (10, 20, 2)), (2, (5, 15, 9))):
        assert ledger.broken_quota(holding("one", fitting)) is None
    ledger.remove(holding("held", (0, (0, 10, 2))))
    assert ledger.fits(holding("one", (1, (5, 15, 2))))


@pytest.mark.parametrize(("nodes", "alone"), [(2, False), (4, True)])
def test_a_quota_stands_alone_against_a_column_where_there_is_stock(nodes: int, alone: bool) -> None:
    """Two nodes are taken and two wished of a quota of three: with two in stock, stock too is short."""
    problem = problem_of(offer("a", "1.00", nodes=nodes), quotas=(Quota("lambda", nodes=3),))
    ledger = Ledger(problem)
    ledger.add(holding("held", (0, (0, 10, 2))))
    wished = holding("one", (0, (0, 10, 2)))
    assert ledger.broken_quota(wished) is not None
    assert (ledger.quota_against(wished) is not None) == alone
    assert ledger.quota_against(holding("one", (0, (0, 10, 1)))) is None


def test_a_column_fits_only_where_its_pool_has_the_gpus() -> None:
    """Five of eight GPUs are taken by ones: a four is in stock, and its GPUs are not."""
    problem = problem_of(cut("four", 4), cut("one", 1))
    ledger = Ledger(problem)
    ledger.add(holding("held", (1, (0, 10, 5))))
    together, after = holding("four", (0, (9, 15, 1))), holding("four", (0, (10, 15, 2)))
    assert (ledger.fits(together), ledger.overdrawn_pool(together)) == (False, 0)
    assert (ledger.fits(after), ledger.overdrawn_pool(after)) == (True, None)


@pytest.mark.parametrize(
    ("span", "stock", "fits"),
    [
        ((0, 20, 2), 5, True),  # beside one of the two at any time
        ((0, 20, 2), 4, False),
        ((10, 20, 2), 5, True),  # one has gone as it begins
        ((5, 15, 3), 5, False),
        ((20, 30, 5), 5, True),
    ],
)
def test_nodes_that_come_as_others_go_are_never_held_beside_them(span: Span, stock: int, fits: bool) -> None:
    """Three nodes for ten seconds, and three others for the ten that follow."""
    assert single_fits([(0, 10, 3), (10, 20, 3)], span, stock) is fits
