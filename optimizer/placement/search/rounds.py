"""Rounds of column generation and heuristics: price stock, prove a bound, generate columns, build plans.

Evaluating a service (its bound or its fleets) is expensive, so it is done only where the answer matters: for
bounds, the service with the largest gap between known columns and bound; for fleets, services whose known
columns are furthest above their bound, or whose current column is furthest above their best.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from optimizer.placement.columns.column_pool import ColumnPool
from optimizer.placement.columns.dual import Dual, Paid
from optimizer.placement.columns.fleet_pool import remaining_nodes
from optimizer.placement.columns.master import Limits
from optimizer.placement.columns.priced_runs import runs_at_prices
from optimizer.placement.columns.prices import StockPrices
from optimizer.placement.columns.proving import Proving
from optimizer.placement.columns.relaxation import Relaxed, relax
from optimizer.placement.columns.run_pool import RunPool
from optimizer.placement.columns.search import Search
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.stock import Ledger
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.improve import Improver
from optimizer.placement.search.moves import dependency_groups, made_until
from optimizer.placement.search.neighbours import choose_anew, neighbourhoods
from optimizer.placement.search.plan_state import NEVER_CENTS, PlanState, free_names, left_cents
from optimizer.placement.search.ruin import Ruin
from optimizer.placement.workers.asks import FleetsAsk, QuickFleetsAsk
from optimizer.placement.workers.worker_pool import Task


class Rounds:
    """State of the column generation: columns, dual prices and the incumbent (in ``search``)."""

    def __init__(
        self,
        search: Search,
        runs: Mapping[str, RunPool],
        columns: list[Column],
        prices: StockPrices | None = None,
        frozen: frozenset[str] = frozenset(),
    ) -> None:
        self.search = search
        self.candidates = search.candidates
        self.problem = search.candidates.problem
        self.runs = runs
        self.pool = ColumnPool(self.problem)
        self.pool.add(columns)
        self.dual = Dual(search.candidates, runs)
        self.prices = prices or StockPrices()
        self.relaxed: Relaxed | None = None
        self.rng = random.Random(search.seed)  # noqa: S311  draws, not secrets
        self.names = sorted(free_names(search.candidates) - frozen)
        self.frozen = frozen
        self.proof = Proving(search, self.pool, self.dual, self.prices, len(self.names))
        self._asked: set[tuple[str, Paid]] = set()
        self._asked_refits: set[tuple[str, bytes]] = set()
        self._generate_s = 0.0
        self._solved: set[tuple[frozenset[str], tuple[int, ...], int]] = set()

    def run(self, *, hasty: bool = False) -> None:
        """Repeats rounds until the gap is reached, the time is over, or several rounds changed nothing.

        ``hasty``: the incumbent is a rough first plan, so cheaper plans are searched before anything is
        proven.
        """
        self._rounds(hasty=hasty)
        self.proof.gather()

    def _rounds(self, *, hasty: bool) -> None:
        stale = 0
        self.proof.prefetch()
        if hasty and not self.search.done:
            self.improve_first_plan()
        if not self.search.done:
            self.proof.prove(self.prices, self.search.watch.until(TUNING.search.first_proof_share))
        # The first dual prices come from few columns; with many workloads they are not worth a proof.
        if hasty and not self.search.done:
            self.generate_and_price()
        for _ in range(TUNING.search.most_rounds):
            before = self._state()
            for step in (
                self.generate_and_price,
                self.converge_prices,
                self.build_plan,
                self.solve_neighbourhoods,
                self.refit_fleets,
                self.improve_dependent_runs,
                self.evaluate_rest,
            ):
                if self.search.done:
                    return
                step()
            stale = stale + 1 if self._state() == before else 0
            if stale >= TUNING.search.stale_rounds:
                return

    def improve_first_plan(self) -> None:
        """Builds fleets beside all others and plans from these, while that makes the plan cheaper and until a
        share of the time is over.
        """
        out_of_time = self.search.watch.until(TUNING.search.first_rounds_share)
        for _ in range(TUNING.search.first_rounds):
            before = self._state()[0]
            self.refit_fleets(out_of_time)
            if not self.search.done:
                self.build_plan()
            if self.search.done or out_of_time() or self._state()[0] >= before:
                return

    def _state(self) -> tuple[int, int, int]:
        best = self.search.best
        objective = NEVER_CENTS if best is None else best.objective_cents
        return objective, self.search.bound_cents, sum(len(c) for c in self.pool.by_workload.values())

    def _leave_usd(self) -> dict[str, float]:
        return {name: left_cents(self.problem, name) / 100 for name in self.pool.by_workload}

    def generate_and_price(self) -> None:
        """Generates columns at the dual prices, then updates the prices."""
        began_s = self.search.watch.seconds
        self.generate_columns()
        if not self.search.done:
            self.reprice()
        self._generate_s = self.search.watch.seconds - began_s

    def reprice(self) -> None:
        """Updates the dual prices by solving the relaxation over all known columns."""
        rows = self.relaxed.rows if self.relaxed is not None else tuple(sorted(self.prices.usd))
        seconds = TUNING.search.relax_share * self.search.watch.left
        found = relax(self.pool, self._leave_usd(), rows, self.prices, seconds)
        if found is not None:
            self.relaxed, self.prices = found, found.prices
            self.proof.aim = found.prices

    def converge_prices(self) -> None:
        """Alternates proving and column generation until other prices could add little to the bound for the
        time that an evaluation takes, or until time is short.
        """
        proof, watch = self.proof, self.search.watch
        out_of_time, end_s = (
            watch.until(TUNING.search.converge_share),
            watch.second_at(TUNING.search.converge_share),
        )
        for _ in range(TUNING.search.converge_steps):
            before, began_s = proof.centre.total_usd, watch.seconds
            if not proof.prove_next(out_of_time):
                return
            asked_s = watch.seconds - began_s
            is_late = watch.seconds + asked_s + self._generate_s > end_s
            if is_late or proof.centre.total_usd < (1 + TUNING.search.converged_share) * before:
                return
            self.generate_and_price()
            relaxed_usd = float("inf") if self.relaxed is None else self.relaxed.usd
            if proof.open_usd(relaxed_usd) < TUNING.search.converged_share * proof.centre.total_usd:
                return

    def evaluate_rest(self) -> None:
        """Evaluates at the best prices what was not evaluated there, which can only raise the bound."""
        self.proof.ask_on(self.search.watch.until(TUNING.search.ask_on_share))

    def generate_columns(self) -> None:
        """Generates columns at the dual prices: for runs, and for services whose columns are above their
        bound.
        """
        out_of_time = self.search.watch.until(TUNING.search.make_share)
        for name in self.runs:
            if out_of_time():
                break
            self.pool.add(runs_at_prices(self.candidates, self.runs[name], self.prices))
        self.candidates.workers.run(self._fleets_tasks(out_of_time), out_of_time)
        self.search.tell()

    def _fleets_tasks(self, out_of_time: Callable[[], bool]) -> Iterator[Task]:
        """Asks for fleets of the services whose known columns are furthest above their bound at the
        prices.
        """
        least = self.pool.least_usd(self.prices, self.candidates.fleets)
        above = {
            name: least.get(name, float("inf")) - self.dual.known_usd(name, self.prices)
            for name in self.candidates.fleets
            if name in self.names
        }
        for name in sorted(above, key=lambda n: (-above[n], n)):
            if above[name] < self.proof.worth_usd() or out_of_time():
                break
            task = self._fleets_task(name)
            if task is not None:
                yield task

    def _fleets_task(self, name: str) -> Task | None:
        """The task that builds a service's fleets at the prices; None if it was done before."""
        paid = self.dual.key(name, self.prices)
        case = self.dual.case_at(name, paid)
        key = (name, paid)
        if key in self._asked:
            return None
        self._asked.add(key)
        free = remaining_nodes(self.candidates, case.service, Ledger(self.problem), None)
        ask = FleetsAsk if self.candidates.is_small else QuickFleetsAsk
        return Task(("fleets", *key), ask(case, free), self._add)

    def _add(self, columns: list[Column]) -> None:
        self.pool.add(columns)

    def build_plan(self) -> None:
        """Builds a plan from the relaxation: integral columns first, the others by regret insertion at the
        dual prices. Then applies ruin and recreate to the incumbent.
        """
        if self.search.best is None or not self.names:
            return
        self.proof.prefetch()
        fixed = {n: c for n, c in self.search.best.columns.items() if n not in self.names}
        anew = PlanState(self.candidates, fixed)
        for name in self.names:
            # Integral columns may still conflict between two priced instants, or in a pool of GPUs.
            whole = None if self.relaxed is None else self.relaxed.whole(name)
            if whole is not None and anew.allows(whole):
                anew.place(whole)
        others = [name for name in self.names if name not in anew.chosen]
        self._ruin(anew, others).insert(others, 1.0, self.search.watch.over)
        self.search.offer_columns(anew.chosen, "inserted")
        ruin = self._ruin(PlanState(self.candidates, dict(self.search.best.columns)), self.names)
        ruin.run(
            TUNING.search.ruin_steps * len(self.names), self.search.watch.until(TUNING.search.ruin_share)
        )
        self.search.offer_columns(ruin.state.chosen, "recreated")

    def _ruin(self, state: PlanState, names: Sequence[str]) -> Ruin:
        return Ruin(self.candidates, self.runs, self.pool, state, names, self.prices, self.rng)

    def solve_neighbourhoods(self) -> None:
        """Lets the solver re-optimise each neighbourhood of the incumbent, unless it did so before."""
        if self.search.best is None:
            return
        state = PlanState(self.candidates, dict(self.search.best.columns))
        out_of_time = self.search.watch.until(TUNING.search.combine_share)
        for group in neighbourhoods(self.pool, state, self.names, self.prices):
            if out_of_time():
                break
            known = group.names, tuple(map(id, group.columns)), state.cents(self.names)
            if known in self._solved:
                continue
            limits = Limits(
                self.search.watch.left,
                self.search.asked_gap / 10,
                self.search.seed,
                TUNING.search.neighbourhood_work,
            )
            if choose_anew(self.problem, state, group, limits):
                self.search.offer_columns(state.chosen, "combined")
            else:
                self._solved.add(known)

    def refit_fleets(self, out_of_time: Callable[[], bool] | None = None) -> None:
        """Builds fleets from the stock that other workloads leave, for services furthest above their best."""
        if self.search.best is None:
            return
        state = PlanState(self.candidates, dict(self.search.best.columns))
        least = self.pool.least_usd(StockPrices(), self.candidates.fleets)
        above = {
            name: state.cents([name]) / 100
            - min(least.get(name, 0.0), self.dual.known_usd(name, StockPrices()))
            for name in self.candidates.fleets
            if name in self.names
        }
        out_of_time = out_of_time or self.search.watch.until(TUNING.search.make_share)
        self.proof.prefetch()

        def tasks() -> Iterator[Task]:
            for name in sorted(above, key=lambda n: (-above[n], n)):
                if above[name] < self.proof.worth_usd() or out_of_time():
                    return
                task = self._refit_task(state, name)
                if task is not None:
                    yield task

        self.candidates.workers.run(tasks(), out_of_time)
        self.search.offer_columns(state.chosen, "refitted")

    def _refit_task(self, state: PlanState, name: str) -> Task | None:
        """The task that builds fleets from the remaining stock, then places the best one that fits by
        then.
        """
        case, now = self.candidates.fleets[name], state.remove(name)
        free = remaining_nodes(self.candidates, case.service, state.ledger, None)
        if now is not None:
            state.place(now)
        key = (name, free[case.units.offer].tobytes())

        def take(found: list[Column]) -> None:
            self.pool.add(found)
            self._place_best(state, name)

        if key in self._asked_refits:
            self._place_best(state, name)
            return None
        self._asked_refits.add(key)
        ask = FleetsAsk if self.candidates.is_small else QuickFleetsAsk
        return Task(("refit", *key), ask(case, free), take)

    def _place_best(self, state: PlanState, name: str) -> None:
        """Replaces a service's column by the cheapest known fleet that fits, if that is cheaper."""
        now = state.remove(name)
        most = left_cents(self.problem, name) if now is None else now.total_cents
        better = (c for c in self.pool.of(name) if c.total_cents < most and state.allows(c))
        column = next(better, now)
        if column is not None:
            state.place(column)

    def improve_dependent_runs(self) -> None:
        """Places each run that has followers, together with these, again while all others stay."""
        if self.search.best is None:
            return
        among = [
            group
            for group in dependency_groups(self.candidates)
            if group.followers and not self.frozen & set(group.names)
        ]
        if not among:
            return
        out_of_time = self.search.watch.until(TUNING.search.make_share)
        improver = Improver(
            self.candidates,
            self.runs,
            dict(self.search.best.columns),
            self.pool.all(),
            out_of_time,
            lambda chosen: self.search.offer_columns(chosen, "improved"),
            among,
            made_until(out_of_time),
        )
        improver.run()
        self.pool.add(improver.chosen.values())
