"""An old plan as a warm start: its columns at today's prices, and the cost of leaving them.

A placement becomes a column only if today's gates, windows, stock, demand and estimates still allow it. The
rest is left to the search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

import numpy as np

from broker.domain.market.billing import holdings
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import Batch, Serving, Training
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.carried import Past
from optimizer.placement.fleets.columns import due_s, expecting, time_of
from optimizer.placement.fleets.rules import fleet_rules
from optimizer.placement.problem.columns import (
    Column,
    Piece,
    Span,
    build_segments,
    in_cents,
    price_cents,
    with_switching,
)
from optimizer.placement.problem.delays import delay_cents
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.gates import open_gates
from optimizer.placement.problem.problem import Bools, Floats, Held, Ints, Problem
from optimizer.placement.problem.transfers import with_transfers
from optimizer.placement.problem.units import HOUR_S, FleetCase, with_remaining_stock, with_units
from optimizer.placement.runs.candidates import RunCandidates, first_seconds
from optimizer.placement.runs.columns import (
    BatchPart,
    begun_later,
    build_parts_column,
    build_run_column,
)
from optimizer.placement.search.plan_state import PlanState


@dataclass(frozen=True, slots=True)
class WarmStart:
    """What a new plan starts from.

    - ``leaving_usd`` by workload: cost of leaving what the plan holds; it steers the search and is on no
      bill.
    - ``frozen_before``: whatever starts before this instant stays, if possible; a service that already runs
      may change.
    - ``past``: the input of the old plan; if given, a bound is available before anything is estimated.
    - ``frozen``: workloads that stay, if possible, whenever they start.
    - ``is_continued``: the search of the plan goes on, and its limit counts the first repair as well.
    """

    plan: Plan
    leaving_usd: Mapping[str, Decimal] = field(default_factory=dict)
    frozen_before: datetime | None = None
    past: Past | None = None
    frozen: frozenset[str] = frozenset()
    is_continued: bool = False


def held_of(problem: Problem, estimates: Estimates, warm: WarmStart) -> dict[str, Held]:
    """The holdings of each workload that has a cost of leaving; an offer that is gone cannot be kept."""
    found = {}
    for name, usd in warm.leaving_usd.items():
        placements = [p for p in warm.plan.placements_of(name) if p.sized_id in problem.index_of]
        choices = [_choice_of(problem, estimates, placement) for placement in placements]
        if not placements or None in choices:
            continue
        pieces = frozenset(
            (problem.index_of[p.sized_id], choice)
            for p, choice in zip(placements, choices, strict=True)
            if choice is not None
        )
        workload = problem.request.workload(name)
        start = None
        if not isinstance(workload, Serving):
            start = min(span[0] for p in placements for span in _spans_of(problem, p))
        found[name] = Held(pieces, in_cents(usd), start)
    return found


def matched(candidates: Candidates, warm: WarmStart) -> dict[str, Column]:
    """Columns of the workloads that can stay as they are, at today's prices and together within stock."""
    problem, state = candidates.problem, PlanState(candidates, {})
    order = sorted(
        problem.request.workloads,
        key=lambda w: (isinstance(w, Serving) and w.starts_after is not None, w.name),
    )
    for workload in order:
        placements = warm.plan.placements_of(workload.name)
        if not placements:
            continue
        if isinstance(workload, Serving):
            column = _fleet_of(candidates, workload, placements, state.chosen)
        else:
            column = _run_of(candidates, placements)
        if column is not None and state.allows(column):
            state.place(column)
    return state.chosen


def frozen_of(problem: Problem, warm: WarmStart, columns: Mapping[str, Column]) -> frozenset[str]:
    """The named workloads, and those that start before ``frozen_before``, except services that already
    run.
    """
    named = warm.frozen & frozenset(columns)
    if warm.frozen_before is None:
        return named
    until = problem.seconds(warm.frozen_before)
    services = {s.name for s in problem.services()}
    found = set()
    for name, column in columns.items():
        first = min((a for piece in column.pieces for a, _, _ in piece.spans), default=problem.end_s)
        if first < until and not (name in services and first <= problem.t0_s):
            found.add(name)
    return named | frozenset(found)


def _spans_of(problem: Problem, placement: Placement) -> tuple[Span, ...]:
    """Segments in whole seconds; what lies before the first possible second is dropped."""
    spans = (
        (round(problem.seconds(s.start)), round(problem.seconds(s.end)), s.nodes)
        for s in sorted(placement.segments)
    )
    return tuple((max(a, problem.t0_s), b, n) for a, b, n in spans if b > problem.t0_s)


