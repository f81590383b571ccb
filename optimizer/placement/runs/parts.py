"""Ways of a batch in parts: how many requests each stretch of an offer answers, and on how many nodes.

A node costs a cold start and then the same for each request. In the cheapest cover all nodes but those of one
part therefore work as long as they can. So nodes are filled in order of their cost per request, and after
each step the rest goes wherever it then costs least: that gives the cheapest way of each number of parts. The
ways that end sooner, and those on fewer parts, are made in the same way with less time, and with a charge for
each part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from broker.domain.planning.workload import Batch, Training
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.problem import ANY_COUNT, Bools, Ints, Problem
from optimizer.placement.problem.quotas import most_held, quota_rows
from optimizer.placement.problem.sold_counts import bought_nodes
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.runs.candidates import Run
from optimizer.placement.runs.columns import BatchPart, build_parts_column
from optimizer.placement.runs.cover_bound import ROUNDING_USD, least_usd
from optimizer.placement.runs.stretches import (
    NO_CHARGES,
    Charges,
    Stretches,
    bought_until_s,
    charged_stretches,
    joined,
    nodes_usd,
    stretches_of,
)
from optimizer.placement.runtime.tuning import TUNING

LEAST_REST = 1e-9


def is_divisible(run: Run) -> bool:
    """Whether a run may stand in any number of parts side by side."""
    return not isinstance(run, Training) and run.parts != 1


def least_parts_usd(
    problem: Problem, estimates: Estimates, run: Batch, charges: Charges = NO_CHARGES
) -> float:
    """Lower bound on the cost of a divisible batch at dual prices, in however many parts.

    As the cost of any candidate, it is told before the rounding of one placement, which callers take off.
    """

    def found() -> float:
        ways = charged_stretches(problem, estimates, run, charges)
        usd = least_usd(problem, ways, run.requests)
        if charges is NO_CHARGES and np.isfinite(usd):
            usd = float(np.ceil(usd * 100 - 1e-6)) / 100
        return usd + ROUNDING_USD

    key = ("least parts", run, problem.request.policy)
    return problem.once(key, found) if charges is NO_CHARGES else found()


def divided_ways(
    problem: Problem,
    estimates: Estimates,
    run: Batch,
    ledger: Ledger | None = None,
    charges: Charges = NO_CHARGES,
    *,
    easier: bool = False,
) -> list[Column]:
    """Columns of a divisible batch in two parts or more, cheapest first, beside what ``ledger`` takes.

    ``easier``: also ways on fewer parts and with earlier ends that cost more.
    """
    stretches = [charged_stretches(problem, estimates, run, charges)]
    penalties = TUNING.runs.part_charge_shares if easier else TUNING.runs.part_charge_shares[:1]
    if easier:
        stretches += [stretches_of(problem, estimates, run, share) for share in TUNING.runs.shorter_shares]
    made: dict[Column, None] = {}
    for ways in stretches:
        fill = _Fill(problem, run, ways, ledger)
        for penalty in penalties:
            for cover in fill.covers(penalty):
                column = build_parts_column(problem, estimates, run, fill.parts(cover))
                if column is not None and len(column.pieces) > 1:
                    made[column] = None
    cheapest = sorted(made, key=lambda column: column.total_cents)
    return [column for column in cheapest if ledger is None or ledger.fits(column)][: TUNING.runs.most_ways]


@dataclass(frozen=True, slots=True)
class _Taken:
    """Nodes of a stretch, and the requests that they answer."""

    stretch: int
    nodes: int
    requests: float


Cover = tuple[_Taken, ...]


class _Fill:
    """Fills stretches with the requests of a batch, in what others leave."""

    def __init__(self, problem: Problem, run: Batch, ways: Stretches, ledger: Ledger | None) -> None:
        self.problem, self.run = problem, run
        ways = ways if ledger is None else _beside(problem, ways, ledger)
        self.ways = ways.where(np.argsort(ways.unit_usd, kind="stable")[: TUNING.runs.most_stretches])
        self.order, ones = np.arange(len(self.ways)), np.ones(len(self.ways), dtype=np.int64)
        longest = self.ways.needed_s(self.order, ones, self.ways.most)
        usd = nodes_usd(problem, self.ways, self.order, ones, longest)
        self.ways = self.ways.where(np.isfinite(usd))
        self.order = np.arange(len(self.ways))
        self.scale_usd = self.run.requests * float(self.ways.unit_usd.min(initial=np.inf))
        self.terms = problem.table.count_terms_of[self.ways.offer]
        self.groups = list(_groups(problem, run, self.ways.offer, ledger or Ledger(problem)))

    def covers(self, penalty: float) -> Iterator[Cover]:
        """Covers of the batch with ever more parts: full nodes first, the rest where it costs least."""
        ways, free = self.ways, self.ways.nodes.copy()
        units = [group.left for group in self.groups]
        for group in self.groups:
            free[group.members] = np.minimum(free, group.left // group.each)[group.members]
        taken: dict[int, _Taken] = {}
        left = self.run.requests
        for index in self._ordered(penalty):
            yield from self._rest(free, left, taken)
            if (
                left < float(ways.most[index])
                or len(taken) >= TUNING.runs.most_steps
                or not self._may_take(taken)
            ):
                return
            nodes = self._sold(index, min(int(free[index]), int(left // float(ways.most[index]))))
            if nodes < 1:
                continue
            taken[index] = _Taken(index, nodes, nodes * float(ways.most[index]))
            left -= nodes * float(ways.most[index])
            self._hold(index, nodes, free, units)
            if left <= self.run.requests * LEAST_REST:
                yield tuple(taken.values())
                return

    def _ordered(self, penalty: float) -> list[int]:
        """Stretches in order of the cost of a request, with a share of the cost charged for each part."""
        at = self.order
        answers = np.minimum(self.ways.nodes[at] * self.ways.most[at], self.run.requests)
        charged = self.ways.unit_usd[at] + penalty * self.scale_usd / np.maximum(answers, 1e-9)
        return [int(index) for index in at[np.argsort(charged, kind="stable")]]

    def _may_take(self, taken: dict[int, _Taken]) -> bool:
        """Whether another full stretch leaves a part for the rest."""
        return self.run.parts is None or len(taken) + 2 <= self.run.parts

    def _sold(self, index: int, nodes: int) -> int:
        """The most nodes, at most ``nodes``, that the seller sells together."""
        if self.terms[index] == ANY_COUNT:
            return nodes
        offer = self.ways.offer[index : index + 1]
        counts = np.arange(1, nodes + 1, dtype=np.int64)
        sold = counts[bought_nodes(self.problem.table, offer, counts)[0] == counts]
        return int(sold.max(initial=0))

    def _rest(self, free: Ints, left: float, taken: dict[int, _Taken]) -> Iterator[Cover]:
        """The covers with all that is left where it costs least; none if no stretch answers it.

        More nodes of a stretch that is taken already share the work evenly, or work on the rest alone.
        """
        ways, at = self.ways, self.order
        nodes: Ints = np.maximum(1, np.ceil(left / ways.most[at] - 1e-9)).astype(np.int64)
        fits = np.flatnonzero(nodes <= free[at])
        at, nodes = at[fits], nodes[fits]
        for fixed in np.flatnonzero(self.terms[at] != ANY_COUNT):
            offer, wanted = ways.offer[at[fixed : fixed + 1]], nodes[fixed : fixed + 1]
            nodes[fixed] = int(bought_nodes(self.problem.table, offer, wanted)[0, 0])
        sold = nodes <= free[at]
        at, nodes = at[sold], nodes[sold]
        if not len(at):
            return
        usd = nodes_usd(self.problem, ways, at, nodes, ways.needed_s(at, nodes, left))
        best = int(usd.argmin())
        if not np.isfinite(usd[best]):
            return
        index, count = int(at[best]), int(nodes[best])
        yield (*taken.values(), _Taken(index, count, left))
        before = taken.get(index)
        together = count + (before.nodes if before is not None else 0)
        if before is not None and self._sold(index, together) == together:
            others = (one for one in taken.values() if one.stretch != index)
            yield (*others, _Taken(index, together, left + before.requests))

    def _hold(self, index: int, nodes: int, free: Ints, units: list[int]) -> None:
        """Takes nodes of a stretch from all that meet it: of its offer, its pool and its quotas."""
        same = self.ways.offer == self.ways.offer[index]
        meet = (self.ways.begin_s < self.ways.end_s[index]) & (self.ways.end_s > self.ways.begin_s[index])
        free[same & meet] -= nodes
        for number, group in enumerate(self.groups):
            if group.members[index]:
                units[number] -= nodes * int(group.each[index])
                at = np.flatnonzero(group.members & meet)
                free[at] = np.minimum(free[at], units[number] // group.each[at])
        np.maximum(free, 0, out=free)

    def parts(self, cover: Cover) -> list[BatchPart]:
        """The parts of a cover in whole requests, with what is bought."""
        ways, found = self.ways, list[BatchPart]()
        for number, one in enumerate(cover):
            at, nodes = np.array([one.stretch]), np.array([one.nodes])
            whole = float(np.floor(one.requests))
            requests = (
                whole if number < len(cover) - 1 else self.run.requests - sum(p.requests for p in found)
            )
            until = bought_until_s(self.problem, ways, at, ways.needed_s(at, nodes, requests))[0]
            if np.isfinite(until):
                start = int(ways.start_s[one.stretch])
                offer, choice = int(ways.offer[one.stretch]), int(ways.choice[one.stretch])
                found.append(BatchPart(offer, choice, one.nodes, start, int(until), requests))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Stretches [L] that share a pool or a quota, the units ``left``, and the units of a node of each."""

    members: Bools
    left: int
    each: Ints


