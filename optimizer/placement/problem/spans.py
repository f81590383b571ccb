"""Spans of nodes over time: how many they hold at once, and whether another one fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from optimizer.placement.problem.columns import Span


def most_nodes(spans: Iterable[Span]) -> int:
    """The most nodes that spans hold at once, if no two of them overlap."""
    return max((n for _, _, n in spans), default=0)


def most_together(spans: Sequence[Span]) -> int:
    """An upper bound on the nodes that spans in ascending order hold at once; exact if no two overlap."""
    most = most_nodes(spans)
    apart = all(before[1] <= after[0] for before, after in pairwise(spans))
    return most if apart else sum(n for _, _, n in spans)


def single_fits(taken: Sequence[Span], span: Span, stock: int) -> bool:
    """Whether one span fits in ``stock`` with what is taken. The commonest case, so it uses no arrays."""
    start, end, nodes = span
    overlapping = [(max(a, start), b, n) for a, b, n in taken if a < end and start < b]
    if nodes + sum(n for _, _, n in overlapping) <= stock:
        return True
    return all(
        nodes + sum(n for a, b, n in overlapping if a <= instant < b) <= stock
        for instant in {start, *(a for a, _, _ in overlapping)}
    )
