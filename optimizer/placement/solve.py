"""The search: price, choose, prove, improve; read it from the top.

Every candidate is priced once; the cheapest become columns; the master chooses among them; a
relaxation with all candidates proves how far from the best the choice can be; fleets are built anew
beside what the others took until the gap is small enough or the time is over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from broker.ports import Progress, ProgressSink
from optimizer.placement.bound import relaxed_bound_cents, separate_bound_cents
from optimizer.placement.candidates import Candidates
from optimizer.placement.columns import Column
from optimizer.placement.fleet_pool import better_fleets, first_fleets
from optimizer.placement.greedy import place_greedily
from optimizer.placement.master import Choice, Limits, choice_of, solve_master
from optimizer.placement.prices import priced_fleets
from optimizer.placement.problem import Problem
from optimizer.placement.run_pool import RunPool, build_run_pools

MAX_ROUNDS = 6
MASTER_SHARE = 0.4
BOUND_SHARE = 0.3
PRICE_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Solution:
    """The best choice, what is proven of it, and the columns that it was chosen from.

    ``bound_cents`` None: something that must be placed is not, so no amount bounds the plan.
    """

    choice: Choice
    bound_cents: int | None
    columns: tuple[Column, ...]
    pools: Mapping[str, RunPool]

    @property
    def gap(self) -> float | None:
        """Relative gap; None without a bound."""
        return None if self.bound_cents is None else gap_of(self.choice.objective_cents, self.bound_cents)


def gap_of(objective_cents: int, bound_cents: int) -> float:
    """(objective − bound) / objective, 0 for a plan that costs nothing."""
    return (objective_cents - bound_cents) / objective_cents if objective_cents else 0.0


@dataclass(slots=True)
class Search:
    """What is known so far; tells ``progress`` of each step."""

    candidates: Candidates
    limits: Limits
    progress: ProgressSink | None = None
    started: float = field(default_factory=time.monotonic)
    best: Choice | None = None
    bound_cents: int = 0

    @property
    def seconds(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self.limits.seconds - self.seconds)

    def offer(self, choice: Choice | None, stage: str) -> bool:
        """Takes a choice if it is better than the best; whether it is."""
        better = choice is not None and (self.best is None or choice.rank < self.best.rank)
        if better:
            self.best = choice
        self.tell(stage)
        return better

    def prove(self, bound_cents: int | None, stage: str) -> None:
        """Takes a bound if it is higher than the best."""
        if bound_cents is not None:
            self.bound_cents = max(self.bound_cents, bound_cents)
        self.tell(stage)

    def watch(self, objective_cents: float, _: float) -> None:
        """Reports each better choice while the master is still being solved."""
        if self.best is not None and not self.best.required_missing:
            self.tell("choosing", min(round(objective_cents), self.best.objective_cents))

    def tell(self, stage: str, incumbent: int | None = None) -> None:
        """Reports incumbent, bound and gap."""
        if self.progress is None:
            return
        if incumbent is None and self.best is not None and not self.best.required_missing:
            incumbent = self.best.objective_cents
        bound = self.bound_cents if incumbent is None else min(self.bound_cents, incumbent)
        gap = None if incumbent is None else gap_of(incumbent, bound)
        usd = None if incumbent is None else incumbent / 100
        self.progress(Progress(self.seconds, usd, bound / 100, gap, stage))

    @property
    def done(self) -> bool:
        """Whether the asked gap is proven or the time is over."""
        if self.left <= 0:
            return True
        if self.best is None or self.best.required_missing:
            return False
        return gap_of(self.best.objective_cents, self.bound_cents) <= self.limits.gap


def solve(candidates: Candidates, limits: Limits, progress: ProgressSink | None = None) -> Solution:
    """The best plan found in time, and the bound that is proven of it."""
    search = Search(candidates, limits, progress)
    pools = build_run_pools(candidates)
    search.prove(separate_bound_cents(candidates, pools), "priced")

    columns = starting_columns(candidates, pools)
    search.offer(greedy_choice(candidates.problem, columns), "greedy")
    search.offer(choose(search, columns, MASTER_SHARE), "chosen")
    if not search.done:
        search.prove(relaxed_bound_cents(candidates, pools, share(search, BOUND_SHARE)), "bounded")
    columns = make_way(search, columns)
    columns = improve(search, pools, columns)

    assert search.best is not None
    whole = not search.best.required_missing
    bound = min(search.bound_cents, search.best.objective_cents) if whole else None
    return Solution(search.best, bound, tuple(columns), pools)


def starting_columns(candidates: Candidates, pools: Mapping[str, RunPool]) -> list[Column]:
    """Columns of all runs, and of all services beside the runs' cheapest places."""
    runs = [column for pool in pools.values() for column in pool.columns]
    return runs + first_fleets(candidates, pools, place_greedily(candidates.problem, runs))


def greedy_choice(problem: Problem, columns: Sequence[Column]) -> Choice:
    """The greedy plan as a choice."""
    chosen = place_greedily(problem, columns)
    waiting = {s.name for s in problem.services() if s.starts_after and s.starts_after not in chosen}
    left = frozenset(w.name for w in problem.request.workloads if w.name not in chosen) - waiting
    return choice_of(problem, chosen, left, 0.0, proven=False)


def choose(search: Search, columns: Sequence[Column], part: float) -> Choice | None:
    """The master's choice in a part of the time that is left, begun at the best so far."""
    hint = search.best.columns if search.best is not None else None
    return solve_master(search.candidates.problem, columns, share(search, part), hint, search.watch)


def share(search: Search, part: float) -> Limits:
    """A part of the time that is left; a tenth of the asked gap, so that the gap is spent once."""
    return Limits(search.left * part, search.limits.gap / 10, search.limits.seed)


def make_way(search: Search, columns: list[Column]) -> list[Column]:
    """Fleets that leave scarce offers to whom they are worth most."""
    if search.done:
        return columns
    until = search.seconds + PRICE_SHARE * search.left
    fresh = priced_fleets(search.candidates, columns, lambda: search.seconds >= until)
    columns = list(dict.fromkeys([*columns, *fresh]))
    if fresh:
        search.offer(choose(search, columns, MASTER_SHARE), "priced")
    return columns


def improve(search: Search, pools: Mapping[str, RunPool], columns: list[Column]) -> list[Column]:
    """Rounds of fleets built beside the best choice, until nothing new, the gap or the time ends them."""
    known = set(columns)
    for _ in range(MAX_ROUNDS):
        if search.done or search.best is None:
            break
        fresh = [c for c in better_fleets(search.candidates, pools, search.best.columns) if c not in known]
        if not fresh:
            break
        known.update(fresh)
        columns = columns + fresh
        if not search.offer(choose(search, columns, MASTER_SHARE), "improved"):
            break
    return columns
