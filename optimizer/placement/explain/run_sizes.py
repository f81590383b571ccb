"""Why a run holds as many nodes as it does, as clauses."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from broker.domain.planning.workload import Batch, Training
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.explain.clauses import Clause, Part, counted
from optimizer.placement.explain.extract import working_nodes
from optimizer.placement.problem.columns import Piece
from optimizer.placement.problem.sold_counts import sold_counts_rule
from optimizer.placement.problem.windows import window_rows
from optimizer.placement.runs.candidates import (
    RunCandidates,
    begins_s,
    deadline_s,
    first_seconds,
    last_second,
)
from optimizer.placement.runs.sizes import batch_counts


def size_rules(candidates: Candidates, found: RunCandidates, piece: Piece) -> Iterator[Clause]:
    """Why a run has no fewer nodes, and how many the seller's node counts add."""
    bought, working = piece.spans[0][2], working_nodes(candidates, found.run, piece)
    yield _node_rule(candidates, found, piece, bought)
    if working < bought:
        offer = candidates.problem.table.offers[piece.offer]
        yield Clause(Part.DETAIL, sold_counts_rule(offer, working, bought))


def _node_rule(candidates: Candidates, found: RunCandidates, piece: Piece, nodes: int) -> Clause:
    if nodes == 1:
        return Clause(Part.DETAIL, "1 node is enough")
    if isinstance(found.run, Batch) and piece.share < 1.0:
        return Clause(Part.DETAIL, f"{counted(nodes, 'node')} work on this part for as long as it takes")
    fewest = nodes <= int(found.nodes[found.offer == piece.offer].min())
    why = _why_not_fewer(candidates, found, piece) if fewest else None
    if why is None:
        return Clause(Part.DETAIL, f"{counted(nodes, 'node')} are the cheapest size on this offer")
    return Clause(Part.LIMIT, f"{counted(nodes, 'node')} {why}")


def _why_not_fewer(candidates: Candidates, found: RunCandidates, piece: Piece) -> str | None:
    """What the next smaller size fails to do; None if it only costs more."""
    run, table = found.run, candidates.problem.table
    nodes = working_nodes(candidates, run, piece)
    sizes = batch_counts(candidates.problem) if isinstance(run, Batch) else candidates.estimates.node_counts
    fewer = max((int(count) for count in sizes if count < nodes), default=0)
    if not fewer:
        return None
    if isinstance(run, Training) and fewer * int(table.gpus_per_node[piece.offer]) < run.gpus.min:
        return f"are the fewest with the asked {run.gpus.min} GPUs"
    needed_s = _needed_s(candidates, found, piece, fewer)
    if not np.isfinite(needed_s):
        return "are needed: fewer do not hold the model in memory"
    missed = _missed(candidates, found, piece, fewer, needed_s)
    return None if missed is None else f"are needed: fewer {missed}"


def _needed_s(candidates: Candidates, found: RunCandidates, piece: Piece, nodes: int) -> float:
    """Seconds of the whole run on ``nodes`` nodes of a piece's offer; inf if it does not fit."""
    table, estimates, run = candidates.problem.table, candidates.estimates, found.run
    row, kind = estimates.row_of[run.name], int(table.sku_of[piece.offer])
    if isinstance(run, Training):
        size = list(estimates.node_counts).index(nodes)
        if not estimates.training.fits[row, kind, size]:
            return float("inf")
        rate = float(table.interruptions_per_hour[piece.offer])
        return 3600 * float(estimates.training.hours_at(row, kind, size, rate))
    serving, per_node = estimates.serving, int(table.gpus_per_node[piece.offer])
    replicas = np.array([nodes * (per_node // config.gpus_per_replica) for config in serving.configs])
    rate_all = np.where(serving.fits[row, kind], replicas * serving.requests_per_s[row, kind], 0.0)
    with np.errstate(divide="ignore"):
        each = serving.cold_start_s[row, kind] + run.requests / rate_all
    return float(each.min())


def _missed(
    candidates: Candidates, found: RunCandidates, piece: Piece, nodes: int, needed_s: float
) -> str | None:
    """What a run of ``needed_s`` on ``nodes`` of the piece's offer misses, whenever it starts there."""
    problem, run = candidates.problem, found.run
    table, last_s = problem.table, last_second(problem, run)
    if table.is_window[piece.offer]:
        rows = window_rows(problem)
        here = np.flatnonzero((rows.offer == piece.offer) & (rows.nodes >= nodes))
        begin = np.maximum(rows.start_s[here], begins_s(problem, run, piece.offer))
        inside = needed_s <= rows.free_until_s[here] - rows.teardown_s[here] - begin
        left_out = "do not end before the window does"
    else:
        begin = first_seconds(problem, run, np.array([piece.offer])).astype(np.float64)
        inside = begin + needed_s <= table.gone_s[piece.offer]
        left_out = "do not end before the offer is gone"
    in_time = begin + needed_s <= last_s
    if piece.share < 1.0 or not len(begin) or (inside & in_time).any():
        return None
    if not in_time.any():
        late = last_s > deadline_s(problem, run)
        return "end more than a day after the deadline" if late else "miss the deadline"
    return left_out
