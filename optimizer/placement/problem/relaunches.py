"""What it is expected to cost a service to give nodes back and order them again.

What a failed order costs depends on the kind of node and its configuration, not on the offer, so that the
cheaper of two offers with the same chance is never worse. P pairs of kind and configuration, A distinct
chances, O offers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from broker.domain.planning.relaunch import Relaunch
from optimizer.placement.problem.columns import Column, Piece, Span, in_usd
from optimizer.placement.problem.problem import Ints, Problem


@dataclass(frozen=True, slots=True, eq=False)
class RelaunchPrices:
    """Of each pair of kind and configuration [P], for a node that is not to be had: the cents that the next
    best costs more, those that its missing is worth, the cheapest offer, and the next best one (-1: none).
    ``cents`` [A, P] are expected of ordering a node again.

    ``chance_of`` [O] is the index of each offer's chance; ``configs`` counts configurations.
    """

    more_cents: Ints
    missing_cents: Ints
    cheapest: Ints
    next_best: Ints
    cents: Ints
    chance_of: Ints
    configs: int

    def node_cents(self, offers: Ints, pairs: Ints) -> Ints:
        """Expected cents of ordering a node of each of ``offers`` again, by its pair."""
        cents: Ints = self.cents[self.chance_of[offers], pairs]
        return cents

    def pair_of(self, problem: Problem, piece: Piece) -> int:
        """The pair of a piece's kind and configuration."""
        return int(problem.table.sku_of[piece.offer]) * self.configs + piece.choice


def starts_again(spans: Sequence[Span], floor_s: int, begin_s: float, cold_s: float) -> int:
    """Nodes of step functions of holdings that are ordered later than as the service begins.

    Those held from ``floor_s`` on and those ready by ``begin_s``, a cold start of ``cold_s`` after their
    order, are not counted.
    """
    found, before, end = 0, 0, None
    for start, until, nodes in spans:
        level = before if start == end else 0
        if nodes > level and start > floor_s and start + cold_s > begin_s:
            found += nodes - level
        before, end = nodes, until
    return found


def with_relaunches(
    problem: Problem, prices: RelaunchPrices | None, column: Column, floor_s: int, begin_s: float,
    cold_s: Sequence[float],
) -> Column:  # fmt: skip
    """Sets the expected cost of the orders that a service's column repeats; ``cold_s``: cold start of each
    piece.
    """
    if prices is None:
        return column
    pieces = []
    for piece, cold in zip(column.pieces, cold_s, strict=True):
        again = starts_again(piece.spans, floor_s, begin_s, cold)
        pieces.append(replace(piece, starts_again=again) if again != piece.starts_again else piece)
    total = 0
    for piece in pieces:
        if piece.starts_again:
            pair = prices.pair_of(problem, piece)
            total += piece.starts_again * int(prices.cents[prices.chance_of[piece.offer], pair])
    return replace(column, pieces=tuple(pieces), relaunch_cents=total)


def relaunch_of(problem: Problem, prices: RelaunchPrices | None, piece: Piece) -> Relaunch | None:
    """What a plan says of the orders that a piece repeats; None if it repeats none."""
    if prices is None or not piece.starts_again:
        return None
    pair = prices.pair_of(problem, piece)
    other = int(prices.next_best[pair])
    if other == piece.offer:
        other = int(prices.cheapest[pair])
    return Relaunch(
        starts=piece.starts_again,
        chance=float(problem.table.launch_chance[piece.offer]),
        offer_id=None if other < 0 else problem.table.offers[other].offer_id,
        more_usd=in_usd(int(prices.more_cents[pair])),
        missing_usd=in_usd(int(prices.missing_cents[pair])),
    )
