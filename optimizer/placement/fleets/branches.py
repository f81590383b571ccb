"""Branches of the search over sets of pools: all pools, or those of a few kinds of GPU.

A fleet may use few kinds of GPU, so its set lies in a branch with that many kinds. Fewer pools compete there
and the further pools are more expensive than in the whole market, which gives higher bounds. G groups of
rates, X steps of rate, C classes of hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from optimizer.placement.fleets.further_pools import any_cover, cheapest_single, joined_by_one
from optimizer.placement.fleets.hours import HourClasses
from optimizer.placement.fleets.joint_pools import JointPools
from optimizer.placement.fleets.rules import FleetRules
from optimizer.placement.problem.problem import Bools, Floats, Ints
from optimizer.placement.runtime.tuning import TUNING


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """The ``rows`` of the table in this branch, empty pools included, and lower bounds on their costs.

    ``further_usd`` [k]: USD [G, P, X] of k pools by steps of rate (``step``), if no rate in use exceeds
    ``largest`` [G, P] and the largest is at least ``smallest`` [G, P]. ``any_usd`` [G, C]: lower bound of
    each class in this case; ``onward`` [C + 1]: lower bound of all classes from each one on. ``kinds``: bit
    mask of the branch's kinds of GPU; 0 for all.
    """

    rows: Ints
    largest: Floats
    smallest: Floats
    step: float
    further_usd: list[Floats]
    any_usd: Floats
    onward: Floats
    kinds: int

    def level_usd(self, demand: Floats, dual: Ints, spare: int) -> Floats:
        """Least USD [C] an hour of each class."""
        usd = any_cover(demand, dual, float(spare), self.smallest, self.step, self.further_usd[-1])
        least: Floats = usd.min(axis=0)
        return least


def whole_table(table: JointPools, classes: HourClasses, rules: FleetRules, size: int) -> Branch:
    """The branch of all sets of ``size`` pools."""
    return _branch(np.arange(len(table)), table, classes, rules, size, TUNING.fleets.branch_steps, 0)


def can_branch(table: JointPools, rules: FleetRules, size: int) -> bool:
    """Whether fleets must use fewer kinds than pools, and the number of branches is acceptable."""
    count = int(_numbers(table).max(initial=-1)) + 1
    return rules.gpus < min(size, count) and comb(count, rules.gpus) <= TUNING.fleets.most_branches


def branches(table: JointPools, classes: HourClasses, rules: FleetRules, size: int) -> Iterator[Branch]:
    """One branch for each choice of as many kinds as a fleet may have; each set of ``size`` pools lies in one
    of them.
    """
    numbers = _numbers(table)
    count = int(numbers.max(initial=-1)) + 1
    together = min(rules.gpus, count)
    for kinds in combinations(range(count), together):
        rows = np.flatnonzero(np.isin(numbers, [-1, *kinds]))
        bits = sum(1 << kind for kind in kinds)
        yield _branch(rows, table, classes, rules, size, TUNING.fleets.many_branch_steps, bits)


def own_sets(table: JointPools, branch: Branch, sets: Ints) -> Bools:
    """Whether each set [N] belongs to this branch, so that every set is enumerated once.

    A set with fewer kinds belongs to the first branch that contains them, and empty pools are used in their
    order.
    """
    numbers = _numbers(table)
    empty = np.flatnonzero(numbers < 0)
    in_order = empty[0] + np.cumsum(numbers[sets] < 0, axis=1) - 1 if len(empty) else sets
    own: Bools = ((numbers[sets] >= 0) | (sets == in_order)).all(axis=1)
    if not branch.kinds:
        return own
    bits = np.where(numbers >= 0, np.int64(1) << np.maximum(numbers, 0), 0)
    mine: Ints = np.bitwise_or.reduce(bits[sets], axis=1)
    of_branch = np.zeros(len(sets), dtype=np.bool_)
    for found in np.unique(mine):
        filled, kind = int(found), 0
        while filled.bit_count() < branch.kinds.bit_count():
            filled |= 1 << kind
            kind += 1
        of_branch |= (mine == found) & (filled == branch.kinds)
    return own & of_branch


def _numbers(table: JointPools) -> Ints:
    """Index of each pool's kind of GPU [L]; -1 for empty pools."""
    _, numbers = np.unique(np.where(table.place >= 0, table.gpu, -1), return_inverse=True)
    shift = int((table.place < 0).any())
    return numbers.reshape(-1).astype(np.int64) - shift


def _branch(
    rows: Ints, table: JointPools, classes: HourClasses, rules: FleetRules, size: int, steps:
    int, kinds: int,
) -> Branch:  # fmt: skip
    smallest, largest = _rate_groups(table.rate[:, rows[table.most[rows] > 0]], classes.stage, rules)
    step = max(float(classes.demand.max()) + rules.spare * float(largest.max()), 1e-12) / steps
    singles = [cheapest_single(rows, table.usd, table.most, table.rate, top, step, steps) for top in largest]
    further_usd = [np.zeros((len(largest), len(table.usd), steps + 1)), np.stack(singles)]
    for _ in range(size - 1):
        further_usd.append(
            np.stack(
                [joined_by_one(one, before) for one, before in zip(singles, further_usd[-1], strict=True)]
            )
        )
    usd = any_cover(classes.demand, classes.dual, float(rules.spare), smallest, step, further_usd[-1])
    onward = np.append(np.cumsum((usd.min(axis=0) * classes.weight)[::-1])[::-1], 0.0)
    return Branch(rows, largest, smallest, step, further_usd, usd, onward, kinds)


def _rate_groups(rate: Floats, stage: Ints, rules: FleetRules) -> tuple[Floats, Floats]:
    """The smallest and the largest rate [G, P] of each group of equal numbers of rates, in the stage of each
    dual price; ``rate`` [P, n].
    """
    rates = [np.unique(rate[np.argmax(stage == one)]) for one in range(int(stage.max()) + 1)]
    if not len(rates[0]):
        rates = [np.ones(1)] * len(rates)  # without nodes nothing is carried, whatever the rate
    most = TUNING.fleets.rate_groups if rules.spare else 1
    count = min(most, *(len(each) for each in rates))
    groups = [np.array_split(each, count) for each in rates]
    smallest = np.array([[group[0] for group in each] for each in groups])
    largest = np.array([[group[-1] for group in each] for each in groups])
    return smallest.T[:, stage].copy(), largest.T[:, stage].copy()
