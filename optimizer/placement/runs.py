"""Candidates of runs (training and batch): offer × node count × start, as flat arrays [X].

Costs are floats here, for pricing and for the bound; columns that the master sees are priced exactly
by ``broker.domain.billing``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from broker.domain.plan import Obstacle
from broker.domain.workload import Batch, Training
from optimizer.placement.columns import Column, Piece, Span, late_cents, price_cents, with_switching
from optimizer.placement.estimates import Estimates
from optimizer.placement.gates import GateLog, fit_gates, open_gates
from optimizer.placement.problem import Bools, Floats, Ints, Problem
from optimizer.placement.windows import WindowRows, cut_duration_s, listed_spans

LATE_LIMIT_S = 24 * 3600
BATCH_NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

Run = Training | Batch


@dataclass(frozen=True, slots=True, eq=False)
class RunCandidates:
    """All allowed ways of one run [X], first possible start of each; ``end_s`` is the run's end."""

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

    def __len__(self) -> int:
        return len(self.offer)

    @property
    def total_usd(self) -> Floats:
        """Cost and lateness."""
        return self.cost_usd + self.late_usd


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Flat (offer, node count) pairs [P] that fit, with held seconds."""

    offer: Ints
    choice: Ints
    nodes: Ints
    needed_s: Floats

    def where(self, mask: Bools) -> _Pairs:
        return _Pairs(self.offer[mask], self.choice[mask], self.nodes[mask], self.needed_s[mask])


def first_second(problem: Problem, run: Run) -> int:
    """First whole second at which the run may work."""
    return max(problem.t0_s, math.ceil(problem.seconds(run.earliest_start)))


def first_instant_s(problem: Problem, run: Run) -> float:
    """First instant at which prepaid nodes are useful: exact, since they need not begin with it."""
    return max(0.0, problem.seconds(problem.as_of), problem.seconds(run.earliest_start))


def deadline_s(problem: Problem, run: Run) -> float:
    """The deadline in seconds."""
    return problem.seconds(run.deadline)


def last_second(problem: Problem, run: Run) -> float:
    """Latest allowed end: the deadline, or a day later where lateness has a price."""
    late = isinstance(run, Training) and run.late_usd_per_hour is not None
    return deadline_s(problem, run) + (LATE_LIMIT_S if late else 0)


def build_run_candidates(
    problem: Problem, estimates: Estimates, windows: WindowRows, run: Run
) -> RunCandidates:
    """Everything that the gates let through, at its first possible start."""
    log = open_gates(problem, run)
    pairs = _fitting_pairs(problem, estimates, log, run)
    log.evaluated = len(problem.table) * len(_counts(estimates, run))
    span_s = last_second(problem, run) - first_second(problem, run)
    pairs = pairs.where(pairs.needed_s <= span_s)
    log.apply(Obstacle.DEADLINE, _offers_of(problem, pairs.offer))
    parts = (_free_starts(problem, run, pairs), *_window_starts(problem, windows, run, pairs))
    offer, choice, nodes, start, until, end, cost, needed = (
        np.concatenate(c) for c in zip(*parts, strict=True)
    )
    log.apply(Obstacle.WINDOW, _offers_of(problem, offer))
    log.kept = len(offer)
    late = np.zeros(len(offer))
    if isinstance(run, Training) and run.late_usd_per_hour is not None:
        late = np.maximum(0.0, end - deadline_s(problem, run)) / 3600 * float(run.late_usd_per_hour)
    return RunCandidates(run, log, offer, choice, nodes, start, until, end, cost, late, needed)


def _offers_of(problem: Problem, offers: Ints) -> Bools:
    mask = np.zeros(len(problem.table), dtype=np.bool_)
    mask[offers] = True
    return mask


def _counts(estimates: Estimates, run: Run) -> tuple[int, ...]:
    return estimates.node_counts if isinstance(run, Training) else BATCH_NODES


def _fitting_pairs(problem: Problem, estimates: Estimates, log: GateLog, run: Run) -> _Pairs:
    row, kinds = estimates.row_of[run.name], range(len(problem.table.skus))
    if isinstance(run, Training):
        hours = estimates.training.hours[row]
        obstacles = [estimates.training.obstacle(row, kind) for kind in kinds]
        choice = np.broadcast_to(np.arange(hours.shape[1]), hours.shape)
    else:
        hours, choice = _batch_hours(problem, estimates, run)
        obstacles = [estimates.serving.obstacle(row, kind) for kind in kinds]
    fit_gates(problem, log, obstacles, np.isfinite(hours).any(axis=1))
    offers = np.flatnonzero(log.passing)
    counts = np.asarray(_counts(estimates, run), dtype=np.int64)
    table = problem.table
    usable = np.isfinite(hours)[table.sku_of[offers]]
    if isinstance(run, Training):
        usable = usable & _joined_and_sized(problem, run, offers, counts)
        log.apply(Obstacle.FABRIC, _offers_of(problem, offers[usable.any(axis=1)]))
    usable = usable & (counts[None, :] <= table.stock_nodes[offers][:, None])
    log.apply(Obstacle.STOCK, _offers_of(problem, offers[usable.any(axis=1)]))
    at, count = np.nonzero(usable)
    flat = offers[at]
    kind = table.sku_of[flat]
    pairs = _Pairs(flat, choice[kind, count].astype(np.int64), counts[count], hours[kind, count] * 3600)
    return _with_interruptions(problem, estimates, run, pairs)


def _joined_and_sized(problem: Problem, run: Training, offers: Ints, counts: Ints) -> Bools:
    gpus = problem.table.gpus_per_node[offers][:, None] * counts[None, :]
    most = run.gpus_max if run.gpus_max is not None else np.iinfo(np.int64).max
    sized = (gpus >= run.gpus_min) & (gpus <= most)
    joined: Bools = sized & (counts[None, :] <= problem.table.joined_nodes[offers][:, None])
    return joined


def _with_interruptions(problem: Problem, estimates: Estimates, run: Run, pairs: _Pairs) -> _Pairs:
    rates = problem.table.interruptions_per_hour[pairs.offer]
    if not isinstance(run, Training) or not rates.any():
        return pairs
    needed, row = pairs.needed_s.copy(), estimates.row_of[run.name]
    kinds = problem.table.sku_of[pairs.offer]
    touched = rates > 0
    for kind, choice in sorted(
        {(int(k), int(c)) for k, c in zip(kinds[touched], pairs.choice[touched], strict=True)}
    ):
        mask = touched & (kinds == kind) & (pairs.choice == choice)
        needed[mask] = estimates.training.hours_at(row, kind, choice, rates[mask]) * 3600
    return _Pairs(pairs.offer, pairs.choice, pairs.nodes, needed)


def _batch_hours(problem: Problem, estimates: Estimates, run: Batch) -> tuple[Floats, Ints]:
    """Hours [K, N] of the fastest configuration, and its index."""
    row, table = estimates.row_of[run.name], estimates.serving
    counts = np.asarray(BATCH_NODES, dtype=np.int64)
    best = np.full((len(problem.table.skus), len(counts)), np.inf)
    chosen = np.zeros(best.shape, dtype=np.int64)
    for c, config in enumerate(table.configs):
        for k, sku in enumerate(problem.table.skus):
            if not table.fits[row, k, c] or config.gpus_per_replica > sku.gpus_per_node:
                continue
            replicas = counts * (sku.gpus_per_node // config.gpus_per_replica)
            rate = replicas * table.requests_per_s[row, k, c]
            hours = (table.cold_start_s[row, k, c] + run.requests / rate) / 3600
            better = hours < best[k]
            best[k, better], chosen[k, better] = hours[better], c
    return best, chosen


def _held(needed_s: Floats) -> tuple[Ints, Floats]:
    """Whole seconds to hold, and the run's length to the microsecond."""
    micro = np.rint(needed_s * 1e6)
    return np.ceil(micro / 1e6).astype(np.int64), micro / 1e6


