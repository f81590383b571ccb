"""Candidates of runs (training and batch): offer × node count × start, as flat arrays [X].

Costs are floats here, for pricing and for the bound. The columns of the master problem are priced exactly
(``runs.columns``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from broker.domain.planning.workload import Batch, Training
from optimizer.placement.problem.gates import GateLog
from optimizer.placement.problem.problem import Bools, Floats, Ints, Problem
from optimizer.placement.problem.transfers import staged_s

LATE_LIMIT_S = 24 * 3600

Run = Training | Batch


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """Ways to place a run [X]; ``nodes`` are those to buy. A split run is represented by its first part, with
    the end and the cost of both parts.
    """

    offer: Ints
    size: Ints
    nodes: Ints
    start_s: Ints
    until_s: Ints
    end_s: Floats
    cost_usd: Floats
    needed_s: Floats

    def __len__(self) -> int:
        return len(self.offer)

    def where(self, kept: Ints | Bools) -> Ways:
        """The entries ``kept``, in the order given."""
        return Ways(*(getattr(self, name)[kept] for name in self.__slots__))

    @classmethod
    def joined(cls, ways: Sequence[Ways]) -> Ways:
        """Concatenates one or more sets of ways."""
        return cls(*(np.concatenate([getattr(way, name) for way in ways]) for name in cls.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Splits:
    """Second parts of split runs [Y]: ``share`` of the work in the first part; the second part's offer, nodes
    to buy, start and end of what is bought, and held seconds of work.
    """

    share: Floats
    offer: Ints
    nodes: Ints
    start_s: Ints
    until_s: Ints
    needed_s: Floats

    def __len__(self) -> int:
        return len(self.offer)

    def where(self, kept: Ints) -> Splits:
        """The entries ``kept``."""
        return Splits(*(getattr(self, name)[kept] for name in self.__slots__))

    @classmethod
    def joined(cls, splits: Sequence[Splits]) -> Splits:
        """Concatenates one or more sets of splits."""
        return cls(*(np.concatenate([getattr(one, name) for one in splits]) for name in cls.__slots__))

    @classmethod
    def none(cls) -> Splits:
        """An empty set of splits."""
        floats, ints = np.zeros(0), np.zeros(0, dtype=np.int64)
        return cls(floats, ints, ints, ints, ints, floats)


@dataclass(frozen=True, slots=True, eq=False)
class RunCandidates:
    """Candidates of one run [X], each at its first possible start; ``end_s`` is the end of the run.

    ``split`` [X] is a row of ``splits``, or -1 for a whole run. A split run is represented by its first part;
    cost, end and lateness are those of both parts. ``recourse`` [X] is the offer on which the rest of a whole
    run may have to run, or -1; its expected cost is part of the cost. ``nodes`` are those to buy; ``choice``
    says how many of them work. Every candidate that is not included costs at least ``rest_usd`` (inf: all are
    included), and every way that is no candidate at least ``other_usd`` (``any_parts``).
    """

    run: Run
    log: GateLog
    offer: Ints
    choice: Ints
    nodes: Ints
    start_s: Ints
    until_s: Ints
    end_s: Floats
    cost_usd: Floats
    late_usd: Floats
    needed_s: Floats
    rest_usd: float
    split: Ints
    splits: Splits
    recourse: Ints
    other_usd: float = np.inf

    def __len__(self) -> int:
        return len(self.offer)

    @property
    def total_usd(self) -> Floats:
        """Cost and lateness."""
        return self.cost_usd + self.late_usd


def first_second(problem: Problem, run: Run) -> int:
    """First whole second at which the run may work."""
    return max(problem.t0_s, math.ceil(problem.seconds(run.earliest_start)))


def first_instant_s(problem: Problem, run: Run) -> float:
    """First instant at which prepaid nodes are useful; not rounded, as their holding does not begin
    with it.
    """
    return max(0.0, problem.seconds(problem.as_of), problem.seconds(run.earliest_start))


def first_seconds(problem: Problem, run: Run, offers: Ints) -> Ints:
    """First whole second at which a run may work on each of ``offers``, once its data is there."""
    staged = np.ceil(staged_s(problem, run)[offers]).astype(np.int64)
    first: Ints = np.maximum(first_second(problem, run), staged)
    return first


def begins_s(problem: Problem, run: Run, offer: int) -> float:
    """First instant at which prepaid nodes of an offer are useful."""
    return max(first_instant_s(problem, run), float(staged_s(problem, run)[offer]))


def deadline_s(problem: Problem, run: Run) -> float:
    """The deadline in seconds from the origin."""
    return problem.seconds(run.deadline)


def last_second(problem: Problem, run: Run) -> float:
    """Latest allowed end: the deadline, or a day later if lateness has a price."""
    late = isinstance(run, Training) and run.late_usd_per_hour is not None
    return deadline_s(problem, run) + (LATE_LIMIT_S if late else 0)


def held_s(needed_s: Floats) -> tuple[Ints, Floats]:
    """Whole seconds to hold, and the run's length rounded to microseconds."""
    micro = np.rint(needed_s * 1e6)
    return np.ceil(micro / 1e6).astype(np.int64), micro / 1e6
