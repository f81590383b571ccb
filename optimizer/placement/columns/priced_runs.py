"""The cost of every candidate of a run at the dual prices, at its cheapest start."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from broker.domain.planning.workload import Batch, Training
from optimizer.placement.columns.candidates import Candidates
from optimizer.placement.columns.prices import StockPrices, counted_midway
from optimizer.placement.columns.run_pool import RunPool, keep
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem
from optimizer.placement.runs.candidates import RunCandidates, deadline_s, last_second
from optimizer.placement.runs.columns import begun_later
from optimizer.placement.runs.parts import divided_ways, is_divisible, least_parts_usd
from optimizer.placement.runs.stretches import Charges
from optimizer.placement.runtime.tuning import TUNING


def runs_at_prices(candidates: Candidates, pool: RunPool, prices: StockPrices) -> list[Column]:
    """Columns of a run on its few cheapest offers at the dual prices, each at its cheapest start."""
    if not prices.usd:
        return []
    run, made, seen = pool.found.run, list[Column](), set[int]()
    if isinstance(run, Batch) and is_divisible(run) and len(candidates.runs) <= TUNING.runs.few_stretched:
        charges = charges_of(candidates.problem, prices)
        made += divided_ways(candidates.problem, candidates.estimates, run, charges=charges)[
            : TUNING.columns.runs_at_prices
        ]
    if not len(pool.found):
        return made
    usd, start = priced_runs(candidates, pool, prices)
    for index in usd.argsort(kind="stable")[: 8 * TUNING.columns.runs_at_prices]:
        offer = int(pool.found.offer[index])
        if offer in seen or len(seen) >= TUNING.columns.runs_at_prices:
            continue
        seen.add(offer)
        keep(candidates, pool, int(index))
        column: Column | None = pool.kept.get(int(index))
        if column is not None and start[index] > pool.found.start_s[index]:
            column = begun_later(candidates.problem, pool.found.run, column, int(start[index]))
        if column is not None:
            made.append(column)
    return made


def charges_of(problem: Problem, prices: StockPrices) -> Charges:
    """What each offer is charged at the dual prices; commitments counted at the midpoint are not charged, as
    a part may end before it.
    """
    per_hour = prices.charged(problem)
    counted = {offer: usd for offer, usd in per_hour.items() if not counted_midway(problem, offer)}
    return Charges(counted, prices.at_instants(problem))


def least_parts_at_prices(candidates: Candidates, run: Batch, prices: StockPrices) -> float:
    """Lower bound on a divisible batch at the dual prices, in however many parts."""
    charges = charges_of(candidates.problem, prices)
    return least_parts_usd(candidates.problem, candidates.estimates, run, charges)


def priced_runs(candidates: Candidates, pool: RunPool, prices: StockPrices) -> tuple[Floats, Ints]:
    """Cost in USD of each candidate [X] at the dual prices at its cheapest start, and that start.

    Without dual prices costs never fall with a later start, so only starts just after a priced instant are
    tried.
    """
    problem, found = candidates.problem, pool.found
    charge = np.zeros(len(problem.table))
    throughout, instants = prices.charged(problem), prices.at_instants(problem)
    charge[list(throughout)] = list(throughout.values())
    start = found.start_s.copy()
    usd = pool.total_usd + found.nodes * charge[found.offer] * _counted_hours(problem, found)
    priced = np.zeros(len(problem.table), dtype=np.bool_)
    priced[list(instants)] = True
    touched = np.flatnonzero(priced[found.offer])
    led = bool(problem.followers(found.run.name))
    alike: defaultdict[tuple[bool, tuple[tuple[int, float], ...]], list[int]] = defaultdict(list)
    for offer in np.unique(found.offer[touched]):
        alike[bool(problem.table.is_window[offer]), tuple(instants[int(offer)])].append(int(offer))
    for (is_window, rows), offers in alike.items():
        here = touched[np.isin(found.offer[touched], offers)]
        starts = [found.start_s[here]]
        if not led and not is_window:
            starts += [np.maximum(found.start_s[here], second + 1) for second, _ in rows]
        options = [usd[here] + _begun_usd(candidates, found, here, begin, rows) for begin in starts]
        best = np.argmin(options, axis=0)
        usd[here] = np.array(options)[best, np.arange(len(here))]
        start[here] = np.array(starts)[best, np.arange(len(here))]
    return usd, start


def _counted_hours(problem: Problem, found: RunCandidates) -> Floats:
    """Hours [X] for which a candidate pays the dual price of its offer's whole-horizon constraint.

    Commitments that are owed in full are counted at the midpoint instead. A candidate pays there only if
    every later start would also hold the midpoint, which is never certain, so it pays nothing.
    """
    hours = (found.until_s - found.start_s) / 3600
    counted: Floats = np.where(counted_midway(problem, found.offer), 0.0, hours)
    return counted


def _begun_usd(
    candidates: Candidates, found: RunCandidates, here: Ints, begin: Ints, rows: Sequence[tuple[int, float]]
) -> Floats:
    """USD beyond the cost of the first start, for candidates of one offer that start at ``begin``; inf if too
    late.
    """
    shift = begin - found.start_s[here]
    until = found.until_s[here] + shift
    usd = _later_usd(candidates, found, here, shift)
    for second, price in rows:
        usd = usd + found.nodes[here] * _holds(begin, until, second) * price
    return usd


def _holds(begin: Ints, until: Ints, second: int) -> Bools:
    held: Bools = (begin <= second) & (second < until)
    return held


def _later_usd(candidates: Candidates, found: RunCandidates, here: Ints, shift: Ints) -> Floats:
    """Additional lateness penalty in USD of starting ``shift`` seconds later; inf if that is not allowed."""
    problem, run = candidates.problem, found.run
    end = found.end_s[here] + shift
    late = np.zeros(len(here))
    if isinstance(run, Training) and run.late_usd_per_hour is not None:
        hours = np.maximum(0.0, end - deadline_s(problem, run)) / 3600
        late = hours * float(run.late_usd_per_hour) - found.late_usd[here]
    there = found.until_s[here] + shift <= problem.table.gone_s[found.offer[here]]
    allowed = (shift == 0) | ((end <= last_second(problem, run)) & there)
    usd: Floats = np.where(allowed, late, np.inf)
    return usd
