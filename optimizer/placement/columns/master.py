"""The master problem (CP-SAT): one column for each workload, or none; shared stock, budget and order.

Costs are integer cents, as the plan's own amounts are, so the objective equals the plan's cost + penalty
exactly. Leaving out a workload that must be placed costs more than everything else together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from broker.domain.planning.workload import Serving, Workload
from optimizer.placement.problem.columns import Column, End, in_cents
from optimizer.placement.problem.problem import Problem
from optimizer.placement.problem.stock import Ledger, StockRow, contended_rows
from optimizer.placement.runtime.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True)
class Limits:
    """When the solver stops: seconds, relative gap, and deterministic ``work`` (about seconds, but equal on
    every machine). ``seed`` makes the single-threaded search reproducible.
    """

    seconds: float
    gap: float
    seed: int
    work: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A column for each placed workload; ``objective_cents`` is cost + penalty of the model that was solved.

    ``required_missing``: workloads that must be placed and are not. ``bound_cents`` is the model's lower
    bound.
    """

    columns: Mapping[str, Column]
    left_out: frozenset[str]
    required_missing: frozenset[str]
    objective_cents: int
    bound_cents: float
    proven: bool

    @property
    def switching_cents(self) -> int:
        """The part of the objective that is on no bill: the cost of leaving what is held."""
        return sum(column.switching_cents for column in self.columns.values())

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key, smaller is better: first the number of missing required workloads, then the objective."""
        return len(self.required_missing), self.objective_cents


@dataclass(slots=True)
class MasterModel:
    """The CP-SAT model and its variables."""

    problem: Problem
    columns: Sequence[Column]
    workloads: Sequence[Workload]
    budget_cents: int | None
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    take: list[cp_model.IntVar] = field(default_factory=list)
    leave: dict[str, cp_model.IntVar] = field(default_factory=dict)
    by_workload: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True, slots=True)
class Part:
    """A subset of the workloads that is chosen again while all others keep what they hold (``taken``).

    ``budget_cents``: what the others leave of the budget; None if there is no budget.
    """

    names: frozenset[str]
    taken: Ledger
    budget_cents: int | None


def build_master(
    problem: Problem,
    columns: Sequence[Column],
    out_of_time: Callable[[], bool],
    part: Part | None = None,
) -> MasterModel | None:
    """Builds variables, then one constraint family after another, then the objective; None if time runs out
    first.
    """
    rows = contended_rows(problem, columns, out_of_time, None if part is None else part.taken)
    if rows is None:
        return None
    budget = problem.request.held_budget_usd
    whole = None if budget is None else in_cents(budget)
    workloads = [w for w in problem.request.workloads if part is None or w.name in part.names]
    master = MasterModel(problem, columns, workloads, whole if part is None else part.budget_cents)
    for index, column in enumerate(columns):
        master.take.append(master.model.new_bool_var(f"take{index}"))
        master.by_workload[column.workload].append(index)
    for workload in master.workloads:
        master.leave[workload.name] = master.model.new_bool_var(f"leave[{workload.name}]")
    constrain_choice(master)
    constrain_order(master)
    constrain_stock(master, rows)
    constrain_budget(master)
    minimise_total(master)
    return master


def constrain_choice(master: MasterModel) -> None:
    """Each workload gets one column or is left out; a service whose run is left out needs neither."""
    for workload in master.workloads:
        taken = sum(master.take[i] for i in master.by_workload[workload.name])
        follows = workload.starts_after if isinstance(workload, Serving) else None
        asked = 1 if follows is None else 1 - master.leave[follows]
        master.model.add(taken + master.leave[workload.name] == asked)


def constrain_order(master: MasterModel) -> None:
    """A service's column may only be taken together with a run that ends when and where the column
    assumes.
    """
    for workload in master.workloads:
        if not isinstance(workload, Serving) or workload.starts_after is None:
            continue
        ends: defaultdict[End, list[int]] = defaultdict(list)
        for index in master.by_workload[workload.name]:
            after_s, place = master.columns[index].after
            ends[-1.0 if after_s is None else after_s, place].append(index)
        for end, mine in ends.items():
            runs = [i for i in master.by_workload[workload.starts_after] if master.columns[i].end == end]
            master.model.add(sum(master.take[i] for i in mine) <= sum(master.take[i] for i in runs))


def constrain_stock(master: MasterModel, rows: Sequence[StockRow]) -> None:
    """The nodes taken of an offer never exceed its stock."""
    for row in rows:
        taken = [master.take[index] for index in row.columns]
        master.model.add(cp_model.LinearExpr.weighted_sum(taken, list(row.nodes)) <= row.limit)


def constrain_budget(master: MasterModel) -> None:
    """The plan's cost stays within the budget."""
    if master.budget_cents is not None and master.take:
        costs = [column.counted_cents for column in master.columns]
        master.model.add(cp_model.LinearExpr.weighted_sum(master.take, costs) <= master.budget_cents)


