"""The search: price, choose, improve, prove; read it from the top.

Every candidate is priced once; the cheapest become columns; the master chooses among them; the choice
is improved party by party; a relaxation with all candidates proves how far from the best it can be;
fleets are built anew beside what the others took until the gap is small enough or the time is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.ports import Progress, ProgressSink
from optimizer.placement.bound import relaxed_bound_cents, separate_bound_cents
from optimizer.placement.candidates import Candidates
from optimizer.placement.columns import Column
from optimizer.placement.fleet_pool import better_fleets, composed_fleets, first_fleets
from optimizer.placement.greedy import place_greedily
from optimizer.placement.improve import Improver
from optimizer.placement.master import Choice, Limits, choice_of, solve_master
from optimizer.placement.problem import Problem
from optimizer.placement.run_pool import RunPool, build_run_pools
from optimizer.placement.runner_up import settled
from optimizer.placement.stopwatch import Stopwatch

MAX_ROUNDS = 12
MASTER_SHARE = 0.25
BOUND_SHARE = 0.3
FIRST_SHARE = 0.4
COMPOSE_SHARE = 0.5
IMPROVE_SHARE = 0.5
PRICE_SHARE = 0.4
SETTLE_SECONDS_EACH = 0.01
MOST_SETTLE_SHARE = 0.1


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


class Search:
    """What is known so far; tells ``progress`` of each step."""

    def __init__(
        self,
        candidates: Candidates,
        watch: Stopwatch,
        gap: float,
        seed: int,
        progress: ProgressSink | None = None,
    ) -> None:
        self.candidates = candidates
        self.watch = watch
        self.asked_gap = gap
        self.seed = seed
        self.best: Choice | None = None
        self.bound_cents = 0
        self._progress = progress
        self._stage = "priced"

    def offer(self, choice: Choice | None, stage: str) -> bool:
        """Takes a choice if it is better than the best; whether it is."""
        better = choice is not None and (self.best is None or choice.rank < self.best.rank)
        if better:
            self.best = choice
        self._stage = stage
        self.tell()
        return better

    def offer_columns(self, chosen: Mapping[str, Column], stage: str) -> bool:
        """The same for a column of each placed workload."""
        return self.offer(choice_from(self.candidates.problem, chosen), stage)

    def prove(self, bound_cents: int | None, stage: str) -> None:
        """Takes a bound if it is higher than the best."""
        if bound_cents is not None:
            self.bound_cents = max(self.bound_cents, bound_cents)
        self._stage = stage
        self.tell()

    def tell(self) -> None:
        """Reports incumbent, bound and gap."""
        if self._progress is None:
            return
        known = self.best is not None and not self.best.required_missing
        incumbent = self.best.objective_cents if known and self.best is not None else None
        bound = self.bound_cents if incumbent is None else min(self.bound_cents, incumbent)
        gap = None if incumbent is None else gap_of(incumbent, bound)
        usd = None if incumbent is None else incumbent / 100
        self._progress(Progress(self.watch.seconds, usd, bound / 100, gap, self._stage))

    @property
    def done(self) -> bool:
        """Whether the asked gap is proven or the time is over."""
        if self.watch.over():
            return True
        if self.best is None or self.best.required_missing:
            return False
        return gap_of(self.best.objective_cents, self.bound_cents) <= self.asked_gap

    def share(self, part: float) -> Limits:
        """A part of the time that is left; a tenth of the asked gap, so that the gap is spent once."""
        return Limits(self.watch.left * part, self.asked_gap / 10, self.seed)


def solve(search: Search) -> Solution:
    """The best plan found in time, and the bound that is proven of it."""
    candidates = search.candidates
    search.watch.limit_s -= settling_seconds(search)
    pools = build_run_pools(candidates)
    search.prove(separate_bound_cents(candidates, pools), "priced")

    columns = first_plans(search, pools)
    if not search.done:
        limits = search.share(BOUND_SHARE)
        search.prove(relaxed_bound_cents(candidates, pools, limits), "bounded")
    columns = make_way(search, columns)
    columns = rebuild(search, pools, columns)

    best = settle(search, pools, columns)
    bound = None if best.required_missing else min(search.bound_cents, best.objective_cents)
    return Solution(best, bound, tuple(columns), pools)


def search_only(search: Search) -> Choice:
    """The best choice found in time, with no bound: for what is only compared with a plan."""
    pools = build_run_pools(search.candidates)
    return settle(search, pools, first_plans(search, pools))


def first_plans(search: Search, pools: Mapping[str, RunPool]) -> list[Column]:
    """Columns, and the best choice of them: at once by greed, then by the master, then party by party."""
    columns = starting_columns(search, pools)
    search.offer(greedy_choice(search.candidates.problem, columns), "greedy")
    columns = compose(search, pools, columns)
    if not search.done:
        search.offer(choose(search, columns), "chosen")
    return improve(search, pools, columns)


def settle(search: Search, pools: Mapping[str, RunPool], columns: Sequence[Column]) -> Choice:
    """The best choice after the last look at every single change."""
    assert search.best is not None
    search.offer_columns(settled(search.candidates, pools, columns, search.best.columns), "settled")
    return search.best


def settling_seconds(search: Search) -> float:
    """Kept back for the last look at every single change."""
    each = SETTLE_SECONDS_EACH * len(search.candidates.problem.request.workloads)
    return min(each, MOST_SETTLE_SHARE * search.watch.limit_s)


def starting_columns(search: Search, pools: Mapping[str, RunPool]) -> list[Column]:
    """Columns of all runs, and of all services beside the runs' cheapest places."""
    runs = [column for pool in pools.values() for column in pool.columns]
    chosen = place_greedily(search.candidates.problem, runs)
    return runs + first_fleets(search.candidates, pools, chosen, search.watch.until(FIRST_SHARE))


