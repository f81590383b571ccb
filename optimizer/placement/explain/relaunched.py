"""What a plan says of nodes of a service that are given back and ordered again, or kept for that reason."""

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
    """How many nodes of a piece start again, with what chance, and what that is expected to cost."""
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
    nodes = f"{counted(again.starts, 'node')} {'is' if again.starts == 1 else 'are'} ordered again"
    instead = "nothing else is there to order" if again.offer_id is None else f"{again.offer_id} is ordered"
    failed = f"{usd_words(again.more_usd + again.missing_usd)} where one is not to be had and {instead}"
    yield Clause(
        Part.RISK if chance < SAFE_CHANCE else Part.DETAIL,
        f"{nodes} after others were given back, each with a chance of {chance:.0%}: "
        f"{usd_words(again.expected_usd)} are expected for it, as it costs {failed}",
    )


def _could_be_given_back(case: FleetCase, piece: Piece) -> bool:
    """Whether a node of the piece is not needed for the traffic of some hour between others."""
    most = max(nodes for _, _, nodes in piece.spans)
    demand = case.demand[np.flatnonzero(case.demand)]
    return len(demand) > 0 and float(demand.min()) * most <= float(demand.max()) * (most - 1)
