"""What a run lacks at the upper end of its estimate's 80 % interval, as clauses: held time, time before the
deadline, GPU memory; and what the rates of several kinds of GPU count. It does not influence the plan.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.domain.basics.confidence import MEDIAN
from broker.domain.basics.money import usd_words
from broker.domain.planning.recourse import Recourse
from broker.domain.planning.workload import Batch, Serving, Training, Workload
from optimizer.performance.hardware.sku_arrays import usable_memory_bytes
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.explain.clauses import duration
from optimizer.placement.explain.extract import estimate_of
from optimizer.placement.problem.columns import Column, Piece, in_usd
from optimizer.placement.problem.windows import usable_until_s
from optimizer.placement.runs.candidates import Run, begins_s, deadline_s

UPPER_END = "at the upper end of its 80 % interval"
LEAST_OVER_HOURS = 1 / 60
"""Less than a minute is not reported."""


def risk_rules(candidates: Candidates, workload: Workload, column: Column, piece: Piece) -> Iterator[str]:
    """What the upper end exceeds: the interval that can be held, the deadline, or the memory of a GPU."""
    if isinstance(workload, Serving):
        yield from _kinds_rule(candidates, workload, column)
        return
    if column.fallback is None:
        yield from _stretch_rule(candidates, workload, piece)
    else:
        yield from _recourse_rule(candidates, workload, piece, column.fallback.recourse)
    if piece is _last(candidates, workload, column):
        yield from _deadline_rule(candidates, workload, column)
    if isinstance(workload, Training):
        yield from _memory_rule(candidates, workload, piece)


def _kinds_rule(candidates: Candidates, service: Serving, column: Column) -> Iterator[str]:
    """At which confidence the replicas of each kind of GPU count, if there are several."""
    offers, confidence = candidates.problem.table.offers, service.planned_confidence
    kinds = len({offers[piece.offer].sku.gpu for piece in column.pieces})
    if kinds > 1 and confidence > MEDIAN:
        each = f"{100 * confidence ** (1 / kinds):.0f} %"
        yield (
            f"as the rates of its {kinds} kinds of GPU err apart, each counts at the rate that holds with "
            f"{each}, and all of them hold with {100 * confidence:.0f} %"
        )


def _stretch_rule(candidates: Candidates, run: Run, piece: Piece) -> Iterator[str]:
    problem = candidates.problem
    begin = _begin_s(candidates, run, piece)
    if problem.table.is_window[piece.offer]:
        until, what = usable_until_s(problem, piece.offer, piece.spans[-1][1]), "the window holds"
    else:
        until, what = float(problem.table.gone_s[piece.offer]), "the offer is there for"
    held = (until - begin) / 3600
    needed, most = _hours(candidates, run, piece)
    if most > held + LEAST_OVER_HOURS:
        yield _both(f"{what} {duration(held)}", needed, most)


def _recourse_rule(candidates: Candidates, run: Run, piece: Piece, told: Recourse) -> Iterator[str]:
    """Where the run goes on with which chance, and what the same offer costs if it is held long enough."""
    row = candidates.problem.row_of(told.offer_id)
    assert row is not None
    other, found = candidates.problem.table.offers[row], candidates.runs[run.name]
    where = f"{other.sku.gpu} at {other.provider} in {other.region}"
    yield (
        f"with a chance of {100 * told.chance:.0f} % it takes longer than it holds its nodes: the rest then "
        f"runs on {where}, {duration(told.hours)} on average for {usd_words(told.usd)}, of which "
        f"{usd_words(told.expected_usd)} are counted"
    )
    whole = (found.offer == piece.offer) & (found.recourse < 0) & (found.split < 0)
    if whole.any():
        usd = usd_words(in_usd(round(100 * float(found.total_usd[whole].min()))))
        share = f"{100 * run.planned_confidence:.0f} %"
        yield f"held for as long as suffices with a chance of {share}, it would cost {usd}"


def _deadline_rule(candidates: Candidates, run: Run, column: Column) -> Iterator[str]:
    needed, most, left = _until_deadline(candidates, run, column)
    if most > left + LEAST_OVER_HOURS:
        yield _both(f"the deadline leaves {duration(left)}", needed, most)


def overrun_hours(candidates: Candidates, run: Run, column: Column) -> float:
    """Hours by which the upper end of the run's 80 % interval passes its deadline; 0 where it does not."""
    _, most, left = _until_deadline(candidates, run, column)
    return most - left if most > left + LEAST_OVER_HOURS else 0.0


def _until_deadline(candidates: Candidates, run: Run, column: Column) -> tuple[float, float, float]:
    """From the run's begin on: hours that it needs, needs at the upper end, and has until its deadline.

    Of a batch these are those of the part that ends last at its upper end, as parts do not wait for others.
    """
    pieces = (_last(candidates, run, column),) if isinstance(run, Batch) else column.pieces
    begin = _begin_s(candidates, run, pieces[0])
    left = (deadline_s(candidates.problem, run) - begin) / 3600
    each = [_hours(candidates, run, piece) for piece in pieces]
    needed = each[0][0] if isinstance(run, Batch) else (column.end_s - begin) / 3600
    return needed, needed + sum(high - value for value, high in each), left


def _last(candidates: Candidates, run: Run, column: Column) -> Piece:
    """The last part of a run; of a batch, the part that ends last at the upper end."""
    if not isinstance(run, Batch):
        return column.pieces[-1]
    ends = [_begin_s(candidates, run, p) / 3600 + _hours(candidates, run, p)[1] for p in column.pieces]
    return column.pieces[ends.index(max(ends))]


def _memory_rule(candidates: Candidates, run: Training, piece: Piece) -> Iterator[str]:
    estimate = estimate_of(candidates, run, piece)
    value, high = (of["memory_gb_per_gpu"] for of in (estimate.value, estimate.high))
    room = _memory_gb(candidates, piece)
    if high > room:
        yield (
            f"a GPU has {room:,.0f} GB of memory; the run needs {value:,.0f} GB of it, and {high:,.0f} GB "
            f"{UPPER_END}"
        )


def _both(what: str, needed: float, most: float) -> str:
    return f"{what}; the run needs {duration(needed)}, and {duration(most)} {UPPER_END}"


def _begin_s(candidates: Candidates, run: Run, piece: Piece) -> float:
    """When the work of a piece begins; a window may be held earlier."""
    start = float(piece.spans[0][0])
    if not candidates.problem.table.is_window[piece.offer]:
        return start
    return max(start, begins_s(candidates.problem, run, piece.offer))


def _hours(candidates: Candidates, run: Run, piece: Piece) -> tuple[float, float]:
    """Hours of a piece: expected, and at the upper end of the interval."""
    estimate = estimate_of(candidates, run, piece)
    return estimate.value["hours"], estimate.high["hours"]


def _memory_gb(candidates: Candidates, piece: Piece) -> float:
    """Usable memory of a GPU, or what the seller states if the GPU is unknown."""
    table, estimator = candidates.problem.table, candidates.estimates.estimator
    sku = table.skus[int(table.sku_of[piece.offer])]
    spec = estimator.gpus.get(sku.gpu)
    if spec is None:
        return sku.gpu_memory_gb
    return usable_memory_bytes(sku.gpu_memory_gb, spec, estimator.calibration) / 1e9
