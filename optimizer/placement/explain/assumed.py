"""Clauses on a placement's assumptions, exhausted stock, latency objective and cost per token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from broker.domain.basics.estimate import Provenance
from broker.domain.basics.money import usd_words
from broker.domain.basics.node_launch import LaunchBasis
from broker.domain.planning.assumed_stock import is_counted
from broker.domain.planning.effective_rules import assumed_nodes
from broker.domain.planning.workload import Batch, Serving, Workload
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.explain.clauses import Clause, Part, figure
from optimizer.placement.explain.extract import cold_start_of_piece, estimate_of
from optimizer.placement.fleets.cases import mean_demand
from optimizer.placement.problem.columns import Column, Piece, in_usd
from optimizer.placement.problem.problem import Problem
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.problem.units import HOUR_S

NEAR_OBJECTIVE = 0.8
"""From this share of a limit on, it is reported."""
FULL = 0.995
"""A replica is loaded until it reaches a limit, so reaching this share of it carries no information."""
RELIABLE = 0.99
"""Hosts with a lower stated reliability are reported."""


def assumed_rules(candidates: Candidates, workload: Workload, piece: Piece) -> Iterator[str]:
    """Assumed stock, assumed launch times, unreliable hosts, and speeds that nobody measured."""
    problem = candidates.problem
    offer = problem.table.offers[piece.offer]
    if not is_counted(offer):
        nodes = max(count for _, _, count in piece.spans)
        most = assumed_nodes(problem.request)
        held = "1 node is" if nodes == 1 else f"{nodes} nodes are"
        yield f"{held} assumed to be there: the seller states no number, and at most {most:,} are counted on"
    cold = cold_start_of_piece(candidates, workload, piece)
    if cold is not None and cold.basis is LaunchBasis.ASSUMED:
        yield f"{cold.launch_s / 60:.0f} min from an order to a running node are assumed"
    if offer.reliability is not None and offer.reliability < RELIABLE:
        yield f"{offer.provider} states that this host is up {100 * offer.reliability:.4g} % of the time"
    estimate = estimate_of(candidates, workload, piece)
    if estimate.provenance is Provenance.MEASURED:
        return
    if isinstance(workload, Serving):
        name, form, unit = "requests_per_s_per_replica", figure, "requests/s a replica"
    else:
        name, form, unit = "hours", "{:,.1f}".format, "h"
    if name in estimate.value:
        figures = (estimate.value[name], estimate.low[name], estimate.high[name])
        value, low, high = (form(one) for one in figures)
        yield f"its {value} {unit} are {estimate.provenance}: {low} to {high} are likely"


def objective_rules(candidates: Candidates, column: Column) -> list[str]:
    """How close a service is to the limits of its objective that do not determine its load, closest first.

    A replica is loaded until memory, compute or a limit is exhausted. That limit is not reported; another one
    that is nearly reached is.
    """
    service = candidates.problem.request.workload(column.workload)
    if not isinstance(service, Serving):
        return []
    limits = (
        ("ttft_p95_ms", "the first token", service.slo.ttft_p95_ms),
        ("itl_p95_ms", "each further token", service.slo.itl_p95_ms),
    )
    near: dict[str, tuple[float, str]] = {}
    for piece in column.pieces:
        value = estimate_of(candidates, service, piece).value
        for name, what, most in limits:
            share = value.get(name, 0.0) / most
            if FULL > share >= max(NEAR_OBJECTIVE, near.get(name, (0.0, ""))[0]):
                says = f"the objective is near: {what} takes {value[name]:,.0f} ms of {most:,.0f} ms (p95)"
                near[name] = (share, says)
    return [says for _, says in sorted(near.values(), reverse=True)]


def all_taken_rule(problem: Problem, ledger: Ledger, piece: Piece) -> str | None:
    """Says that all nodes that the seller states are taken at some time; None if some are always left."""
    offer = problem.table.offers[piece.offer]
    if offer.stock.nodes is None or offer.window is not None:
        return None
    stated = offer.stock.nodes + offer.stock.held_nodes
    most = ledger.most_taken(piece.offer)
    if most < stated or not stated:
        return None
    if stated == 1:
        return f"it takes the one node that {offer.provider} states"
    own = max(nodes for _, _, nodes in piece.spans)
    note = "" if own == most else ", with what else the plan holds there"
    return f"all {stated:,} of {stated:,} stated nodes are taken{note}: one that fails has no spare there"


def tokens_rule(candidates: Candidates, workload: Workload, column: Column) -> Iterator[Clause]:
    """The cost of a million output tokens of the actual traffic, idle hours included."""
    if isinstance(workload, Serving):
        case, problem = candidates.fleets[workload.name], candidates.problem
        start = max(float(problem.t0_s), column.after_s or 0.0)
        begins = np.arange(len(case.demand)) * HOUR_S
        end_s = problem.end_of(workload)
        served_s = np.clip(np.minimum(begins + HOUR_S, end_s) - np.maximum(begins, start), 0, HOUR_S)
        tokens = float(mean_demand(problem, case) @ served_s) * workload.traffic.output_tokens
    elif isinstance(workload, Batch):
        tokens = workload.requests * workload.output_tokens
    else:
        return
    if tokens > 0:
        usd = usd_words(in_usd(round(column.cost_cents * 1e6 / tokens)))
        yield Clause(Part.DETAIL, f"a million output tokens of this traffic cost {usd}, idle capacity in it")