def choice_from(problem: Problem, chosen: Mapping[str, Column]) -> Choice:
    """The columns as a choice, with what they leave out."""
    waiting = {s.name for s in problem.services() if s.starts_after and s.starts_after not in chosen}
    left = frozenset(w.name for w in problem.request.workloads if w.name not in chosen) - waiting
    return choice_of(problem, dict(chosen), left, 0.0, proven=False)


def greedy_choice(problem: Problem, columns: Sequence[Column]) -> Choice:
    """The greedy plan as a choice."""
    return choice_from(problem, place_greedily(problem, columns))


def choose(search: Search, columns: Sequence[Column]) -> Choice | None:
    """The master's choice in a part of the time that is left, begun at the best so far."""
    hint = search.best.columns if search.best is not None else None
    limits = search.share(MASTER_SHARE)
    return solve_master(search.candidates.problem, columns, limits, hint)


def compose(search: Search, pools: Mapping[str, RunPool], columns: list[Column]) -> list[Column]:
    """Fleets that change their composition with the hours, service by service."""
    out_of_time = search.watch.until(COMPOSE_SHARE)
    chosen = search.best.columns if search.best is not None else {}
    fresh = composed_fleets(search.candidates, pools, chosen, out_of_time)
    columns = list(dict.fromkeys([*columns, *fresh]))
    search.offer(greedy_choice(search.candidates.problem, columns), "composed")
    return columns


def improve(search: Search, pools: Mapping[str, RunPool], columns: list[Column]) -> list[Column]:
    """Every party of the best choice placed anew beside the others, until nothing helps."""
    if search.done or search.best is None:
        return columns
    improver = Improver(
        search.candidates,
        pools,
        dict(search.best.columns),
        columns,
        search.watch.until(IMPROVE_SHARE),
        lambda chosen: search.offer_columns(chosen, "improved"),
    )
    improver.run()
    return list(dict.fromkeys([*columns, *improver.chosen.values()]))


def make_way(search: Search, columns: list[Column]) -> list[Column]:
    """Fleets that leave scarce offers to whom they are worth most."""
    if search.done:
        return columns
    fresh: list[Column] = []
    columns = list(dict.fromkeys([*columns, *fresh]))
    if fresh and not search.done:
        search.offer(choose(search, columns), "priced")
    return columns


def rebuild(search: Search, pools: Mapping[str, RunPool], columns: list[Column]) -> list[Column]:
    """Rounds of fleets built beside the best choice, until nothing new, the gap or the time ends them."""
    known = set(columns)
    for _ in range(MAX_ROUNDS):
        if search.done or search.best is None:
            break
        made = better_fleets(search.candidates, pools, search.best.columns, search.watch.over)
        fresh = [column for column in made if column not in known]
        known.update(fresh)
        columns = columns + fresh
        before: Choice = search.best
        if fresh and not search.done:
            search.offer(choose(search, columns), "rebuilt")
        columns = improve(search, pools, columns)
        if search.best is before:
            break
    return columns
