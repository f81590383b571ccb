"""The cheapest offer that a gate keeps from a workload, what would let it pass, and its rough cost.

Costs are estimated from tables that the plan has already, without a search: the work at the offer's price,
held as long as the chosen nodes. O rows of offers, K kinds of node, C configurations, N node counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from broker.domain.basics.money import usd_words
from broker.domain.market.offer import Offer
from broker.domain.planning.workload import Batch, Policy, Serving, Training, Workload
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.host_needs import HostNeeds, serving_needs, training_needs
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.explain.alternatives import described
from optimizer.placement.explain.policy_rules import RULES
from optimizer.placement.explain.wider_rules import wider_rules
from optimizer.placement.problem.columns import Column, in_usd
from optimizer.placement.problem.gates import open_gates
from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem
from optimizer.placement.runs.candidates import Run, deadline_s, first_second

NEVER = 1 << 30


def cheapest_dropped(candidates: Candidates, mine: Column) -> str | None:
    """A sentence on the cheapest offer that one gate alone drops; None if none would cost less."""
    problem = candidates.problem
    workload = problem.request.workload(mine.workload)
    if isinstance(workload, Serving) and workload.starts_after is not None:
        return None
    passing = open_gates(problem, workload).passing
    with_room = _rough_usd(candidates, workload, mine, roomy=False)
    host = np.full(len(passing), np.inf)
    if _lacks_room(candidates, workload):
        anywhere = _rough_usd(candidates, workload, mine, roomy=True)
        host = np.where(passing & ~np.isfinite(with_room), anywhere, np.inf)
    found: list[tuple[float, str]] = []
    for usd, words in ((host, None), *_by_rules(problem, workload, passing, with_room)):
        row = int(np.argmin(usd)) if len(usd) else -1
        if row >= 0 and np.isfinite(usd[row]):
            if words is None:
                about = usd_words(in_usd(round(100 * float(usd[row]))))
                mine_usd = usd_words(in_usd(mine.cost_cents))
                host_words = _host_words(candidates, workload, row)
                words = f"{host_words} it would cost roughly {about} in place of {mine_usd}"
            found.append((float(usd[row]), f"{described(problem.table.offers[row])} is dropped {words}"))
    least, says = min(found, default=(math.inf, ""))
    return None if least * 100 >= mine.cost_cents else says


def _by_rules(
    problem: Problem, workload: Workload, passing: Bools, usd: Floats
) -> Iterator[tuple[Floats, str | None]]:
    """The costs [O] of what each rule of the policy alone drops, and the rule in words."""
    policies = (problem.request.policy, workload.policy)
    for rule in RULES:
        if any(rule.is_written(policy) for policy in policies):
            wider = _opened(problem, workload, *(rule.dropped(policy) for policy in policies))
            extra = np.where(wider & ~passing, usd, np.inf)
            if np.isfinite(extra).any():
                offer = problem.table.offers[int(np.argmin(extra))]
                yield extra, f"by the policy alone: {rule.says(policies, (offer,))} lets it pass"
    for wider_rule in wider_rules(problem.request, [workload]):
        team, own = wider_rule.without(problem.request.policy), wider_rule.widened(workload)
        wider = _opened(problem, workload, team, own)
        yield np.where(wider & ~passing, usd, np.inf), f"by the policy alone: {wider_rule.says} lets it pass"


def _opened(problem: Problem, workload: Workload, team: Policy, own: Policy) -> Bools:
    wider = problem.once(
        ("under", team), lambda: replace(problem, request=replace(problem.request, policy=team), kept={})
    )
    return open_gates(wider, replace(workload, policy=own)).passing


def _lacks_room(candidates: Candidates, workload: Workload) -> bool:
    """Whether a host has too little disk or memory for a workload."""
    estimates, row = candidates.estimates, candidates.estimates.row_of[workload.name]
    if isinstance(workload, Training):
        return not np.array_equal(estimates.hours_with_room[row], estimates.training.hours[row])
    return not np.array_equal(estimates.rates_with_room[row], estimates.serving.requests_per_s[row])


def _rough_usd(candidates: Candidates, workload: Workload, mine: Column, *, roomy: bool) -> Floats:
    """USD [O] of the workload on each offer alone; inf where it does not fit. ``roomy``: as if every host
    had disk and memory enough.
    """
    table = candidates.problem.table
    nodes, hours = (
        _of_run(candidates, workload, roomy=roomy)
        if isinstance(workload, Training)
        else _of_replicas(candidates, workload, mine, roomy=roomy)
    )
    needed, held = nodes[table.sku_of], hours[table.sku_of]
    able = (needed <= table.stock_nodes[:, None]) & np.isfinite(held) & ~table.is_window[:, None]
    if isinstance(workload, Training):
        able &= needed <= table.joined_nodes[:, None]
    usd = np.where(able, needed * np.where(able, held, 0.0) * table.price_usd[:, None], np.inf)
    least: Floats = usd.min(axis=1, initial=np.inf)
    return least


def _of_run(candidates: Candidates, run: Training, *, roomy: bool) -> tuple[Ints, Floats]:
    """Nodes and hours [K, N] of the sizes that meet the deadline."""
    estimates, table = candidates.estimates, candidates.problem.table
    hours = (estimates.hours_with_room if roomy else estimates.training.hours)[estimates.row_of[run.name]]
    nodes = np.broadcast_to(np.asarray(estimates.node_counts, dtype=np.int64), hours.shape)
    gpus = nodes * np.array([sku.gpus_per_node for sku in table.skus], dtype=np.int64)[:, None]
    most = NEVER if run.gpus.max is None else run.gpus.max
    able = (gpus >= run.gpus.min) & (gpus <= most) & (hours <= _span_hours(candidates, run))
    return nodes, np.where(able, hours, np.inf)


def _of_replicas(
    candidates: Candidates, workload: Serving | Batch, mine: Column, *, roomy: bool
) -> tuple[Ints, Floats]:
    """Nodes and hours [K, C] of a fleet at its peak, held as long as the chosen one, or of a batch."""
    estimates, table = candidates.estimates, candidates.problem.table
    serving = estimates.serving
    rates = estimates.rates_with_room if roomy else serving.requests_per_s
    rates = rates[estimates.row_of[workload.name]]
    sizes = np.array([config.gpus_per_replica for config in serving.configs], dtype=np.int64)
    per_node = np.array([sku.gpus_per_node for sku in table.skus], dtype=np.int64)[:, None]
    joined = np.array([s.fabric.max_nodes if s.fabric else 1 for s in table.skus], dtype=np.int64)[:, None]
    each = np.maximum(1, -(-sizes[None, :] // per_node))
    rate = np.where(each <= joined, np.maximum(1, per_node // sizes[None, :]) * rates, 0.0)
    able = rate > 0
    rate = np.where(able, rate, 1.0)
    if isinstance(workload, Batch):
        nodes, hours = each, workload.requests / rate / 3600
        able &= hours <= _span_hours(candidates, workload)
    else:
        redundancy = workload.redundancy
        peak = float(candidates.fleets[workload.name].demand.max(initial=0.0))
        units = np.ceil(peak / rate - 1e-9).astype(np.int64) + redundancy.spare_replicas
        nodes, hours = each * np.maximum(redundancy.zones, units), np.full(rate.shape, _held_hours(mine))
    return nodes, np.where(able, hours, np.inf)


def _span_hours(candidates: Candidates, run: Run) -> float:
    """Hours from the first second of a run or batch to its deadline."""
    return (deadline_s(candidates.problem, run) - first_second(candidates.problem, run)) / 3600


def _held_hours(mine: Column) -> float:
    """Hours for which the most nodes of the chosen fleet would cost what it holds."""
    spans = [span for piece in mine.pieces for span in piece.spans]
    edges = sorted({at for at, _, _ in spans})
    most = max(sum(n for a, b, n in spans if a <= at < b) for at in edges)
    return sum((b - a) * n for a, b, n in spans) / 3600 / most


def _host_words(candidates: Candidates, workload: Workload, row: int) -> str:
    """What an offer's host has too little of."""
    offer = candidates.problem.table.offers[row]
    short = min(
        (needs.shortage(offer.sku) or "" for needs in _needs(candidates, workload, offer)), default=""
    )
    return f"for its host alone ({short}): with enough"


def _needs(candidates: Candidates, workload: Workload, offer: Offer) -> list[HostNeeds]:
    calibration, gpus = load_calibration(), offer.sku.gpus_per_node
    if isinstance(workload, Training):
        counts = candidates.estimates.node_counts
        joined = [n for n in counts if n <= offer.max_nodes_in_one_run]
        return [training_needs(workload, n, gpus, calibration) for n in joined[-1:]]
    each = [serving_needs(workload.model, p, gpus, calibration) for p in workload.precisions]
    return sorted(each, key=lambda needs: needs.disk_gb)[:1]
