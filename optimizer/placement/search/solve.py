"""The search: price, choose, improve, prove. Read it from the top.

Every candidate is priced once and the cheapest become columns. Few workloads are chosen by the master problem
over all columns, improved by local search, and bounded by a relaxation in which every candidate takes part.
Many workloads are placed greedily and then in ``rounds``: dual prices prove a bound and guide column
generation; ruin and recreate and the solver on neighbourhoods build plans. Few workloads get these rounds as
well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from optimizer.placement.columns.bound import relaxed_bound_cents, separate_bound_cents
from optimizer.placement.columns.fleet_pool import (
    first_fleets,
    fleets_for_terms,
    unlimited_fleets,
)
from optimizer.placement.columns.greedy import place_greedily
from optimizer.placement.columns.known_bounds import remember
from optimizer.placement.columns.master import Choice, solve_master
from optimizer.placement.columns.prices import StockPrices
from optimizer.placement.columns.run_pool import RunPool, bound_anew, build_run_pools
from optimizer.placement.columns.search import Search as Search
from optimizer.placement.columns.search import choice_from, gap_of
from optimizer.placement.problem.columns import Column, in_cents
from optimizer.placement.problem.problem import Problem
from optimizer.placement.problem.transfers import linked
from optimizer.placement.runtime.stopwatch import never
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.earlier_ends import EarlierEnds, equal_share
from optimizer.placement.search.improve import Improver
from optimizer.placement.search.moves import made_until
from optimizer.placement.search.rounds import Rounds
from optimizer.placement.search.runner_up import settled


@dataclass(frozen=True, slots=True)
class Solution:
    """The best choice, its bound, and the columns from which it was chosen.

    ``bound_cents`` is None if a workload that must be placed is not. It bounds cost, lateness and delay;
    neither it nor the gap includes the cost of leaving what is held.
    """

    choice: Choice
    bound_cents: int | None
    columns: tuple[Column, ...]
    pools: Mapping[str, RunPool]
    prices: StockPrices

    @property
    def gap(self) -> float | None:
        """Relative gap; None without a bound."""
        return None if self.bound_cents is None else gap_of(self.billed_cents, self.bound_cents)

    @property
    def billed_cents(self) -> int:
        """Cost, lateness, delay and penalties, without the cost of leaving what is held."""
        return self.choice.objective_cents - self.choice.switching_cents


def solve(search: Search) -> Solution:
    """The best plan found in time, and its proven bound."""
    candidates = search.candidates
    settling = settling_seconds(search)
    search.watch.limit_s -= settling
    few = candidates.is_small
    out_of_time = search.watch.until(TUNING.search.services_share)
    candidates.bound_services(out_of_time, waiting=not few)
    candidates.price_delays()
    pools = build_run_pools(candidates, lean=not few)
    search.prove(separate_bound_cents(candidates, pools), "priced")

    columns = first_plan(search, pools)
    rounds: Rounds | None = None
    if not few and not search.done:
        columns = plan_terms(search, pools, columns)
        rounds = Rounds(search, pools, columns)
        rounds.improve_first_plan()
        columns = rounds.pool.all()
    known_usd = _cheapest_usd(columns)
    candidates.bound_services(search.watch.until(TUNING.search.bounds_share), known_usd=known_usd)
    search.prove(separate_bound_cents(candidates, pools), "bounded alone")
    if not few and not search.done:
        bound_terms(search, pools, columns)
    bound_ends(search, pools)
    if few and not search.done:
        columns = list(dict.fromkeys([*columns, *first_plans(search, pools)]))
        # Each service's fleets were built as if it were alone, so that the bounds are a by-product.
        candidates.bound_services(search.watch.over, known_usd=known_usd)
        search.prove(separate_bound_cents(candidates, pools), "bounded alone")
    if few and not search.done:
        limits = search.share(TUNING.search.bound_share)
        search.prove(relaxed_bound_cents(candidates, pools, limits), "bounded")
    if not search.done:
        rounds = rounds or Rounds(search, pools, columns)
        search.proof = rounds.proof
        rounds.run(hasty=not few)
        rounds.proof.prove_in_background()
        columns = rounds.pool.all()
        prove_longer(search, pools, columns)

    best = finish(search, pools, columns, _finishing_seconds(search, settling))
    search.watch.limit_s += settling
    if rounds is None:
        remember(candidates, None, None)
    return solution_of(search, best, columns, pools)


def _finishing_seconds(search: Search, settling: float) -> float | None:
    """Time for final polishing; None: as much as it needs, with new fleets."""
    if search.candidates.is_small:
        return None
    return max(settling, search.watch.left)


def bound_ends(search: Search, pools: Mapping[str, RunPool]) -> None:
    """Tightens the bounds of services that follow runs, where a gap is open."""
    candidates, best = search.candidates, search.best
    if search.done or best is None:
        return
    most_usd = {}
    for name in candidates.runs:
        group = [name, *(service.name for service in candidates.problem.followers(name))]
        placed = all(one in best.columns for one in group)
        most_usd[name] = sum(best.columns[one].total_cents for one in group) / 100 if placed else inf
    candidates.bound_ends(most_usd, search.watch.until(TUNING.search.ends_share))
    bound_anew(candidates, pools)
    search.prove(separate_bound_cents(candidates, pools), "bounded alone")


def finish(
    search: Search, pools: Mapping[str, RunPool], columns: Sequence[Column], seconds: float | None
) -> Choice:
    """The best choice after polishing, with each run at its earliest end of equal cost. Each of the two steps
    may take ``seconds`` (None: no limit).
    """
    settle(search, pools, columns, None if seconds is None else search.watch.for_seconds(seconds))
    make = made_until(search.watch.over)
    sooner = EarlierEnds(search.candidates, pools, columns, equal_share(search.asked_gap), make=make)
    return end_earlier(search, sooner, never if seconds is None else search.watch.for_seconds(seconds))


def no_dearer_than(search: Search, solution: Solution, others: Sequence[Mapping[str, Column]]) -> Solution:
    """The solution, or the polished cheapest of ``others`` if that is cheaper and within the budget."""
    before = search.best
    for chosen in others:
        if _is_affordable(search.candidates.problem, chosen):
            search.offer_columns(chosen, "compared")
    if search.best is before:
        return solution
    known = [*solution.columns, *(column for chosen in others for column in chosen.values())]
    columns = list(dict.fromkeys(known))
    seconds = _finishing_seconds(search, settling_seconds(search))
    best = finish(search, solution.pools, columns, seconds)
    return solution_of(search, best, columns, solution.pools)


def _is_affordable(problem: Problem, chosen: Mapping[str, Column]) -> bool:
    budget = problem.request.held_budget_usd
    return budget is None or sum(c.counted_cents for c in chosen.values()) <= in_cents(budget)


def solution_of(
    search: Search, best: Choice, columns: Sequence[Column], pools: Mapping[str, RunPool]
) -> Solution:
    """The best choice with its bound, columns and prices."""
    billed = best.objective_cents - best.switching_cents
    bound = None if best.required_missing else min(search.bound_cents, billed)
    return Solution(best, bound, tuple(columns), pools, search.prices)


def _cheapest_usd(columns: Sequence[Column]) -> dict[str, float]:
    """Cost of the cheapest column of each workload."""
    usd: dict[str, float] = {}
    for column in columns:
        usd[column.workload] = min(usd.get(column.workload, inf), column.total_cents / 100)
    return usd


def plan_terms(search: Search, pools: Mapping[str, RunPool], columns: list[Column]) -> list[Column]:
    """Adds fleets with minimum terms."""
    fresh = fleets_for_terms(search.candidates, pools, columns, search.watch.until(TUNING.search.terms_share))
    columns = list(dict.fromkeys([*columns, *linked(search.candidates.problem, fresh, columns)]))
    search.offer(greedy_choice(search.candidates.problem, columns), "with terms")
    return columns


def bound_terms(search: Search, pools: Mapping[str, RunPool], columns: Sequence[Column]) -> None:
    """Bounds services with minimum terms, in a share of the time."""
    out_of_time = search.watch.until(TUNING.search.terms_bound_share)
    search.candidates.bound_with_terms(out_of_time, _cheapest_usd(columns))
    search.prove(separate_bound_cents(search.candidates, pools), "bounded with terms")


def prove_longer(search: Search, pools: Mapping[str, RunPool], columns: Sequence[Column]) -> None:
    """Bounds again, with more work each, the services whose gap is open, while time is left."""
    known_usd = _cheapest_usd(columns)
    for factor in TUNING.search.longer_proofs:
        if search.done:
            return
        search.candidates.bound_with_terms(
            search.watch.over, known_usd, factor * TUNING.fleets.most_work_of_many
        )
        search.prove(separate_bound_cents(search.candidates, pools), "bounded with terms")


def first_plan(search: Search, pools: Mapping[str, RunPool]) -> list[Column]:
    """A few columns of each run, one simple fleet of each service in the remaining stock, and the greedy
    choice.
    """
    runs = [column for pool in pools.values() for column in pool.columns]
    chosen = place_greedily(search.candidates.problem, runs)
    quick = not search.candidates.is_small
    out_of_time = search.watch.until(TUNING.search.first_share)
    made = first_fleets(search.candidates, pools, chosen, out_of_time, quick=quick, pace=search.pace)
    columns = runs + linked(search.candidates.problem, made, runs)
    search.offer(greedy_choice(search.candidates.problem, columns), "greedy")
    return columns


def first_plans(search: Search, pools: Mapping[str, RunPool]) -> list[Column]:
    """Columns, and the best choice among them: greedy first, then the master problem, then local search."""
    columns = starting_columns(search, pools)
    search.offer(greedy_choice(search.candidates.problem, columns), "greedy")
    columns = compose(search, pools, columns)
    if not search.done:
        search.offer(choose(search, columns), "chosen")
    return improve(search, pools, columns)


def settle(
    search: Search,
    pools: Mapping[str, RunPool],
    columns: Sequence[Column],
    hurry: Callable[[], bool] | None = None,
) -> Choice:
    """The best choice after every single improving change."""
    assert search.best is not None
    make = made_until(search.watch.over)
    chosen = settled(search.candidates, pools, columns, search.best.columns, hurry, make=make)
    search.offer_columns(chosen, "settled")
    return search.best


def end_earlier(search: Search, sooner: EarlierEnds, out_of_time: Callable[[], bool]) -> Choice:
    """The best choice with each run at its earliest end of equal cost."""
    assert search.best is not None
    before = search.best.columns
    chosen = sooner.taken(before, out_of_time)
    if chosen != before:
        search.best = choice_from(search.candidates.problem, chosen)
    return search.best


def settling_seconds(search: Search) -> float:
    """Time reserved for final polishing, in seconds."""
    each = TUNING.search.settle_s_each * len(search.candidates.problem.request.workloads)
    return min(each, TUNING.search.most_settle_share * search.watch.limit_s)


def starting_columns(search: Search, pools: Mapping[str, RunPool]) -> list[Column]:
    """Columns of all runs, and of all services in the stock that the greedy choice of runs leaves."""
    runs = [column for pool in pools.values() for column in pool.columns]
    chosen = place_greedily(search.candidates.problem, runs)
    out_of_time = search.watch.until(TUNING.search.first_share)
    made = first_fleets(search.candidates, pools, chosen, out_of_time)
    return runs + linked(search.candidates.problem, made, runs)


def greedy_choice(problem: Problem, columns: Sequence[Column]) -> Choice:
    """The greedy plan."""
    return choice_from(problem, place_greedily(problem, columns))


def choose(search: Search, columns: Sequence[Column]) -> Choice | None:
    """The master problem's choice in a share of the remaining time, warm-started with the incumbent."""
    hint = search.best.columns if search.best is not None else None
    limits = search.share(TUNING.search.master_share)
    return solve_master(search.candidates.problem, columns, limits, hint)


def compose(search: Search, pools: Mapping[str, RunPool], columns: list[Column]) -> list[Column]:
    """Adds fleets of each service as if it were alone."""
    out_of_time = search.watch.until(TUNING.search.compose_share)
    chosen = search.best.columns if search.best is not None else {}
    fresh = unlimited_fleets(search.candidates, pools, chosen, out_of_time)
    columns = list(dict.fromkeys([*columns, *linked(search.candidates.problem, fresh, columns)]))
    search.offer(greedy_choice(search.candidates.problem, columns), "composed")
    return columns


def improve(search: Search, pools: Mapping[str, RunPool], columns: list[Column]) -> list[Column]:
    """Local search on the incumbent: every dependency group is placed again until nothing helps."""
    if search.done or search.best is None:
        return columns
    out_of_time = search.watch.until(TUNING.search.improve_share)
    improver = Improver(
        search.candidates,
        pools,
        dict(search.best.columns),
        columns,
        out_of_time,
        lambda chosen: search.offer_columns(chosen, "improved"),
        make=made_until(out_of_time),
    )
    improver.run()
    return list(dict.fromkeys([*columns, *improver.chosen.values()]))