def minimise_total(master: MasterModel) -> None:
    """Minimises cost, lateness and the penalties of what is left out."""
    leave = leave_cents(master.workloads, master.columns)
    variables = [*master.take, *(master.leave[name] for name in leave)]
    costs = [*(column.total_cents for column in master.columns), *leave.values()]
    master.model.minimize(cp_model.LinearExpr.weighted_sum(variables, costs))


def leave_cents(workloads: Sequence[Workload], columns: Sequence[Column]) -> dict[str, int]:
    """Penalty for leaving out each workload; for one that must be placed, more than everything else
    together.
    """
    dearest: defaultdict[str, int] = defaultdict(int)
    for column in columns:
        dearest[column.workload] = max(dearest[column.workload], column.total_cents)
    priced = {w.name: in_cents(w.unplaced_usd) for w in workloads if w.unplaced_usd is not None}
    everything = sum(dearest.values()) + sum(priced.values()) + 1
    return {w.name: priced.get(w.name, everything) for w in workloads}


def solve_master(
    problem: Problem,
    columns: Sequence[Column],
    limits: Limits,
    hint: Mapping[str, Column] | None = None,
    part: Part | None = None,
) -> Choice | None:
    """The best choice found within the limits, or None. With ``part``, only its workloads are chosen."""
    building = Stopwatch(limits.seconds)
    master = build_master(problem, columns, building.over, part)
    if master is None:
        return None
    _hint(master, hint)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = limits.seed
    solver.parameters.max_time_in_seconds = max(0.05, building.left)
    solver.parameters.relative_gap_limit = limits.gap
    if limits.work is not None:
        solver.parameters.max_deterministic_time = limits.work
    status = solver.solve(master.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    chosen = {c.workload: c for i, c in enumerate(columns) if solver.boolean_value(master.take[i])}
    left = frozenset(name for name, variable in master.leave.items() if solver.boolean_value(variable))
    proven = status == cp_model.OPTIMAL
    return choice_of(problem, chosen, left, solver.best_objective_bound, proven)


def choice_of(
    problem: Problem, chosen: Mapping[str, Column], left: frozenset[str], bound_cents: float, proven: bool
) -> Choice:
    """The choice with its objective computed from the columns."""
    priced = {
        w.name: in_cents(w.unplaced_usd) for w in problem.request.workloads if w.unplaced_usd is not None
    }
    total = sum(column.total_cents for column in chosen.values())
    total += sum(priced.get(name, 0) for name in left)
    return Choice(chosen, left, left - frozenset(priced), total, bound_cents, proven)


def _hint(master: MasterModel, hint: Mapping[str, Column] | None) -> None:
    if hint is None:
        return
    wanted = set(hint.values())
    for index, column in enumerate(master.columns):
        master.model.add_hint(master.take[index], column in wanted)
