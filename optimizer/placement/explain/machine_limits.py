"""Which part of the hardware limits a workload: its least cost with more memory bandwidth, or with a better
fabric.

Nothing is inferred from shares of time. The performance core estimates the changed hardware, and the
workload's least costs are compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from broker.domain.market.sku import Fabric
from broker.domain.planning.model_shape import GpuSpec
from broker.domain.planning.workload import Serving, Training
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.fleet_pool import remaining_nodes
from optimizer.placement.fleets.model import model_fleets
from optimizer.placement.problem.columns import Column, Piece
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.problem import UNLIMITED_NODES, Ints, Problem
from optimizer.placement.problem.units import FleetCase, only_units, with_remaining_stock
from optimizer.placement.runs.builder import build_run_candidates
from optimizer.placement.runs.candidates import RunCandidates
from optimizer.placement.search.plan_state import PlanState
from optimizer.placement.search.runner_up import main_piece

FASTER = 2.0
FEW_CANDIDATES = 64

Part = Literal["bandwidth", "compute"]


def least_usd(found: RunCandidates) -> float:
    """Cost of the cheapest candidate, with lateness; inf if there is none."""
    return float(found.total_usd.min(initial=np.inf))


def bandwidth_binds(candidates: Candidates, state: PlanState, service: Serving, mine: Column) -> bool:
    """Whether a service would cost less if its main GPU had twice the memory bandwidth at the same price.

    It must then also cost no more than with twice the compute; otherwise compute is the limit. Costs are
    those of the best fleet on its own offers, from what other workloads leave.
    """
    piece = main_piece(mine)
    memory = _rate_factor(candidates, service, piece, "bandwidth")
    if memory <= 1.0:
        return False
    compute = _rate_factor(candidates, service, piece, "compute")
    with state.without((service.name,)) as room:
        free = remaining_nodes(candidates, service, room.ledger, mine.after_s)
    case = with_remaining_stock(candidates.fleets[service.name], free)
    own = sorted({one.offer for one in mine.pieces})
    case = only_units(case, np.isin(case.units.offer, own))
    now, faster, computing = (
        _least_cents(candidates, _with_rate(candidates, case, piece, factor), free, mine)
        for factor in (1.0, memory, compute)
    )
    return faster < now and faster <= computing


def _rate_factor(candidates: Candidates, service: Serving, piece: Piece, part: Part) -> float:
    """Speed-up of a replica on a GPU with a faster part; 1 if its speed was measured."""
    estimates, kind = candidates.estimates, int(candidates.problem.table.sku_of[piece.offer])
    sku = candidates.problem.table.skus[kind]
    spec = estimates.estimator.gpus.get(sku.gpu)
    if spec is None or any(row.gpu == sku.gpu for row in service.measured):
        return 1.0
    table = estimates.estimator.over({sku.gpu: _faster(spec, part)}).serving([service], [sku])
    place = table.configs.index(estimates.serving.configs[piece.choice])
    now = float(estimates.serving.requests_per_s[estimates.row_of[service.name], kind, piece.choice])
    return float(table.requests_per_s[0, 0, place]) / now


def _least_cents(candidates: Candidates, case: FleetCase, free: Ints, mine: Column) -> float:
    made = model_fleets(candidates.problem, case, free, [mine.after_s])
    return min((float(column.total_cents) for column in made), default=float("inf"))


def _with_rate(candidates: Candidates, case: FleetCase, piece: Piece, factor: float) -> FleetCase:
    """The case with faster replicas of a piece's configuration on its kind of node."""
    units, sku_of = case.units, candidates.problem.table.sku_of
    same = (sku_of[units.offer] == sku_of[piece.offer]) & (units.config == piece.choice)
    each = np.where(same, factor, 1.0)
    faster = replace(units, requests_per_s=units.requests_per_s * each, largest=units.largest * each)
    return replace(case, units=faster)


def _faster(spec: GpuSpec, part: Part) -> GpuSpec:
    if part == "bandwidth":
        return replace(spec, hbm_gbyte_s=spec.hbm_gbyte_s * FASTER)
    peaks = ("bf16", "fp16", "fp8", "fp4", "matmul_best_bf16", "matmul_best_fp8")
    named = {f"{peak}_tflops": getattr(spec, f"{peak}_tflops") for peak in peaks}
    return replace(spec, **{name: peak * FASTER for name, peak in named.items() if peak is not None})


def least_joined_usd(candidates: Candidates, run: Training) -> float:
    """Least cost of a run if the market's best fabric connected any number of nodes of any kind.

    It is inf if the market has no fabric.
    """
    problem = candidates.problem
    fabrics = [sku.fabric for sku in problem.table.skus if sku.fabric is not None]
    if not fabrics:
        return float("inf")
    best = max(fabrics, key=lambda fabric: fabric.gbit_s_per_node)
    joined = problem.once(("joined", best), lambda: _joined(problem, best))
    estimates = _joined_estimates(candidates, joined, best)
    return least_usd(build_run_candidates(joined, estimates, run, FEW_CANDIDATES, bounded=False))


def _joined_estimates(candidates: Candidates, joined: Problem, fabric: Fabric) -> Estimates:
    """Estimates of every run on nodes with this fabric; one request for all costs little more than for
    one.
    """
    estimates, runs = candidates.estimates, [r for r in joined.runs() if isinstance(r, Training)]
    found = estimates.kept.once(
        ("joined", fabric),
        lambda: estimates.estimator.training(runs, joined.table.skus, estimates.node_counts),
    )
    return replace(estimates, training=found)


def _joined(problem: Problem, fabric: Fabric) -> Problem:
    table = problem.table
    skus = tuple(replace(sku, fabric=replace(fabric, max_nodes=UNLIMITED_NODES)) for sku in table.skus)
    nodes = np.full_like(table.joined_nodes, UNLIMITED_NODES)
    changed = replace(table, skus=skus, joined_nodes=nodes)
    return replace(problem, table=changed, kept={}, kept_of_market={})
