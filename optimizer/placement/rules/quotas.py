"""Everything held of a provider at any instant, earlier holdings included, stays within every quota."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from broker.domain.planning.workload import HeldNodes, Quota
from optimizer.placement.rules.case import Case, Known, reserved

Held = tuple[datetime, datetime, int, int]
"""Start, end, GPUs, nodes."""


def violations(case: Case) -> Iterator[str]:
    """Violated quotas of the installation, the team, and each workload."""
    request = case.request
    every = list(case.with_recourses())
    yield from _broken("the installation", request.quotas, every, request.held)
    yield from _broken("the team", request.policy.quotas, every, [h for h in request.held if h.is_own])
    for workload in request.workloads:
        rows = [row for row in every if row[2] is workload]
        yield from _broken(workload.name, workload.policy.quotas, rows, ())


def _broken(
    owner: str, quotas: Iterable[Quota], rows: Iterable[Known], held: Iterable[HeldNodes]
) -> Iterator[str]:
    placed, before = list(rows), list(held)
    for quota in quotas:
        mine = [
            (segment.start, segment.end, segment.nodes * offer.sku.gpus_per_node, segment.nodes)
            for _, placement, _, offer in placed
            if offer.provider == quota.provider
            for segment in reserved(placement, offer)
        ]
        others = [
            (h.window.start, h.window.end, h.gpus, h.nodes) for h in before if h.provider == quota.provider
        ]
        for unit, limit in ((0, quota.gpus), (1, quota.nodes)):
            found = None if limit is None else _first_over(mine, others, unit, limit)
            if found is not None:
                at, level = found
                what = f"{level} {'nodes' if unit else 'GPUs'} held at {at.isoformat()}"
                yield f"quota of {owner} at {quota.provider}: {what}, {limit} allowed"


def _first_over(
    mine: Sequence[Held], others: Sequence[Held], unit: int, limit: int
) -> tuple[datetime, int] | None:
    """The first instant at which planned and earlier holdings together exceed a limit."""
    steps: defaultdict[datetime, list[int]] = defaultdict(lambda: [0, 0])
    for which, rows in enumerate((mine, others)):
        for start, end, *counts in rows:
            steps[start][which] += counts[unit]
            steps[end][which] -= counts[unit]
    planned = before = 0
    for at in sorted(steps):
        planned, before = planned + steps[at][0], before + steps[at][1]
        if planned and planned + before > limit:
            return at, planned + before
    return None