def _groups(problem: Problem, run: Batch, offers: Ints, ledger: Ledger) -> Iterator[_Group]:
    """The pools of GPUs of the first stretches, and the quotas that count for the batch."""
    table = problem.table
    pools, gpus = table.pools.of[offers], table.gpus_per_node[offers]
    for pool in np.unique(pools):
        if pool >= 0:
            left = int(table.pools.gpus[pool]) - most_held(ledger.gpus_taken(int(pool)))
            yield _Group(pools == pool, max(0, left), gpus)
    for row, taken in zip(quota_rows(problem), ledger.quota_taken, strict=True):
        if row.counts(run.name):
            left = row.limit - most_held([*row.held, *taken])
            yield _Group(row.members[offers], max(0, left), np.maximum(1, row.per_node[offers]))


def _beside(problem: Problem, ways: Stretches, ledger: Ledger) -> Stretches:
    """The stretches with the nodes that others leave throughout, and those that begin when others end."""
    reached = ledger.reached()
    touched = np.isin(ways.offer, sorted(reached))
    if not touched.any():
        return ways
    later = [_later(problem, ways, int(index), ledger) for index in np.flatnonzero(touched)]
    found = joined([ways, *later])
    nodes, starts = found.nodes.copy(), found.start_s.astype(np.float64)
    for offer in sorted(reached):
        at = np.flatnonzero(found.offer == offer)
        if len(at):
            nodes[at] = np.minimum(nodes[at], ledger.free_between(offer, starts[at], found.end_s[at]))
    return replace(found, nodes=np.maximum(nodes, 0)).where(nodes > 0)


def _later(problem: Problem, ways: Stretches, index: int, ledger: Ledger) -> Stretches:
    """The stretch from each end of another holding on, outside windows."""
    begin, end = float(ways.begin_s[index]), float(ways.end_s[index])
    offer = int(ways.offer[index])
    ends = sorted({b for _, b, _ in ledger.taken_near(offer) if begin < b < end})
    if problem.table.is_window[offer]:
        ends = []
    found = ways.where(np.full(len(ends), index, dtype=np.int64))
    starts = np.array(ends, dtype=np.int64)
    most = np.minimum(found.most, found.rate * (found.end_s - starts - found.cold_s))
    unit = np.where(most > 0, found.unit_usd * found.most / np.maximum(most, 1e-9), np.inf)
    later = replace(found, start_s=starts, begin_s=starts.astype(np.float64), most=most, unit_usd=unit)
    return later.where(most >= 1)
