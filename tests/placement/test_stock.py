"""The ledger of stock against counting node by node."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.placement.problem.columns import Column, Piece, Span
from optimizer.placement.problem.problem import build_problem
from optimizer.placement.problem.stock import Ledger
from tests.depth import examples
from tests.placement.market import T0, offer, request, training

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