def _choice_of(problem: Problem, estimates: Estimates, placement: Placement) -> int | None:
    """Index of the node count or of the serving configuration; None if it no longer exists."""
    workload = problem.request.workload(placement.workload)
    if isinstance(workload, Training):
        counts = estimates.node_counts
        return counts.index(placement.nodes) if placement.nodes in counts else None
    row = estimates.row_of[workload.name]
    kind = int(problem.table.sku_of[problem.index_of[placement.sized_id]])
    for choice, config in enumerate(estimates.serving.configs):
        said = (placement.precision, placement.gpus_per_replica)
        if (config.precision, config.gpus_per_replica) != said or not estimates.serving.fits[
            row, kind, choice
        ]:
            continue
        if estimates.serving.layout(row, kind, choice) == placement.parallelism:
            return choice
    return None


def _run_of(candidates: Candidates, placements: Sequence[Placement]) -> Column | None:
    """The candidate on the same offer with the same node count and start, its second part included."""
    placement = placements[0]
    problem, found = candidates.problem, candidates.runs[placement.workload]
    if isinstance(found.run, Batch):
        return _batch_of(candidates, found.run, placements)
    offer, spans = problem.index_of.get(placement.sized_id), _spans_of(problem, placement)
    if offer is None or not spans:
        return None
    if placement.nodes not in candidates.estimates.node_counts:
        return None
    start = spans[0][0]
    same = (found.offer == offer) & (found.nodes == placement.nodes) & (found.start_s <= start)
    if problem.table.is_window[offer] or len(placements) > 1:
        same &= found.start_s == start
    same &= _same_rest(problem, found, placements[1:]) & _same_recourse(
        problem, found, placement, spans[-1][1]
    )
    for index in np.flatnonzero(same):
        column = build_run_column(problem, candidates.estimates, found, int(index))
        if column is not None and column.pieces[0].spans[0][0] < start:
            column = begun_later(problem, found.run, column, start)
        if column is not None:
            return column
    return None


def _batch_of(candidates: Candidates, batch: Batch, placements: Sequence[Placement]) -> Column | None:
    """The batch in the same parts on the same offers, each with its share of the requests that are left.

    None if a part has no offer, size or time any more, or ends after the deadline.
    """
    problem, passing = candidates.problem, open_gates(candidates.problem, batch).passing
    answering = [p for p in placements if _spans_of(problem, p)]
    whole = sum(p.work_share for p in answering)
    parts: list[BatchPart] = []
    for placement in answering:
        offer = problem.index_of.get(placement.sized_id)
        choice = None if offer is None else _choice_of(problem, candidates.estimates, placement)
        if offer is None or choice is None or not passing[offer]:
            return None
        spans = _spans_of(problem, placement)
        start, until, nodes = spans[0][0], spans[-1][1], placement.nodes
        if not problem.table.is_window[offer]:
            start = max(start, int(first_seconds(problem, batch, np.array([offer]))[0]))
        requests = batch.requests * placement.work_share / whole
        parts.append(BatchPart(offer, choice, nodes, start, until, requests))
    if not parts or (batch.parts is not None and len(parts) > batch.parts):
        return None
    return build_parts_column(problem, candidates.estimates, batch, parts)


def _same_rest(problem: Problem, found: RunCandidates, rest: Sequence[Placement]) -> Bools:
    """Candidates [X] with the same second part as the plan, or without one if the plan has none."""
    if not rest:
        whole: Bools = found.split < 0
        return whole
    offer, spans = problem.index_of.get(rest[0].sized_id), _spans_of(problem, rest[0])
    same = found.split >= 0
    if len(rest) > 1 or offer is None or not spans or not len(found.splits):
        return np.zeros_like(same)
    rows = found.split[same]
    same[same] = (found.splits.offer[rows] == offer) & (found.splits.start_s[rows] == spans[0][0])
    return same


def _same_recourse(problem: Problem, found: RunCandidates, placement: Placement, until_s: int) -> Bools:
    """Candidates [X] with the recourse of the plan, or without one if the plan has none."""
    if placement.recourse is None:
        none: Bools = found.recourse < 0
        return none
    row = problem.row_of(placement.recourse.offer_id)
    same: Bools = (found.recourse == (-2 if row is None else row)) & (found.until_s == until_s)
    return same