_Part = tuple[Ints, Ints, Ints, Ints, Ints, Floats, Floats, Floats]


def _free_starts(problem: Problem, run: Run, pairs: _Pairs) -> _Part:
    pairs = pairs.where(~problem.table.is_window[pairs.offer])
    start = first_second(problem, run)
    held, length = _held(pairs.needed_s)
    cost = pairs.nodes * problem.table.node_cost_usd(pairs.offer, held)
    starts = np.full(len(held), start, dtype=np.int64)
    return (
        pairs.offer,
        pairs.choice,
        pairs.nodes,
        starts,
        starts + held,
        start + length,
        cost,
        pairs.needed_s,
    )


def _window_starts(problem: Problem, windows: WindowRows, run: Run, pairs: _Pairs) -> list[_Part]:
    parts = []
    pairs = pairs.where(problem.table.is_window[pairs.offer])
    for offer in np.unique(pairs.offer):
        rows = np.flatnonzero(windows.offer == offer)
        if len(rows):
            parts.append(_window_part(problem, windows, run, pairs.where(pairs.offer == offer), rows))
    return parts


def _window_part(
    problem: Problem, windows: WindowRows, run: Run, pairs: _Pairs, rows: NDArray[np.intp]
) -> _Part:
    """Node counts × starts of one window offer."""
    offer = int(windows.offer[rows[0]])
    p, r = (flat.ravel() for flat in np.meshgrid(np.arange(len(pairs.offer)), rows, indexing="ij"))
    _, length = _held(pairs.needed_s[p])
    begin = np.maximum(windows.start_s[r], first_instant_s(problem, run))
    least = begin + length + windows.teardown_s[r] - windows.start_s[r]
    wanted = windows.start_s[r] + cut_duration_s(problem, offer, least)
    wanted = np.where(windows.whole[r], windows.free_until_s[r], wanted)
    fits = begin + length <= np.minimum(wanted - windows.teardown_s[r], last_second(problem, run))
    fits &= (wanted <= windows.free_until_s[r]) & (pairs.nodes[p] <= windows.nodes[r])
    p, r = p[fits], r[fits]
    until: Ints = wanted[fits].astype(np.int64)
    length_s: Ints = until - windows.start_s[r]
    cut = problem.table.node_cost_usd(windows.offer[r], length_s)
    nodes = pairs.nodes[p]
    price: Floats = np.where(windows.whole[r], windows.node_cost_usd[r], cut)
    cost: Floats = price * nodes
    end = begin[fits] + length[fits]
    return windows.offer[r], pairs.choice[p], nodes, windows.start_s[r], until, end, cost, pairs.needed_s[p]


def build_run_column(
    problem: Problem, estimates: Estimates, found: RunCandidates, index: int
) -> Column | None:
    """Candidate ``index`` as an exact column; None when its exact length passes a limit."""
    run, offer, nodes = found.run, int(found.offer[index]), int(found.nodes[index])
    needed = _needed_s(problem, estimates, found, index)
    own_start, until = int(found.start_s[index]), int(found.until_s[index])
    held, length = (float(a[0]) for a in _held(np.array([needed])))
    is_window = problem.table.is_window[offer]
    begin = max(float(own_start), first_instant_s(problem, run)) if is_window else float(own_start)
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
    column = Column(run.name, (piece,), cost, _penalty_cents(problem, run, end), end)
    return with_switching(problem, column)


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
    estimate = estimates.training.estimate(row, kind, int(found.choice[index]), rate)
    return estimate["hours"] * 3600
