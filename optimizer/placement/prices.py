"""Prices of scarcity: fleets that make way for each other where their best ladders together pass the stock.

In each round every service that is touched takes its best ladder at the prices so far; the price of an
offer rises with what is wanted beyond its stock and falls again when it is not. The prices only steer
which fleets become columns; the master and the bound know nothing of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from optimizer.placement.candidates import Candidates
from optimizer.placement.columns import Column
from optimizer.placement.fleet_pool import fleets
from optimizer.placement.ladders import free_nodes
from optimizer.placement.units import surcharged

ROUNDS = 8
STEP = 0.25
DECAY = 0.8


def priced_fleets(
    candidates: Candidates, columns: list[Column], out_of_time: Callable[[], bool]
) -> list[Column]:
    """New columns of the services that do not follow a run."""
    wanted = _favourites(columns)
    services = [s.name for s in candidates.problem.services() if s.starts_after is None and s.name in wanted]
    prices: dict[int, float] = {}
    found: list[Column] = []
    for _ in range(ROUNDS):
        prices = _moved(candidates, prices, wanted)
        if not prices:
            break
        for name in services:
            if out_of_time():
                return found
            if any(piece.offer in prices for piece in wanted[name].pieces) or name in _touched(found):
                columns = _best_at(candidates, name, prices)
                found.extend(columns)
                if columns:
                    wanted[name] = min(columns, key=lambda c: _priced_cents(candidates, c, prices))
    return found


def _favourites(columns: list[Column]) -> dict[str, Column]:
    """The cheapest column of each workload."""
    cheapest: dict[str, Column] = {}
    for column in columns:
        known = cheapest.get(column.workload)
        if known is None or column.total_cents < known.total_cents:
            cheapest[column.workload] = column
    return cheapest


def _touched(found: list[Column]) -> set[str]:
    return {column.workload for column in found}


def _moved(
    candidates: Candidates, prices: Mapping[int, float], wanted: Mapping[str, Column]
) -> dict[int, float]:
    """Prices after a round: up where more is wanted than there is, down elsewhere."""
    table = candidates.problem.table
    nodes: defaultdict[int, int] = defaultdict(int)
    for column in wanted.values():
        for piece in column.pieces:
            nodes[piece.offer] += max(count for _, _, count in piece.spans)
    moved = {offer: usd * DECAY for offer, usd in prices.items() if usd > 1e-4}
    for offer, count in nodes.items():
        over = count - int(table.stock_nodes[offer])
        if over > 0:
            step = STEP * float(table.price_usd[offer]) * min(1.0, over / int(table.stock_nodes[offer]))
            moved[offer] = prices.get(offer, 0.0) + step
    return moved


def _best_at(candidates: Candidates, name: str, prices: Mapping[int, float]) -> list[Column]:
    problem, case = candidates.problem, surcharged(candidates.fleets[name], prices)
    return fleets(candidates, case, free_nodes(problem), [None], None, 1)


def _priced_cents(candidates: Candidates, column: Column, prices: Mapping[int, float]) -> float:
    """Cost of a column with the prices of scarcity on what it holds."""
    held = ((p.offer, (b - a) / 3600 * n) for p in column.pieces for a, b, n in p.spans)
    return column.total_cents + 100 * sum(prices.get(offer, 0.0) * hours for offer, hours in held)