def _fleet_of(
    candidates: Candidates, service: Serving, placements: Sequence[Placement], chosen: Mapping[str, Column]
) -> Column | None:
    """The same fleet at today's prices, if it still carries the traffic."""
    problem = candidates.problem
    case = _over(problem, candidates.fleets[service.name], placements)
    after_s, place = None, None
    if service.starts_after is not None:
        if service.starts_after not in chosen:
            return None
        after_s, place = chosen[service.starts_after].end
    pieces = []
    for placement in placements:
        offer, spans = problem.index_of.get(placement.sized_id), _spans_of(problem, placement)
        if not spans:
            continue
        choice = None if offer is None else _choice_of(problem, candidates.estimates, placement)
        if offer is None or choice is None or _unit_of(case, offer, choice) is None:
            return None
        if spans[-1][1] > problem.table.gone_s[offer]:
            return None
        pieces.append(Piece(offer, choice, spans, price_cents(problem, offer, spans)))
    pieces.sort(key=lambda piece: (piece.offer, piece.choice))
    delay = delay_cents(problem, service.name, after_s)
    column = Column(service.name, tuple(pieces), 0, after_s=after_s, after_place=place, delay_cents=delay)
    column = with_switching(problem, with_transfers(problem, expecting(problem, case, column)))
    return column if pieces and serves(problem, case, column) else None


def _over(problem: Problem, case: FleetCase, placements: Sequence[Placement]) -> FleetCase:
    """The case extended by the offers of some placements.

    Each offer is added alone, because next to a cheaper one that could carry everything it would be dropped.
    """
    offers = {o for p in placements if (o := problem.index_of.get(p.sized_id)) is not None}
    for offer in sorted(offers.difference(case.units.offer.tolist())):
        free = np.zeros(len(problem.table), dtype=np.int64)
        free[offer] = problem.table.stock_nodes[offer]
        case = with_units(case, with_remaining_stock(case, free).units)
    return case


def _unit_of(case: FleetCase, offer: int, choice: int) -> int | None:
    at = np.flatnonzero((case.units.offer == offer) & (case.units.config == choice))
    return int(at[0]) if len(at) else None


def serves(problem: Problem, case: FleetCase, column: Column) -> bool:
    """Whether a fleet satisfies demand, spares and zones at every instant from its first due one."""
    units = [_unit_of(case, piece.offer, piece.choice) for piece in column.pieces]
    if None in units:
        return False
    at = np.array(units, dtype=np.int64)
    time = time_of(problem, case, column.after_s)
    due = due_s(time, float(case.units.cold_s[at].max(initial=0.0)))
    if due >= time.end_s:
        return True
    ready = [
        _ready(problem, piece, float(case.units.cold_s[u]))
        for piece, u in zip(column.pieces, at, strict=True)
    ]
    edges = np.concatenate([np.concatenate(steps[:2]) for steps in ready])
    hours = np.arange(int(due // HOUR_S), len(case.demand)) * float(HOUR_S)
    instants = np.unique(np.concatenate(([due], edges, hours)))
    instants = instants[(instants >= due) & (instants < time.end_s)]
    count = np.array([_units_at(steps, instants) for steps in ready]) // case.units.nodes[at][:, None]
    on = count > 0
    hour = (instants // HOUR_S).astype(np.int64)
    share = np.where(hour >= case.later_from, case.units.later_share[at][:, None], 1.0)
    kinds = len({problem.table.offers[piece.offer].sku.gpu for piece in column.pieces})
    beside = fleet_rules(problem, case.service).kinds_share(case.units.deviation[at], kinds)
    share = np.where(hour >= case.later_from, share, beside[:, None])
    rate = (case.units.requests_per_s[at][:, None] * share * count).sum(axis=0)
    largest = np.where(on, case.units.largest[at][:, None] * share, 0.0).max(axis=0)
    zones = sum(on[case.units.zone[at] == zone].any(axis=0) for zone in np.unique(case.units.zone[at]))
    demand = case.demand[hour]
    left = rate - case.spare * largest
    enough = (left >= demand * (1 - 1e-9)) & ((case.idle == 0) | (left > case.idle * largest * (1 + 1e-9)))
    return bool(((enough & (np.asarray(zones) >= case.zones)) | (demand <= 0)).all())


_Steps = tuple[Floats, Floats, Ints]


def _ready(problem: Problem, piece: Piece, cold_s: float) -> _Steps:
    """When nodes of a piece are ready: starts, ends and counts."""
    found = [
        (problem.seconds(h.window.start) + cold_s, problem.seconds(h.window.end), h.nodes)
        for h in holdings(build_segments(problem, piece.spans))
    ]
    rows = np.array([row for row in found if row[0] < row[1]], dtype=np.float64).reshape(-1, 3)
    return rows[:, 0], rows[:, 1], rows[:, 2].astype(np.int64)


def _units_at(steps: _Steps, instants: Floats) -> Ints:
    """Nodes that are ready at each instant."""
    starts, ends, nodes = steps
    begun, over = np.argsort(starts, kind="stable"), np.argsort(ends, kind="stable")
    up = np.concatenate(([0], np.cumsum(nodes[begun])))
    down = np.concatenate(([0], np.cumsum(nodes[over])))
    found: Ints = (
        up[np.searchsorted(starts[begun], instants, side="right")]
        - down[np.searchsorted(ends[over], instants, side="right")]
    )
    return found
