"""What the requests of a batch cost at least, in however many parts: a cover by stretches.

With fractions of nodes, the cheapest cover takes the stretches in order of the least that a request costs on
them. What this leaves open is the cold starts of the last nodes. So it is branched: the stretch of which a
fraction of a node is taken has at most so many nodes, or at least one more, which all pay their start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import numpy as np

from optimizer.placement.problem.problem import Floats, Ints, Problem
from optimizer.placement.runs.stretches import Stretches
from optimizer.placement.runtime.tuning import TUNING

ROUNDING_USD = 0.005
"""A placement's cost is rounded to cents."""
NEARLY = 1e-6


def least_usd(
    problem: Problem, ways: Stretches, requests: float, branches: int = TUNING.runs.most_branches
) -> float:
    """The cost of a cover of ``requests``: no plan in however many parts costs less; inf if the stretches
    cannot answer them all.
    """
    return _Cover(problem, ways, requests).least_usd(branches)


@dataclass(frozen=True, slots=True)
class _Branch:
    """The fewest and the most nodes of some stretches."""

    least: Mapping[int, int] = field(default_factory=dict)
    most: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Relaxed:
    """The cost of a fractional cover, and the stretch whose nodes are taken in part, with their number."""

    usd: float
    stretch: int | None
    nodes: float


class _Cover:
    """Fractional covers of a batch by the stretches."""

    def __init__(self, problem: Problem, ways: Stretches, requests: float) -> None:
        self.ways, self.requests = ways, requests
        self.order = [int(index) for index in np.argsort(ways.unit_usd, kind="stable")]
        self.pools = problem.table.pools.of[ways.offer]
        self.of_offers = _together(ways, ways.offer, ways.speed * ways.nodes)
        self.of_pools = _together(ways, self.pools, ways.speed / problem.table.gpus_per_node[ways.offer])
        for pool in self.of_pools:
            self.of_pools[pool] *= float(problem.table.pools.gpus[pool]) if pool >= 0 else np.inf

    def least_usd(self, branches: int) -> float:
        """The least of all branches, of which the cheapest are divided further."""
        open_ways = [(self._relaxed(_Branch()), 0, _Branch())]
        heap = [(open_ways[0][0].usd, 0)]
        for _ in range(branches):
            usd, number = heap[0]
            relaxed, _, branch = open_ways[number]
            if relaxed.stretch is None or not np.isfinite(usd):
                break
            heappop(heap)
            for half in _halves(branch, relaxed.stretch, int(relaxed.nodes)):
                found = self._relaxed(half)
                # A half of a cover costs no less than the whole.
                found = replace(found, usd=max(usd, found.usd))
                heappush(heap, (found.usd, len(open_ways)))
                open_ways.append((found, len(open_ways), half))
        return heap[0][0]

    def _relaxed(self, branch: _Branch) -> _Relaxed:
        """The cheapest fractional cover within a branch."""
        ways, left, used = self.ways, self.requests, 0
        offers, pools = dict(self.of_offers), dict(self.of_pools)
        usd = sum(nodes * float(ways.start_usd[index]) for index, nodes in branch.least.items())
        for index, unit, nodes, started in self._steps(branch):
            offer, pool = int(ways.offer[index]), int(self.pools[index])
            reach = float(ways.reach[index])
            taken = max(0.0, min(left, nodes * reach, offers[offer], pools[pool]))
            offers[offer] -= taken
            pools[pool] -= taken
            usd, left, used = usd + taken * unit, left - taken, used + (taken > 0)
            if left <= self.requests * 1e-9:
                whole = taken / reach
                split = not started and abs(whole - round(whole)) > NEARLY
                least = max(0.0, usd * (1 - 1e-9) - ROUNDING_USD * used)
                return _Relaxed(least, index if split else None, whole + branch.least.get(index, 0))
        return _Relaxed(float("inf"), None, 0.0)

    def _steps(self, branch: _Branch) -> Iterator[tuple[int, float, int, bool]]:
        """Stretches in order of cost: index, USD of a request, nodes, and whether their start is paid."""
        ways = self.ways
        paid = sorted((float(ways.further_usd[i]), i) for i in branch.least)
        for index in self.order:
            unit = float(ways.unit_usd[index])
            while paid and paid[0][0] <= unit:
                further, at = paid.pop(0)
                yield at, further, branch.least[at], True
            nodes = branch.most.get(index, int(ways.nodes[index])) - branch.least.get(index, 0)
            if nodes > 0:
                yield index, unit, nodes, False
        for further, at in paid:
            yield at, further, branch.least[at], True


def _halves(branch: _Branch, stretch: int, nodes: int) -> tuple[_Branch, _Branch]:
    """At most ``nodes`` of a stretch, or at least one more."""
    return (
        replace(branch, most={**branch.most, stretch: nodes}),
        replace(branch, least={**branch.least, stretch: nodes + 1}),
    )


def _together(ways: Stretches, group: Ints, speed: Floats) -> dict[int, float]:
    """Requests that the fastest of each group answers from the first begin to the last end."""
    order = np.argsort(group, kind="stable")
    names, first = np.unique(group[order], return_index=True)
    if not len(names):
        return {}
    begin = np.minimum.reduceat(ways.begin_s[order], first)
    end = np.maximum.reduceat(ways.end_s[order], first)
    most = np.maximum.reduceat(speed[order], first) * (end - begin)
    return {int(name): float(value) for name, value in zip(names, most, strict=True)}
