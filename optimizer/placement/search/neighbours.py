"""Neighbourhoods: workloads that compete for the same scarce offers, re-optimised together by the solver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from optimizer.placement.columns.column_pool import ColumnPool
from optimizer.placement.columns.master import Limits, Part, solve_master
from optimizer.placement.columns.prices import StockPrices
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import Problem
from optimizer.placement.runtime.tuning import TUNING
from optimizer.placement.search.plan_state import PlanState, left_cents, wanted_by


@dataclass(frozen=True, slots=True, eq=False)
class Neighbourhood:
    """The workloads ``names`` are chosen again among ``columns``; all others stay fixed."""

    names: frozenset[str]
    columns: tuple[Column, ...]


def neighbourhoods(
    pool: ColumnPool, state: PlanState, names: Sequence[str], prices: StockPrices
) -> Iterator[Neighbourhood]:
    """For each scarce offer, most valuable stock first: the workloads that hold it and those that want it
    most.
    """
    options = {name: _options(pool, state, name, prices) for name in names}
    wanted = wanted_by(options)
    worth = {o: usd * int(pool.problem.table.stock_nodes[o]) for o, usd in prices.throughout().items()}
    for offer, rows in prices.at_instants(pool.problem).items():
        worth[offer] = worth.get(offer, 0.0) + sum(usd for _, usd in rows)
    covered: set[str] = set()
    for offer in sorted(worth, key=lambda o: (-worth[o], o)):
        near = (state.holders[offer] & options.keys()) | wanted.get(offer, set())
        if len(near) < 2 or near <= covered:
            continue
        chosen = _nearest(pool, state, prices, near)
        covered |= set(chosen)
        columns = tuple(column for name in sorted(chosen) for column in options[name])
        yield Neighbourhood(frozenset(chosen), columns)


def _options(pool: ColumnPool, state: PlanState, name: str, prices: StockPrices) -> list[Column]:
    columns = pool.of(name)
    priced = sorted(columns, key=lambda column: pool.priced_usd(prices, column))
    now = state.chosen.get(name)
    kept = [
        *columns[: TUNING.search.neighbour_options // 2],
        *priced[: TUNING.search.neighbour_options],
        *([] if now is None else [now]),
    ]
    return list(dict.fromkeys(kept))


def _nearest(pool: ColumnPool, state: PlanState, prices: StockPrices, near: set[str]) -> list[str]:
    """The workloads whose columns cost most above their best, at the dual prices."""

    def excess(name: str) -> float:
        columns, now = pool.of(name), state.chosen.get(name)
        if now is None or not columns:
            return float("inf")
        return pool.priced_usd(prices, now) - min(
            pool.priced_usd(prices, c) for c in columns[: TUNING.search.neighbour_options]
        )

    return sorted(near, key=lambda name: (-excess(name), name))[: TUNING.search.most_neighbours]


def choose_anew(problem: Problem, state: PlanState, group: Neighbourhood, limits: Limits) -> bool:
    """Replaces the group's columns by the solver's choice if that costs less; returns whether it does."""
    found = _chosen_anew(problem, state, group, limits)
    if found is None:
        return False
    cents = sum(found[n].total_cents if n in found else left_cents(problem, n) for n in group.names)
    if cents >= state.cents(group.names):
        return False
    for name in group.names:
        state.remove(name)
    for column in found.values():
        state.place(column)
    return True


def _chosen_anew(
    problem: Problem, state: PlanState, group: Neighbourhood, limits: Limits
) -> Mapping[str, Column] | None:
    """The solver's choice for the group; None if it finds none in time."""
    old = {name: state.chosen[name] for name in group.names if name in state.chosen}
    for name in old:
        state.remove(name)
    left = None if state.budget_cents is None else state.budget_cents - state.spent_cents
    found = solve_master(problem, group.columns, limits, old, Part(group.names, state.ledger, left))
    for column in old.values():
        state.place(column)
    return None if found is None else found.columns
