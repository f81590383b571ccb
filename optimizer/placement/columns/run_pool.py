"""Which run candidates become columns, and a lower bound on the cost of all others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from broker.domain.planning.workload import Batch
from optimizer.placement.columns.candidates import MOST_AMOUNTS, Candidates, floor_cents
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import UNLIMITED_NODES, Floats, Ints
from optimizer.placement.problem.stock import contended_rows
from optimizer.placement.runs.candidates import RunCandidates
from optimizer.placement.runs.columns import begun_later, build_run_column
from optimizer.placement.runs.parts import divided_ways, is_divisible
from optimizer.placement.runtime.tuning import TUNING

DUMMY_END_S = -1.0


@dataclass(slots=True)
class RunPool:
    """Columns of one run. ``kept``: candidates that have a column; ``later``: their columns with later
    starts.

    ``divided``: ways of a batch in several parts. ``truncated``: offers on which some starts were left out;
    their candidates still count in the lower bound.
    ``beyond_usd``: lower bound, followers included, on every candidate that is not among ``found``.
    """

    found: RunCandidates
    total_usd: Floats
    beyond_usd: float = float("inf")
    kept: dict[int, Column] = field(default_factory=dict)
    later: dict[tuple[int, int], Column] = field(default_factory=dict)
    divided: list[Column] = field(default_factory=list)
    truncated: set[int] = field(default_factory=set)

    @property
    def columns(self) -> list[Column]:
        """All columns of the run."""
        return [*self.kept.values(), *self.later.values(), *self.divided]

    def rest_usd(self) -> float | None:
        """Lower bound on every candidate without a column, followers included; None if there is no such
        candidate.
        """
        rest = np.ones(len(self.found), dtype=np.bool_)
        rest[list(self.kept)] = False
        if self.truncated:
            rest |= np.isin(self.found.offer, list(self.truncated))
        least = min(float(self.total_usd[rest].min(initial=np.inf)), self.beyond_usd)
        return least if np.isfinite(least) else None


def build_run_pools(candidates: Candidates, *, lean: bool = False) -> dict[str, RunPool]:
    """Columns of every run at its first starts, then at later ones where stock is contended.

    ``lean``: only a few of the first; column generation at dual prices adds more.
    """
    pools = bare_pools(candidates)
    add_first_columns(candidates, pools, lean=lean)
    if not lean:
        _add_window_rows(candidates, pools)
        _add_later_starts(candidates, pools)
    return pools


def bare_pools(candidates: Candidates) -> dict[str, RunPool]:
    """The pool of every run, still without columns."""
    return {name: _bare(candidates, found) for name, found in candidates.runs.items()}


def bound_anew(candidates: Candidates, pools: Mapping[str, RunPool]) -> None:
    """Updates the pools with the bounds of followers that were computed since."""
    for pool in pools.values():
        fresh = _bare(candidates, pool.found)
        pool.total_usd, pool.beyond_usd = fresh.total_usd, fresh.beyond_usd


def _bare(candidates: Candidates, found: RunCandidates) -> RunPool:
    total = found.total_usd + candidates.least_followers_usd(found.run.name, found.end_s)
    return RunPool(found, total, candidates.beyond_usd(found))


def add_first_columns(candidates: Candidates, pools: Mapping[str, RunPool], *, lean: bool) -> None:
    """Builds columns of every run at its first starts; ``lean``: only a few."""
    sizes = (
        (TUNING.columns.lean_cheapest, TUNING.columns.lean_offers, TUNING.columns.lean_fastest)
        if lean
        else (TUNING.columns.kept_cheapest, TUNING.columns.kept_offers, TUNING.columns.kept_fastest)
    )
    for name, pool in pools.items():
        leads = bool(candidates.problem.followers(name))
        for index in _chosen(pool.found, pool.total_usd, leads, sizes):
            keep(candidates, pool, index)
        run = pool.found.run
        if isinstance(run, Batch) and is_divisible(run):
            pool.divided = divided_ways(candidates.problem, candidates.estimates, run)


def keep(candidates: Candidates, pool: RunPool, index: int) -> None:
    """Builds the column of a candidate, if its exact length allows one."""
    if index not in pool.kept:
        column = build_run_column(candidates.problem, candidates.estimates, pool.found, index)
        if column is not None:
            pool.kept[index] = column


def _chosen(found: RunCandidates, total: Floats, leads: bool, sizes: tuple[int, int, int]) -> list[int]:
    """The cheapest candidates, the cheapest of each of the cheapest offers, and the fastest."""
    cheap = first_few(total, TUNING.columns.most_sorted)
    order = cheap[np.lexsort((found.nodes[cheap], found.end_s[cheap], total[cheap]))]
    _, first = np.unique(found.offer[order], return_index=True)
    best_by_offer = order[np.sort(first)]
    fast = first_few(found.end_s, TUNING.columns.most_sorted)
    fastest = fast[np.lexsort((total[fast], found.end_s[fast]))]
    parts = (order[: sizes[0]], best_by_offer[: sizes[1]], fastest[: sizes[2]])
    chosen = list(dict.fromkeys(int(i) for part in parts for i in part))
    return chosen[: TUNING.columns.kept_leading] if leads else chosen


def first_few(values: Floats, count: int) -> Ints:
    """Indices of the ``count`` smallest values in ascending order; of equal values the first."""
    if len(values) <= count:
        return np.arange(len(values))
    edge = np.partition(values, count)[count]
    below, equal = np.flatnonzero(values < edge), np.flatnonzero(values == edge)
    few: Ints = np.sort(np.concatenate((below, equal[: count - len(below)])))
    return few


def _contended(candidates: Candidates, pools: Mapping[str, RunPool]) -> set[int]:
    columns = [column for pool in pools.values() for column in pool.columns]
    return {row.offer for row in contended_rows(candidates.problem, columns) or ()}


def _add_window_rows(candidates: Candidates, pools: Mapping[str, RunPool]) -> None:
    """Adds starts and sizes on windows for which several runs compete."""
    table = candidates.problem.table
    for offer in sorted(_contended(candidates, pools)):
        if table.is_window[offer]:
            for pool in pools.values():
                inside = np.flatnonzero(pool.found.offer == offer)
                order = inside[np.lexsort((pool.found.start_s[inside], pool.total_usd[inside]))]
                for index in order[: TUNING.columns.kept_at_window]:
                    keep(candidates, pool, int(index))


def _add_later_starts(candidates: Candidates, pools: Mapping[str, RunPool]) -> None:
    """Adds starts at which another run's holding on a contended offer ends.

    Costs never fall with time, so only starts at once or at such an end are needed. A run with followers is
    not delayed for a shorter one.
    """
    problem = candidates.problem
    contended = _contended(candidates, pools)
    users = _users(pools)
    for offer in sorted(contended):
        if problem.table.is_window[offer] or problem.table.stock_nodes[offer] >= UNLIMITED_NODES:
            continue
        here = {name: pools[name] for name in users[offer]}
        free = {name: pool for name, pool in here.items() if not problem.followers(name)}
        for _ in range(TUNING.columns.start_rounds):
            if not _one_round(candidates, here, free, offer):
                break
        else:
            _mark_truncated(candidates, here, free, offer)


def _users(pools: Mapping[str, RunPool]) -> Mapping[int, list[str]]:
    """Runs that have columns on each offer."""
    users: defaultdict[int, list[str]] = defaultdict(list)
    for name, pool in pools.items():
        for offer in sorted({piece.offer for column in pool.columns for piece in column.taken}):
            users[offer].append(name)
    return users


def _one_round(
    candidates: Candidates, pools: Mapping[str, RunPool], free: Mapping[str, RunPool], offer: int
) -> bool:
    ends = _ends_by_run(pools, offer)
    added = False
    for name, pool in free.items():
        others = sorted({end for other, found in ends.items() if other != name for end in found})
        for index in [i for i in pool.kept if pool.found.offer[i] == offer]:
            added |= _start_at(candidates, pool, index, others)
    return added


def _start_at(candidates: Candidates, pool: RunPool, index: int, starts: Sequence[int]) -> bool:
    own, added = int(pool.found.start_s[index]), False
    mine = sum(1 for at, _ in pool.later if at == index)
    for start in starts:
        if start <= own or (index, start) in pool.later:
            continue
        column = begun_later(candidates.problem, pool.found.run, pool.kept[index], start)
        if column is None:
            break
        if mine >= TUNING.columns.most_starts:
            pool.truncated.add(int(pool.found.offer[index]))
            break
        pool.later[index, start] = column
        added, mine = True, mine + 1
    return added


def _mark_truncated(
    candidates: Candidates, pools: Mapping[str, RunPool], free: Mapping[str, RunPool], offer: int
) -> None:
    if _one_round(candidates, pools, free, offer):
        for pool in free.values():
            pool.truncated.add(offer)


def _ends_by_run(pools: Mapping[str, RunPool], offer: int) -> Mapping[str, set[int]]:
    ends: defaultdict[str, set[int]] = defaultdict(set)
    for name, pool in pools.items():
        for column in pool.columns:
            for piece in column.taken:
                if piece.offer == offer:
                    ends[name] |= {b for _, b, _ in piece.spans}
    return ends


def dummy_column_of(candidates: Candidates, pool: RunPool) -> Column | None:
    """A dummy column that represents every candidate without a column: it costs the least of them and holds
    nothing.

    Its end lies outside the horizon, so its followers cost nothing; their lower bound is part of its own
    cost.
    """
    rest = pool.rest_usd()
    if rest is None or not np.isfinite(rest):
        return None
    followers = len(candidates.problem.followers(pool.found.run.name))
    cents = floor_cents(rest, placements=1 + MOST_AMOUNTS * followers)
    least = floor_cents(float(pool.found.cost_usd.min(initial=min(rest, pool.found.other_usd))))
    return Column(pool.found.run.name, (), cents, end_s=DUMMY_END_S, budget_cents=min(cents, least))
