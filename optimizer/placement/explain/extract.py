"""From chosen columns to the plan's placements, with costs to the cent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from broker.domain.basics.estimate import Estimate, Parallelism
from broker.domain.basics.money import ZERO, to_cents
from broker.domain.basics.node_launch import COLD_START, ColdStart
from broker.domain.basics.window import Segment, Window
from broker.domain.market.billing import billed_ahead, billed_seconds, holdings, node_hours
from broker.domain.market.offer import Offer
from broker.domain.planning.batch_hours import with_hours
from broker.domain.planning.plan import Placement, Why
from broker.domain.planning.relaunch import Relaunch
from broker.domain.planning.stages import Stage, stages_of
from broker.domain.planning.transfer import Transfer
from broker.domain.planning.window_use import WindowUse, use_of
from broker.domain.planning.workload import Batch, Precision, Serving, Training, Workload
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.problem.columns import Column, Piece, build_segments, in_usd
from optimizer.placement.problem.problem import Problem
from optimizer.placement.problem.relaunches import relaunch_of
from optimizer.placement.problem.transfers import transfers_of
from optimizer.placement.problem.windows import usable_until_s
from optimizer.placement.runs.candidates import begins_s
from optimizer.placement.runs.columns import part_estimate

WhyOf = Callable[[Column, Piece], Why]


def build_placements(candidates: Candidates, columns: Iterable[Column], why: WhyOf) -> tuple[Placement, ...]:
    """Placements of the chosen columns, in the request's order."""
    order = {w.name: i for i, w in enumerate(candidates.problem.request.workloads)}
    placements = [
        (order[column.workload], number, _placement(candidates, column, piece, data, why))
        for column in columns
        for number, (piece, data) in enumerate(
            zip(column.pieces, transfers_of(candidates.problem, column), strict=True)
        )
    ]
    return tuple(p for *_, p in sorted(placements, key=lambda row: row[:2]))


def _placement(
    candidates: Candidates, column: Column, piece: Piece, transfers: tuple[Transfer, ...], why: WhyOf
) -> Placement:
    problem = candidates.problem
    workload = problem.request.workload(column.workload)
    offer = problem.table.offers[piece.offer]
    segments = build_segments(problem, piece.held)
    nodes = working_nodes(candidates, workload, piece)
    gpus = nodes * offer.sku.gpus_per_node
    layout, precision, replicas, gpus_each = _shape(candidates, workload, piece, nodes)
    estimate = estimate_of(candidates, workload, piece)
    cost = in_usd(piece.cost_cents)
    return Placement(
        workload=workload.name,
        kind=workload.kind,
        offer_id=offer.offer_id,
        provider=offer.provider,
        region=offer.region,
        zone=offer.zone,
        sku=offer.sku.name,
        gpu=offer.sku.gpu,
        tier=offer.tier,
        nodes=nodes,
        gpus=gpus,
        replicas=replicas,
        gpus_per_replica=gpus_each,
        parallelism=layout,
        precision=precision,
        segments=segments,
        cost_usd=cost + sum((transfer.usd for transfer in transfers), ZERO),
        paid_unused_usd=_unused_usd(offer, workload, segments, cost, estimate, nodes),
        estimate=estimate,
        why=why(column, piece),
        window_use=_window_use(candidates, column, workload, piece, segments, cost),
        transfers=transfers,
        work_share=piece.share,
        requests=requests_of(workload, piece) if isinstance(workload, Batch) else None,
        first_request=_requests_before(workload, column, piece) if isinstance(workload, Batch) else None,
        engine=None if isinstance(workload, Training) else workload.engine,
        billed_ahead=billed_ahead(offer, segments, cost),
        cold_start=cold_start_of_piece(candidates, workload, piece),
        disk_gb=offer.chosen_disk_gb,
        memory_gb=offer.chosen_memory_gb,
        mode=offer.mode,
        stages=_stages(candidates.problem, workload),
        live_from=_live_from(problem, workload, piece, segments, estimate),
        recourse=None if column.fallback is None else column.fallback.recourse,
        relaunch=_relaunch(candidates, workload, piece),
    )


def _relaunch(candidates: Candidates, workload: Workload, piece: Piece) -> Relaunch | None:
    if not isinstance(workload, Serving):
        return None
    return relaunch_of(candidates.problem, candidates.fleets[workload.name].relaunches, piece)


def _stages(problem: Problem, workload: Workload) -> tuple[Stage, ...]:
    if not isinstance(workload, Serving):
        return ()
    return stages_of(problem.request, workload, problem.unmeasured_from(workload.name))


def _live_from(
    problem: Problem, workload: Workload, piece: Piece, segments: Sequence[Segment], estimate: Estimate
) -> datetime | None:
    """When the first replica of a service answers, in whole seconds; None for runs and batches."""
    if not isinstance(workload, Serving):
        return None
    held, first = problem.held.get(workload.name), problem.instant(problem.t0_s)
    if held is not None and (piece.offer, piece.choice) in held.pieces and segments[0].start <= first:
        return first
    cold = timedelta(seconds=math.ceil(estimate[COLD_START]))
    ready = (
        one.window.start + cold for one in holdings(segments) if one.window.start + cold < one.window.end
    )
    return min(ready, default=None)


