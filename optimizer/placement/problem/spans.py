"""Spans of nodes over time: what they hold together, and whether one fits beside others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from optimizer.placement.problem.columns import Span


def most_nodes(spans: Iterable[Span]) -> int:
    """The most nodes that the spans of one piece hold at once (they do not overlap)."""
    return max((n for _, _, n in spans), default=0)


def most_together(spans: Sequence[Span]) -> int:
    """The most nodes at once of spans in order, which may overlap where they are of several pieces."""
    most = most_nodes(spans)
    apart = all(before[1] <= after[0] for before, after in pairwise(spans))
    return most if apart else sum(n for _, _, n in spans)


def single_fits(taken: Sequence[Span], span: Span, stock: int) -> bool:
    """One stretch beside what overlaps it: most of what is asked, so without arrays."""
    start, end, nodes = span
    beside = [(max(a, start), b, n) for a, b, n in taken if a < end and start < b]
    if nodes + sum(n for _, _, n in beside) <= stock:
        return True
    return all(
        nodes + sum(n for a, b, n in beside if a <= instant < b) <= stock
        for instant in {start, *(a for a, _, _ in beside)}
    )
