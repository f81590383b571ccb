"""Lower bounds on ways of a run that are not built: parts of any number and length.

Each share of a run's work costs at least what it takes on the offer that does it, at that offer's price by
the hour. So with one node count a run in several parts costs at least a knapsack of its work: listed windows
whole, other windows up to what they hold, and the cheapest offer outside windows for the rest. Listed windows
pay for their starts; a run that is on others too pays for one more, and a run on others alone for two. W
windows.
"""

from __future__ import annotations

import numpy as np

from broker.domain.planning.workload import Training
from optimizer.placement.problem.billing_groups import limit_of
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.gates import Opened, open_gates
from optimizer.placement.problem.problem import Floats, Ints, Problem
from optimizer.placement.problem.transfers import staged_s
from optimizer.placement.problem.windows import waiting_offers, window_rows
from optimizer.placement.runs.candidates import first_instant_s, last_second
from optimizer.placement.runs.sizes import Sizes, interrupted_s
from optimizer.placement.runtime.tuning import TUNING

ROUNDING_USD = 0.01
TINY_S = 1e-9


def least_in_parts_usd(problem: Problem, estimates: Estimates, run: Training, sizes: Sizes) -> float:
    """Lower bound on the cost of an interruptible run in two parts or more; inf if it fits nowhere."""
    opened = open_gates(problem, run)
    found = [_least_with(problem, estimates, run, opened, sizes, size) for size in range(len(sizes.counts))]
    return max(0.0, min(found, default=np.inf) - ROUNDING_USD)


def _least_with(
    problem: Problem, estimates: Estimates, run: Training, opened: Opened, sizes: Sizes, size: int
) -> float:
    table, windows, startup_s = problem.table, window_rows(problem), estimates.startup_hours * 3600
    waiting = np.zeros(len(table), dtype=np.bool_)
    waiting[waiting_offers(problem)] = True
    enough = opened.passing & (sizes.counts[size] <= limit_of(table, sizes.limit))
    free = np.flatnonzero(enough & (~table.is_window | waiting))
    rows = np.flatnonzero(enough[windows.offer])

    def work_s(offers: Ints) -> Floats:
        """Held seconds [M] of the whole run without its start."""
        same = np.full(len(offers), size, dtype=np.int64)
        share = np.where(table.is_held_on[offers], sizes.mean_share[table.sku_of[offers], size], 1.0)
        needed = interrupted_s(problem, estimates, run, sizes, offers, same) - startup_s
        return np.maximum(needed * share, TINY_S)

    offers = windows.offer[rows]
    needed_s = work_s(offers)
    ready_s = np.maximum(first_instant_s(problem, run), staged_s(problem, run)[offers])
    until_s = np.minimum(windows.free_until_s[rows] - windows.teardown_s[rows], last_second(problem, run))
    there_s = np.maximum(until_s - np.maximum(windows.start_s[rows], ready_s), 0.0)
    rest_usd = float((table.price_usd[free] * work_s(free)).min(initial=np.inf))
    if not len(free) and not len(rows):
        return float("inf")
    # What is bought whole has its start within what is paid.
    share = np.maximum(there_s - np.where(windows.whole[rows], startup_s, 0.0), 0.0) / needed_s
    with np.errstate(invalid="ignore"):
        cut_usd = table.price_usd[offers] * needed_s
        whole_usd = np.where(windows.whole[rows], windows.node_cost_usd[rows] * 3600, cut_usd)
        near = whole_usd < np.where(windows.whole[rows], np.minimum(share, 1.0), 1.0) * rest_usd
    listed, cut = near & windows.whole[rows] & (share > 0), near & ~windows.whole[rows]
    bought = _listed_usd(share[listed], whole_usd[listed])
    others = _divisible_usd(share[cut], whole_usd[cut], rest_usd)
    by_need = np.concatenate((table.price_usd[free], table.price_usd[offers[~windows.whole[rows]]]))
    begun = np.full(
        TUNING.runs.any_part_steps + 1, startup_s * float(by_need.min()) if len(by_need) else np.inf
    )
    begun[0], begun[TUNING.runs.any_part_steps] = 2 * begun[0], 0.0
    return float(sizes.counts[size]) * float((bought + others + begun).min()) / 3600


def _listed_usd(share: Floats, usd: Floats) -> Floats:
    """Least USD [steps + 1] for at least each part of the work on windows [W] that are sold whole."""
    found = np.append(0.0, np.full(TUNING.runs.any_part_steps, np.inf))
    for steps, price in zip(
        np.ceil(np.minimum(share, 1.0) * TUNING.runs.any_part_steps).astype(np.int64), usd, strict=True
    ):
        before = np.concatenate((np.zeros(steps), found[: TUNING.runs.any_part_steps + 1 - steps]))
        found = np.minimum(found, before + price)
    return found


def _divisible_usd(share: Floats, usd: Floats, rest_usd: float) -> Floats:
    """Least USD [steps + 1] for what each part of the work leaves, on windows [W] of which any part can be
    bought and outside windows.
    """
    left = 1.0 - np.arange(TUNING.runs.any_part_steps + 1) / TUNING.runs.any_part_steps
    found = np.zeros(TUNING.runs.any_part_steps + 1)
    for row in np.argsort(usd, kind="stable"):
        taken = np.minimum(left, share[row])
        found += taken * usd[row]
        left = left - taken
    with np.errstate(invalid="ignore"):
        found += np.where(left > 0, left * rest_usd, 0.0)
    return found