def _window_use(
    candidates: Candidates,
    column: Column,
    workload: Workload,
    piece: Piece,
    segments: Sequence[Segment],
    cost_usd: Decimal,
) -> WindowUse | None:
    problem = candidates.problem
    terms = problem.table.offers[piece.offer].window
    if terms is None or isinstance(workload, Serving):
        return None
    begin = max(segments[0].start, problem.instant(begins_s(problem, workload, piece.offer)))
    end = problem.instant(column.end_s)
    if column.fallback is not None:
        end = problem.instant(usable_until_s(problem, piece.offer, piece.spans[-1][1]))
    if len(column.pieces) > 1:
        hours = estimate_of(candidates, workload, piece).sure_hours
        end = begin + timedelta(microseconds=round(hours * 3.6e9))
    wanted = Window(begin, end)
    return use_of(terms, segments, wanted, cost_usd)


def working_nodes(candidates: Candidates, workload: Workload, piece: Piece) -> int:
    """Nodes that work: the peak of those held, or fewer if the seller does not sell that count."""
    if isinstance(workload, Training):
        return candidates.estimates.node_counts[piece.choice]
    return max(nodes for _, _, nodes in piece.spans)


def _shape(
    candidates: Candidates, workload: Workload, piece: Piece, nodes: int
) -> tuple[Parallelism, Precision, int, int]:
    """Parallel layout, precision, replicas, and GPUs of one replica."""
    table, estimates = candidates.problem.table, candidates.estimates
    kind, row = int(table.sku_of[piece.offer]), estimates.row_of[workload.name]
    if isinstance(workload, Training):
        layout = estimates.training.layout(row, kind, piece.choice)
        return layout, workload.precision, 1, nodes * int(table.gpus_per_node[piece.offer])
    config = estimates.serving.configs[piece.choice]
    layout, replicas = (
        estimates.serving.layout(row, kind, piece.choice),
        replicas_of(candidates, workload, piece),
    )
    return layout, config.precision, replicas, config.gpus_per_replica


def replicas_of(candidates: Candidates, workload: Serving | Batch, piece: Piece) -> int:
    """Replicas of a piece at its peak."""
    nodes = working_nodes(candidates, workload, piece)
    per_node = int(candidates.problem.table.gpus_per_node[piece.offer])
    size = candidates.estimates.serving.configs[piece.choice].gpus_per_replica
    return nodes * (per_node // size) if size <= per_node else nodes // -(-size // per_node)


def estimate_of(candidates: Candidates, workload: Workload, piece: Piece) -> Estimate:
    """The performance core's estimate of a piece."""
    table, estimates = candidates.problem.table, candidates.estimates
    kind, row = int(table.sku_of[piece.offer]), estimates.row_of[workload.name]
    if isinstance(workload, Training):
        rate = float(table.interruptions_per_hour[piece.offer])
        return part_estimate(estimates, workload, kind, piece.choice, rate, piece.share)
    size = estimates.serving.configs[piece.choice].gpus_per_replica
    share = size / int(table.gpus_per_node[piece.offer])
    usd, choice = float(table.price_usd[piece.offer]) * share, piece.choice
    question = ("served", row, kind, choice, usd)
    served = estimates.kept.once(question, lambda: estimates.served(row, kind, choice, usd))
    if isinstance(workload, Serving):
        return served
    requests, replicas = requests_of(workload, piece), replicas_of(candidates, workload, piece)
    return with_hours(served, workload, requests, replicas, float(table.interruptions_per_hour[piece.offer]))


def requests_of(batch: Batch, piece: Piece) -> float:
    """The requests that a piece of a batch answers."""
    return batch.requests if piece.share == 1.0 else round(batch.requests * piece.share, 6)


def _requests_before(batch: Batch, column: Column, piece: Piece) -> float:
    """The requests that the parts before a piece answer."""
    before = column.pieces[: column.pieces.index(piece)]
    return round(sum(requests_of(batch, one) for one in before), 6)


def cold_start_of_piece(candidates: Candidates, workload: Workload, piece: Piece) -> ColdStart | None:
    """The phases from the order of a piece to its first token; None for training runs."""
    if isinstance(workload, Training):
        return None
    table, estimates = candidates.problem.table, candidates.estimates
    kind = int(table.sku_of[piece.offer])
    return estimates.cold_start(estimates.row_of[workload.name], kind, piece.choice)


def _unused_usd(
    offer: Offer,
    workload: Workload,
    segments: Sequence[Segment],
    cost_usd: Decimal,
    estimate: Estimate,
    nodes: int,
) -> Decimal:
    """The part of the cost that pays for billed node-hours without work."""
    useful = node_hours(segments)
    listed = offer.is_sold_whole
    billed = useful if listed else _billed_node_hours(offer, segments)
    if not isinstance(workload, Serving):
        useful = nodes * estimate.mean_hours
    share = max(0.0, 1 - useful / billed) if billed > 0 else 0.0
    return to_cents(cost_usd * Decimal(share))


def _billed_node_hours(offer: Offer, segments: Sequence[Segment]) -> float:
    return sum(h.nodes * billed_seconds(offer, h.window) for h in holdings(segments)) / 3600
