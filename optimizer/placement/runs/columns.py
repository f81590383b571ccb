"""Exact columns of run candidates: whole, or in two consecutive parts.

The hours of each part are those of its estimate; the cost is that of ``broker.domain.market.billing``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from broker.domain.basics.confidence import quantile_factor
from broker.domain.basics.estimate import Estimate
from broker.domain.planning.batch_hours import kept_share
from broker.domain.planning.recourse import Recourse, Rest, Work, rest_of
from broker.domain.planning.workload import Batch, Training, part_of
from optimizer.placement.problem.columns import (
    Column,
    Fallback,
    Piece,
    Span,
    held_spans,
    in_cents,
    in_usd,
    late_cents,
    price_cents,
    with_switching,
)
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.problem import Problem
from optimizer.placement.problem.transfers import (
    handover_s,
    place_of,
    weights_place,
    with_transfers,
)
from optimizer.placement.problem.windows import listed_spans, usable_until_s
from optimizer.placement.runs.candidates import Run, RunCandidates, begins_s, deadline_s, held_s, last_second


def build_run_column(
    problem: Problem, estimates: Estimates, found: RunCandidates, index: int
) -> Column | None:
    """Candidate ``index`` as an exact column; None if its exact length exceeds a limit."""
    run, split = found.run, int(found.split[index])
    offer, choice, nodes = int(found.offer[index]), int(found.choice[index]), int(found.nodes[index])
    own_start, until = int(found.start_s[index]), int(found.until_s[index])
    if isinstance(run, Batch):
        return build_parts_column(
            problem, estimates, run, [BatchPart(offer, choice, nodes, own_start, until, run.requests)]
        )
    if found.recourse[index] >= 0:
        bought = own_start, until, nodes
        return build_recourse_column(
            problem, estimates, run, Held(offer, choice, bought), int(found.recourse[index])
        )
    share = 1.0 if split < 0 else float(found.splits.share[split])
    needed = needed_s(problem, estimates, run, offer, choice, share)
    first = _part(problem, run, offer, choice, (own_start, until, nodes), needed, share)
    if first is None or split < 0:
        return None if first is None else _column(problem, run, (first,))
    offer, rows = int(found.splits.offer[split]), found.splits
    bought = int(rows.start_s[split]), int(rows.until_s[split]), int(rows.nodes[split])
    needed = needed_s(problem, estimates, run, offer, choice, 1.0 - share)
    second = _part(problem, run, offer, choice, bought, needed, 1.0 - share)
    if second is None or bought[0] < first[1] + handover_s(problem, run, first[0].offer, offer):
        return None
    return _column(problem, run, (first, second))


@dataclass(frozen=True, slots=True)
class BatchPart:
    """What is bought of an offer for a part of a batch, and the requests that it answers."""

    offer: int
    choice: int
    nodes: int
    start_s: int
    until_s: int
    requests: float


def build_parts_column(
    problem: Problem, estimates: Estimates, run: Batch, parts: Sequence[BatchPart]
) -> Column | None:
    """A batch in the given parts as an exact column; None if the exact length of one exceeds a limit."""
    made = []
    for part in sorted(parts, key=lambda part: (part.start_s, part.offer, part.choice)):
        needed = batch_needed_s(problem, estimates, run, part)
        bought = part.start_s, part.until_s, part.nodes
        piece = _part(problem, run, part.offer, part.choice, bought, needed, part.requests / run.requests)
        if piece is None:
            return None
        made.append(piece)
    return _column(problem, run, tuple(made)) if made else None


@dataclass(frozen=True, slots=True)
class Needed:
    """Seconds of a part of a run: those that suffice with its confidence, their mean, and those that suffice
    with the chance with which the budget holds (0: no such chance is asked for).
    """

    sure_s: float
    mean_s: float
    budget_s: float = 0.0


def batch_needed_s(problem: Problem, estimates: Estimates, run: Batch, part: BatchPart) -> Needed:
    """Seconds of a part of a batch, with what interruptions lose."""
    row, kind = estimates.row_of[run.name], int(problem.table.sku_of[part.offer])
    size = estimates.serving.configs[part.choice].gpus_per_replica
    replicas = part.nodes * (int(problem.table.gpus_per_node[part.offer]) // size)
    cold_s = float(estimates.cold_s[row, kind, part.choice])
    rate = replicas * float(estimates.serving.requests_per_s[row, kind, part.choice])
    kept = kept_share(run, cold_s, float(problem.table.interruptions_per_hour[part.offer]))
    share = float(estimates.serving.mean_share[row, kind, part.choice])
    work_s = part.requests / rate
    return Needed((cold_s + work_s) / kept, (cold_s + work_s * share) / kept)


@dataclass(frozen=True, slots=True)
class Held:
    """What is bought of an offer for a whole run."""

    offer: int
    choice: int
    bought: Span


def build_recourse_column(
    problem: Problem, estimates: Estimates, run: Training, held: Held, elsewhere: int
) -> Column | None:
    """A run in a window that may be too short for it, with the rest ``elsewhere``; None if the exact length
    exceeds a limit.
    """
    offer, choice, (start, until, nodes) = held.offer, held.choice, held.bought
    is_window = problem.table.is_window[offer]
    begin = max(float(start), begins_s(problem, run, offer)) if is_window else float(start)
    leaves = usable_until_s(problem, offer, until)
    rest = _rest(problem, estimates, run, held, elsewhere, (leaves - begin) / 3600)
    if rest is None or until > problem.table.gone_s[offer]:
        return None
    copied, copy_usd = problem.terms.going_on(run, place_of(problem, offer), place_of(problem, elsewhere))
    again = leaves + copied / timedelta(seconds=1)
    (_, mean), (length, _) = held_s(3600 * np.array([rest.sure_hours, rest.mean_hours]))
    end = again + float(length)
    if end > last_second(problem, run) or math.ceil(end) > problem.table.gone_s[elsewhere]:
        return None
    spans: tuple[Span, ...] = ((start, until, nodes),)
    if _is_listed(problem, offer):
        spans = tuple(listed_spans(problem, offer, start, until, nodes)) or spans
    piece = Piece(offer, choice, spans, price_cents(problem, offer, spans))
    first, count = math.floor(again), estimates.node_counts[choice]
    rest_cents = price_cents(problem, elsewhere, ((first, first + int(mean), count),))
    usd = in_usd(rest_cents) + copy_usd
    offer_id = problem.table.offers[elsewhere].offer_id
    recourse = Recourse(rest.chance, offer_id, rest.mean_hours, usd)
    other = Piece(elsewhere, choice, ((first, math.ceil(end), count),), in_cents(usd), held_s=int(mean))
    column = _column(problem, run, ((piece, end),))
    return replace(column, fallback=Fallback(other, recourse), fallback_cents=in_cents(recourse.expected_usd))


def _rest(
    problem: Problem, estimates: Estimates, run: Training, held: Held, elsewhere: int, usable_hours: float
) -> Rest | None:
    choice, table = held.choice, problem.table

    def work(offer: int) -> Work:
        rate, kind = float(table.interruptions_per_hour[offer]), int(table.sku_of[offer])
        return Work.of(part_estimate(estimates, run, kind, choice, rate, 1.0), estimates.startup_hours)

    count, each = estimates.node_counts[choice], int(table.gpus_per_node[held.offer])
    again_hours = estimates.estimator.begun_again_hours(run, count, each)
    return rest_of(work(held.offer), work(elsewhere), usable_hours, again_hours)


def _part(
    problem: Problem,
    run: Run,
    offer: int,
    choice: int,
    bought: Span,
    needed: Needed,
    share: float = 1.0,
) -> tuple[Piece, float] | None:
    """A piece and the end of its work; None if its exact length exceeds a limit."""
    own_start, until, nodes = bought
    held, length = (float(a[0]) for a in held_s(np.array([needed.sure_s])))
    mean = int(held_s(np.array([needed.mean_s]))[0][0])
    is_window, is_held_on = problem.table.is_window[offer], problem.table.is_held_on[offer]
    begin = max(float(own_start), begins_s(problem, run, offer)) if is_window else float(own_start)
    if not is_window:
        until = own_start + max(int(held), mean if is_held_on else 0)
    end = begin + length
    last = end if is_window else max(end, float(until))
    if last > last_second(problem, run) or end > until or until > problem.table.gone_s[offer]:
        return None
    if share < 1.0 and end > usable_until_s(problem, offer, until):
        return None
    spans: tuple[Span, ...] = ((own_start, until, nodes),)
    if is_window and (listed := listed_spans(problem, offer, own_start, until, nodes)):
        spans = tuple(listed) if _is_listed(problem, offer) else spans
    piece = Piece(offer, choice, spans, price_cents(problem, offer, spans), share)
    if not is_held_on:
        return piece, end
    if needed.mean_s < needed.sure_s:
        piece = replace(piece, cost_cents=price_cents(problem, offer, held_spans(spans, mean)), held_s=mean)
    if needed.budget_s:
        longest = int(held_s(np.array([needed.budget_s]))[0][0])
        paid = price_cents(problem, offer, ((own_start, own_start + longest, nodes),))
        piece = replace(piece, risk_cents=paid - piece.cost_cents)
    return piece, end


def _column(problem: Problem, run: Run, parts: tuple[tuple[Piece, float], ...]) -> Column:
    pieces = tuple(piece for piece, _ in parts)
    last, end = max(parts, key=lambda part: part[1])
    column = Column(
        run.name,
        pieces,
        sum(piece.cost_cents for piece in pieces),
        _penalty_cents(problem, run, end),
        end,
        place=weights_place(problem, run.name, last.offer),
        risk_cents=sum(piece.risk_cents for piece in pieces),
    )
    return with_switching(problem, with_transfers(problem, column))


def _penalty_cents(problem: Problem, run: Run, end_s: float) -> int:
    late_rate = run.late_usd_per_hour if isinstance(run, Training) else None
    return late_cents(problem, end_s, deadline_s(problem, run), late_rate)


def begun_later(problem: Problem, run: Run, column: Column, start_s: int) -> Column | None:
    """A column outside windows moved to ``start_s``, with the same length and cost.

    None if that is too late, the offer has disappeared by then, or the run is split.
    """
    if len(column.pieces) > 1:
        return None
    (piece,) = column.pieces
    ((first, last, nodes),) = piece.spans
    end, until = column.end_s + start_s - first, start_s + last - first
    if end > last_second(problem, run) or until > problem.table.gone_s[piece.offer]:
        return None
    moved = replace(piece, spans=((start_s, until, nodes),))
    fallback = None if column.fallback is None else _begun_later(column.fallback, start_s - first)
    if fallback is not None and fallback.piece.spans[0][1] > problem.table.gone_s[fallback.piece.offer]:
        return None
    late = _penalty_cents(problem, run, end)
    later = replace(column, pieces=(moved,), end_s=end, penalty_cents=late, fallback=fallback)
    return with_switching(problem, later)


def _begun_later(fallback: Fallback, by_s: int) -> Fallback:
    ((start, until, nodes),) = fallback.piece.spans
    return replace(fallback, piece=replace(fallback.piece, spans=((start + by_s, until + by_s, nodes),)))


def _is_listed(problem: Problem, offer: int) -> bool:
    terms = problem.table.offers[offer].window
    return terms is not None and terms.kind == "listed"


def needed_s(
    problem: Problem, estimates: Estimates, run: Training, offer: int, choice: int, share: float = 1.0
) -> Needed:
    """Seconds of a part of a run according to the estimate that the plan will show."""
    rate = float(problem.table.interruptions_per_hour[offer])
    kind = int(problem.table.sku_of[offer])
    estimate = part_estimate(estimates, run, kind, choice, rate, share)
    slower = estimate.high["hours"] / estimate["hours"] - 1.0
    longest = estimate["hours"] * _budget_factor(problem, slower)
    return Needed(estimate.sure_hours * 3600, estimate.mean_hours * 3600, longest * 3600)


def _budget_factor(problem: Problem, slower: float) -> float:
    """The time that suffices with the chance with which the budget holds, divided by the median; 0 where no
    such chance is asked for. ``slower``: relative half-width of the slow side of the 80 % interval.
    """
    chance = problem.request.budget_confidence
    return 0.0 if chance is None else quantile_factor(slower, chance)


def part_estimate(
    estimates: Estimates, run: Training, kind: int, choice: int, rate: float, share: float
) -> Estimate:
    """The performance core's estimate of a part of a run."""

    def asked() -> Estimate:
        if share == 1.0:
            return estimates.training.estimate(estimates.row_of[run.name], kind, choice, rate)
        return estimates.part(part_of(run, share), kind, choice, rate)

    return estimates.kept.once(("part", run.name, kind, choice, rate, share), asked)
