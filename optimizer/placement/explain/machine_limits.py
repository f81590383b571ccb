"""Which part of the hardware limits a workload: its least cost with more memory bandwidth, or with a better
fabric.

Nothing is inferred from shares of time. The performance core estimates the changed hardware, and the
workload's least costs are compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from broker.domain.planning.workload import Serving, Training
from broker.domain.workloads.model_shape import GpuSpec
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.fleet_pool import remaining_nodes
from optimizer.placement.fleets.columns import time_of
from optimizer.placement.fleets.loops import cover_sets
from optimizer.placement.fleets.rules import fleet_rules
from optimizer.placement.problem.columns import Column, Piece
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.problem import UNLIMITED_NODES, Floats, Ints, Problem
from optimizer.placement.problem.units import FleetCase, only_units
from optimizer.placement.runs.builder import least_whole_usd
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.plan_state import PlanState
from optimizer.placement.search.runner_up import main_piece

FASTER = 2.0

Part = Literal["bandwidth", "compute"]


def bandwidth_binds(state: PlanState, service: Serving, mine: Column) -> bool:
    """Whether a service would cost less if its main GPU had twice the memory bandwidth at the same price.

    It must then also cost no more than with twice the compute; otherwise compute is the limit. Costs are
    those of the cheapest nodes of its own pools in each hour, from what other workloads leave.
    """
    candidates, piece = state.candidates, main_piece(mine)
    memory = _rate_factor(candidates, service, piece, "bandwidth")
    if memory <= 1.0:
        return False
    with state.without((service.name,)) as room:
        free = remaining_nodes(candidates, service, room.ledger, mine.after_s)
    for one in mine.pieces:
        free[one.offer] = max([free[one.offer], *(nodes for _, _, nodes in one.spans)])
    own, case = {(one.offer, one.choice) for one in mine.pieces}, candidates.fleets[service.name]
    pairs = zip(case.units.offer.tolist(), case.units.config.tolist(), strict=True)
    case = only_units(case, np.array([pair in own for pair in pairs], dtype=np.bool_))
    if not len(case.units):
        return False

    def least_usd(factor: float) -> float:
        return _least_usd(candidates.problem, _with_rate(candidates, case, piece, factor), free, mine.after_s)

    faster = least_usd(memory)
    if faster >= (1 - TUNING.fleets.close_of_many_share) * least_usd(1.0):
        return False
    compute = _rate_factor(candidates, service, piece, "compute")
    # More of any rate costs no more, so that only a larger factor can cost less.
    return compute <= memory or faster <= least_usd(compute)


def _least_usd(problem: Problem, case: FleetCase, free: Ints, after_s: float | None) -> float:
    """USD of the cheapest units [U] of each hour, summed; inf if ``free`` nodes do not suffice. Starts and
    minimum terms are ignored.
    """
    units, rules, count = case.units, fleet_rules(problem, case.service), len(case.units)
    most = np.minimum(units.most, free[units.offer] // units.nodes) * units.replicas
    levels = np.arange(int(most.max(initial=0)) + 1)
    usd = units.usd_per_hour[:, None] * -(-levels // units.replicas[:, None])
    usd[levels > most[:, None]] = np.inf
    demand, weight = np.unique(case.demand[time_of(problem, case, after_s).first_hour :], return_counts=True)
    found: Floats = cover_sets(
        np.arange(count)[None, :],
        usd[None].astype(np.float64),
        (units.usd_per_hour / units.requests_per_s)[None],
        most,
        units.largest[None],
        units.zone,
        np.arange(count),
        demand[::-1].copy(),
        np.zeros(len(demand), dtype=np.int64),
        weight[::-1].astype(np.float64),
        float(rules.spare),
        rules.idle,
        rules.places,
        rules.loss_share,
        rules.least_share,
        count,
        np.zeros(len(demand) + 1),
        np.inf,
        np.zeros(1, dtype=np.int64),
        TUNING.fleets.most_work,
    )
    return float(found[0])


def _rate_factor(candidates: Candidates, service: Serving, piece: Piece, part: Part) -> float:
    """Speed-up of a replica on a GPU with a faster part; 1 if its speed was measured."""
    estimates, kind = candidates.estimates, int(candidates.problem.table.sku_of[piece.offer])
    sku = candidates.problem.table.skus[kind]
    spec = estimates.estimator.gpus.get(sku.gpu)
    if spec is None or any(row.gpu == sku.gpu for row in service.measured):
        return 1.0
    config = estimates.serving.configs[piece.choice]
    alone = replace(service, precisions=(config.precision,))
    table = estimates.estimator.over({sku.gpu: _faster(spec, part)}).serving([alone], [sku])
    place = table.configs.index(config)
    now = float(estimates.serving.requests_per_s[estimates.row_of[service.name], kind, piece.choice])
    return float(table.requests_per_s[0, 0, place]) / now


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


def least_joined_usd(candidates: Candidates, run: Training, below_usd: float) -> float:
    """Least cost of a run if the market's best fabric connected any number of nodes of any kind.

    It is inf if that is not below ``below_usd``, or if every node has this fabric.
    """
    problem = candidates.problem
    joined = problem.once(("joined",), lambda: _joined(candidates))
    return np.inf if joined is None else least_whole_usd(*joined, run, below_usd)


def _joined(candidates: Candidates) -> tuple[Problem, Estimates] | None:
    """The offers that the best fabric changes, with it, and estimates of every run on them; one request for
    all runs costs little more than for one.
    """
    problem, estimates, table = candidates.problem, candidates.estimates, candidates.problem.table
    fabrics = [sku.fabric for sku in table.skus if sku.fabric is not None]
    if not fabrics:
        return None
    best = max(fabrics, key=lambda fabric: fabric.gbit_s_per_node)
    most = estimates.node_counts[-1]
    had = [sku.fabric is not None and replace(sku.fabric, domain=best.domain) == best for sku in table.skus]
    enough = table.joined_nodes >= np.minimum(most, table.stock_nodes)
    same = np.array(had, dtype=np.bool_)[table.sku_of] & enough
    if same.all():
        return None
    changed = set(table.sku_of[~same].tolist())
    # The core estimates equal kinds once, so a kind without a changed offer is replaced by one that has any.
    kinds = [kind if kind in changed else min(changed) for kind in range(len(table.skus))]
    skus = tuple(replace(table.skus[k], fabric=replace(best, max_nodes=UNLIMITED_NODES)) for k in kinds)
    runs = [run for run in problem.runs() if isinstance(run, Training)]
    found = estimates.estimator.training(runs, skus, estimates.node_counts)
    wider = replace(
        table,
        skus=skus,
        joined_nodes=np.full_like(table.joined_nodes, UNLIMITED_NODES),
        stock_nodes=np.where(same, 0, table.stock_nodes),
    )
    joined = replace(problem, table=wider, kept={}, kept_of_market={})
    return joined, replace(estimates, training=found)
