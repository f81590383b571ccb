"""Provider quotas: what all workloads together may hold of a provider at any instant, existing holdings
included.

Each row counts GPUs or nodes over all offers of a provider. Quotas of the team and of the installation apply
to all workloads together, a workload's own quota to it alone. O offers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate

import numpy as np

from broker.domain.planning.effective_rules import assumed_nodes
from broker.domain.planning.workload import HeldNodes, PlanRequest, Quota
from optimizer.placement.problem.columns import Column, Span
from optimizer.placement.problem.problem import Bools, Ints, Problem, own_stock
from optimizer.placement.problem.units import FleetCase


class Unit(StrEnum):
    """The unit in which a quota counts."""

    GPUS = "GPUs"
    NODES = "nodes"


QUOTA_ROWS = ("quotas",)
"""Cache key of a problem's quota rows. They depend on the request, as nothing else in that cache does."""


@dataclass(frozen=True, slots=True, eq=False)
class QuotaRow:
    """At most ``limit`` of ``unit`` at a provider, over all workloads if ``workload`` is None.

    ``held``: spans that are held already. ``members`` [O]: the provider's offers; ``per_node`` [O]: units per
    node.
    """

    provider: str
    unit: Unit
    limit: int
    workload: str | None
    held: tuple[Span, ...]
    members: Bools
    per_node: Ints

    def __str__(self) -> str:
        return f"{self.limit} {self.unit} at {self.provider}"

    def counts(self, workload: str) -> bool:
        """Whether the quota applies to a workload."""
        return self.workload is None or self.workload == workload

    def spans_of(self, column: Column) -> list[Span]:
        """The spans that a column holds, in the quota's unit."""
        if not self.counts(column.workload):
            return []
        return [
            (start, end, nodes * int(self.per_node[piece.offer]))
            for piece in column.taken
            if self.members[piece.offer]
            for start, end, nodes in piece.spans
        ]


def quota_rows(problem: Problem) -> tuple[QuotaRow, ...]:
    """Every quota of the request, with the existing holdings that count against it."""
    return problem.once(QUOTA_ROWS, lambda: tuple(_rows(problem)))


def _rows(problem: Problem) -> Iterator[QuotaRow]:
    request = problem.request
    for quotas, workload, counted in _scopes(request):
        for quota in quotas:
            members = np.array([o.provider == quota.provider for o in problem.table.offers], dtype=np.bool_)
            for unit, limit, per_node in (
                (Unit.GPUS, quota.gpus, problem.table.gpus_per_node),
                (Unit.NODES, quota.nodes, np.ones_like(problem.table.gpus_per_node)),
            ):
                if limit is not None:
                    held = tuple(_held(problem, counted, quota.provider, unit))
                    yield QuotaRow(quota.provider, unit, limit, workload, held, members, per_node)


def _scopes(request: PlanRequest) -> Iterator[tuple[Sequence[Quota], str | None, Sequence[HeldNodes]]]:
    yield request.quotas, None, request.held
    yield request.policy.quotas, None, [one for one in request.held if one.is_own]
    for workload in request.workloads:
        yield workload.policy.quotas, workload.name, ()


def _held(problem: Problem, held: Sequence[HeldNodes], provider: str, unit: Unit) -> Iterator[Span]:
    for one in held:
        if one.provider == provider:
            start, end = (problem.seconds(t) for t in (one.window.start, one.window.end))
            yield int(np.floor(start)), int(np.ceil(end)), one.gpus if unit is Unit.GPUS else one.nodes


def without_quotas(problem: Problem) -> Problem:
    """A relaxation without quotas."""
    request = problem.request
    workloads = tuple(replace(w, policy=replace(w.policy, quotas=())) for w in request.workloads)
    free = replace(request, workloads=workloads, policy=replace(request.policy, quotas=()), quotas=())
    stock = own_stock(problem.table.offers, assumed_nodes(problem.request))
    table = replace(problem.table, stock_nodes=stock)
    return replace(problem, request=free, table=table, kept={}, kept_of_market={})


def most_held(spans: Iterable[Span], since_s: float = -np.inf) -> int:
    """The largest total of overlapping spans at any instant from ``since_s`` on."""
    late = [(max(start, since_s), end, count) for start, end, count in spans if end > since_s]
    changes = [edge for start, end, count in late for edge in ((start, count), (end, -count))]
    # At one instant what ends comes before what begins.
    return max(accumulate(count for _, count in sorted(changes)), default=0)


def within_quotas(
    problem: Problem, case: FleetCase, free: Ints, taken: Sequence[Sequence[Span]], start_s: float
) -> Ints:
    """Free nodes [O], reduced so that no fleet can exceed a quota, if the service's peak could.

    ``taken``: what other workloads hold of each quota from ``start_s`` on. The remaining quota is divided
    over several zones if the service asks for several.
    """
    name, units = case.service.name, case.units
    for row, others in zip(quota_rows(problem), taken, strict=True):
        if not row.counts(name) or not len(units):
            continue
        mine = np.flatnonzero(row.members[units.offer])
        if not len(mine):
            continue
        left = max(0, row.limit - most_held([*others, *row.held], start_s))
        peak = float(case.demand.max(initial=0.0)) + (case.spare + case.idle) * float(
            units.largest[mine].max()
        )
        whole = (np.ceil(peak / units.requests_per_s[mine]) + case.zones) * units.nodes[mine]
        if float((whole * row.per_node[units.offer[mine]]).max()) > left:
            free = _shared_out(row, case, free, mine, left, peak)
    return free


def _shared_out(row: QuotaRow, case: FleetCase, free: Ints, mine: Ints, left: int, peak: float) -> Ints:
    """Divides what is left of a quota: to the units of the cheapest requests if they serve the peak, else to
    those that serve most of it for what they take of the quota."""
    units = case.units
    cheapest = np.argsort(units.usd_per_hour[mine] / units.requests_per_s[mine], kind="stable")
    taken = units.nodes[mine] * row.per_node[units.offer[mine]]
    densest = np.argsort(-units.requests_per_s[mine] / taken, kind="stable")
    found, served = _divided(row, case, free, mine[cheapest], left)
    if served >= peak:
        return found
    other, more = _divided(row, case, free, mine[densest], left)
    return other if more > served else found


def _divided(row: QuotaRow, case: FleetCase, free: Ints, order: Ints, left: int) -> tuple[Ints, float]:
    """Free nodes [O] with the quota given out in ``order``, and the requests/s that these serve."""
    units, found, served = case.units, np.where(row.members, 0, free), 0.0
    zones = list(dict.fromkeys(int(zone) for zone in units.zone[order]))[: max(1, case.zones)]
    parts = [(order[units.zone[order] == zone], left // len(zones)) for zone in zones]
    for number, (choices, most) in enumerate([*parts, (order, left)]):
        room = min(most, left) if number < len(parts) else left
        for unit in choices:
            offer = int(units.offer[unit])
            each = int(row.per_node[offer])
            count = min(int(free[offer] - found[offer]), room // each) // int(units.nodes[unit])
            nodes = count * int(units.nodes[unit])
            found[offer] += nodes
            served += count * float(units.requests_per_s[unit])
            room -= nodes * each
            left -= nodes * each
    return found, served
