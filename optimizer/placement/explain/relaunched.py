"""What a plan says of nodes that a service orders while it runs, or keeps because they may be gone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from broker.domain.basics.money import usd_words
from optimizer.placement.explain.clauses import Clause, Part, counted
from optimizer.placement.problem.columns import Piece
from optimizer.placement.problem.problem import Problem
from optimizer.placement.problem.relaunches import relaunch_of
from optimizer.placement.problem.units import FleetCase

SAFE_CHANCE = 0.9


def relaunch_rules(problem: Problem, case: FleetCase, piece: Piece) -> Iterator[Clause]:
    """How many nodes of a piece are ordered later, with what chance, and what that is expected to cost."""
    again = relaunch_of(problem, case.relaunches, piece)
    chance = float(problem.table.launch_chance[piece.offer])
    if again is None:
        if chance < SAFE_CHANCE and _could_be_given_back(case, piece):
            yield Clause(
                Part.DETAIL,
                "it is kept while traffic is low, as an order of it would succeed with a chance of only "
                f"{chance:.0%}",
            )
        return
    nodes = f"{counted(again.starts, 'node')} {'is' if again.starts == 1 else 'are'} ordered while it runs"
    failure = usd_words(again.more_usd + again.missing_usd)
    instead = (
        f"there is nothing else, which counts for {failure}"
        if again.offer_id is None
        else f"{again.offer_id} in its place costs {failure} more"
    )
    yield Clause(
        Part.RISK if chance < SAFE_CHANCE else Part.DETAIL,
        f"{nodes}: with a chance of {1 - chance:.0%} one is not to be had by then, and "
        f"{instead}; {usd_words(again.expected_usd)} is expected",
    )


def _could_be_given_back(case: FleetCase, piece: Piece) -> bool:
    """Whether a node of the piece is not needed for the traffic of some hour between others."""
    most = max(nodes for _, _, nodes in piece.spans)
    busy = np.flatnonzero(case.demand)
    if not len(busy):
        return False
    demand = case.demand[busy[0] : busy[-1] + 1]
    return float(demand.min()) * most <= float(demand.max()) * (most - 1)
