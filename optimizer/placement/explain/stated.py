"""Clauses on stated stock that is exhausted, and on the cost per token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from broker.domain.basics.money import usd_words
from broker.domain.planning.workload import Batch, Serving, Workload
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.explain.clauses import Clause, Part
from optimizer.placement.problem.columns import Column, Piece, in_usd
from optimizer.placement.problem.problem import Problem
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.problem.units import HOUR_S


def all_taken_rule(problem: Problem, ledger: Ledger, piece: Piece) -> str | None:
    """Says that all nodes that the seller states are taken at some time; None if some are always left."""
    offer = problem.table.offers[piece.offer]
    if offer.stock.nodes is None or offer.window is not None:
        return None
    stated = offer.stock.nodes + offer.stock.held_nodes
    most = ledger.most_taken(piece.offer)
    if most < stated or not stated:
        return None
    if stated == 1:
        return f"it takes the one node that {offer.provider} states"
    own = max(nodes for _, _, nodes in piece.spans)
    note = "" if own == most else ", with what else the plan holds there"
    return f"all {stated:,} of {stated:,} stated nodes are taken{note}: one that fails has no spare there"


def tokens_rule(candidates: Candidates, workload: Workload, column: Column) -> Iterator[Clause]:
    """The cost of a million output tokens of the actual traffic, idle hours included."""
    if isinstance(workload, Serving):
        case, problem = candidates.fleets[workload.name], candidates.problem
        start = max(float(problem.t0_s), column.after_s or 0.0)
        begins = np.arange(len(case.demand)) * HOUR_S
        served_s = np.clip(np.minimum(begins + HOUR_S, problem.end_s) - np.maximum(begins, start), 0, HOUR_S)
        tokens = float(case.demand @ served_s) * workload.traffic.output_tokens
    elif isinstance(workload, Batch):
        tokens = workload.requests * workload.output_tokens
    else:
        return
    if tokens > 0:
        usd = usd_words(in_usd(round(column.cost_cents * 1e6 / tokens)))
        yield Clause(Part.DETAIL, f"a million output tokens of this traffic cost {usd}, idle capacity in it")
