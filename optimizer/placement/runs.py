"""Candidates of runs (training and batch): offer × node count × start, as flat arrays [X].

Costs are floats here, for pricing and for the bound; columns that the master sees are priced exactly
by ``broker.domain.billing``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.workload import Batch, Training
from optimizer.placement.columns import Column, Piece, Span, late_cents, price_cents, with_switching
from optimizer.placement.estimates import Estimates
from optimizer.placement.gates import GateLog
from optimizer.placement.problem import Floats, Ints, Problem
from optimizer.placement.transfers import staged_s, weights_place, with_transfers
from optimizer.placement.windows import listed_spans

LATE_LIMIT_S = 24 * 3600

Run = Training | Batch


@dataclass(frozen=True, slots=True, eq=False)
class RunCandidates:
    """Allowed ways of one run [X], first possible start of each; ``end_s`` is the run's end.

    ``nodes`` are those to buy; ``choice`` says how many of them work. All ways, or the cheapest: every way
    that is not among them costs at least ``rest_usd`` (inf: all are).
    """

    run: Run
    log: GateLog
    offer: Ints
    choice: Ints
    nodes: Ints
    start_s: Ints
    until_s: Ints
    end_s: Floats
    cost_usd: Floats
    late_usd: Floats
    needed_s: Floats
    rest_usd: float

    def __len__(self) -> int:
        return len(self.offer)

    @property
    def total_usd(self) -> Floats:
        """Cost and lateness."""
        return self.cost_usd + self.late_usd


def first_second(problem: Problem, run: Run) -> int:
    """First whole second at which the run may work."""
    return max(problem.t0_s, math.ceil(problem.seconds(run.earliest_start)))


def first_instant_s(problem: Problem, run: Run) -> float:
    """First instant at which prepaid nodes are useful: exact, since they need not begin with it."""
    return max(0.0, problem.seconds(problem.as_of), problem.seconds(run.earliest_start))


def first_seconds(problem: Problem, run: Run, offers: Ints) -> Ints:
    """First whole second at which a run may work on each of ``offers``: its data is there."""
    staged = np.ceil(staged_s(problem, run)[offers]).astype(np.int64)
    first: Ints = np.maximum(first_second(problem, run), staged)
    return first


def begins_s(problem: Problem, run: Run, offer: int) -> float:
    """First instant at which prepaid nodes of an offer are useful."""
    return max(first_instant_s(problem, run), float(staged_s(problem, run)[offer]))


def deadline_s(problem: Problem, run: Run) -> float:
    """The deadline in seconds."""
    return problem.seconds(run.deadline)


def last_second(problem: Problem, run: Run) -> float:
    """Latest allowed end: the deadline, or a day later where lateness has a price."""
    late = isinstance(run, Training) and run.late_usd_per_hour is not None
    return deadline_s(problem, run) + (LATE_LIMIT_S if late else 0)


def held_s(needed_s: Floats) -> tuple[Ints, Floats]:
    """Whole seconds to hold, and the run's length to the microsecond."""
    micro = np.rint(needed_s * 1e6)
    return np.ceil(micro / 1e6).astype(np.int64), micro / 1e6


def build_run_column(
    problem: Problem, estimates: Estimates, found: RunCandidates, index: int
) -> Column | None:
    """Candidate ``index`` as an exact column; None when its exact length passes a limit."""
    run, offer, nodes = found.run, int(found.offer[index]), int(found.nodes[index])
    needed = _needed_s(problem, estimates, found, index)
    own_start, until = int(found.start_s[index]), int(found.until_s[index])
    held, length = (float(a[0]) for a in held_s(np.array([needed])))
    is_window = problem.table.is_window[offer]
    begin = max(float(own_start), begins_s(problem, run, offer)) if is_window else float(own_start)
    if not is_window:
        until = own_start + int(held)
    end = begin + length
    if end > last_second(problem, run) or end > until:
        return None
    spans: tuple[Span, ...] = ((own_start, until, nodes),)
    if is_window and (listed := listed_spans(problem, offer, own_start, until, nodes)):
        spans = tuple(listed) if _is_listed(problem, offer) else spans
    cost = price_cents(problem, offer, spans)
    piece = Piece(offer, int(found.choice[index]), spans, cost)
    place = weights_place(problem, run.name, offer)
    column = Column(run.name, (piece,), cost, _penalty_cents(problem, run, end), end, place=place)
    return with_switching(problem, with_transfers(problem, column))


def _penalty_cents(problem: Problem, run: Run, end_s: float) -> int:
    late_rate = run.late_usd_per_hour if isinstance(run, Training) else None
    return late_cents(problem, end_s, deadline_s(problem, run), late_rate)


def begun_later(problem: Problem, run: Run, column: Column, start_s: int) -> Column | None:
    """A column outside windows begun at ``start_s``: same length, same cost; None when too late."""
    (piece,) = column.pieces
    ((first, last, nodes),) = piece.spans
    end = column.end_s + start_s - first
    if end > last_second(problem, run):
        return None
    moved = replace(piece, spans=((start_s, start_s + last - first, nodes),))
    late = _penalty_cents(problem, run, end)
    return with_switching(problem, replace(column, pieces=(moved,), end_s=end, penalty_cents=late))


def _is_listed(problem: Problem, offer: int) -> bool:
    terms = problem.table.offers[offer].window
    return terms is not None and terms.kind == "listed"


def _needed_s(problem: Problem, estimates: Estimates, found: RunCandidates, index: int) -> float:
    """Held seconds as the estimate that the plan will show says them."""
    if isinstance(found.run, Batch):
        return float(found.needed_s[index])
    offer = int(found.offer[index])
    rate = float(problem.table.interruptions_per_hour[offer])
    row, kind = estimates.row_of[found.run.name], int(problem.table.sku_of[offer])
    choice = int(found.choice[index])

    def needed() -> float:
        return estimates.training.estimate(row, kind, choice, rate)["hours"] * 3600

    return problem.once_for_market(("needed_s", found.run.name, kind, choice, rate), needed)
