"""State of a search: the incumbent, the bound and the time. It reports progress."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Protocol

from broker.ports.planning import Progress, ProgressSink
from optimizer.placement.columns.candidates import Candidates, unplaced_cents
from optimizer.placement.columns.master import Choice, Limits, choice_of
from optimizer.placement.columns.prices import StockPrices
from optimizer.placement.problem.columns import Column
from optimizer.placement.problem.problem import Problem
from optimizer.placement.runtime.stopwatch import Pace, Stopwatch


def gap_of(objective_cents: int, bound_cents: int) -> float:
    """(objective − bound) / objective; 0 for a plan that costs nothing."""
    return (objective_cents - bound_cents) / objective_cents if objective_cents else 0.0


def controllable_gap_of(objective_cents: int, bound_cents: int, left_out_cents: int) -> float:
    """The gap relative to what a plan spends, without the penalties of left-out workloads; 0 if none is open.

    (objective − bound) / (objective − penalties of left-out workloads)
    """
    open_cents, controllable_cents = objective_cents - bound_cents, objective_cents - left_out_cents
    if open_cents <= 0:
        return 0.0
    return open_cents / controllable_cents if controllable_cents > 0 else inf


class Proof(Protocol):
    """A proof that can be continued after the search has ended."""

    def prove_in_background(self) -> None:
        """Lets idle workers continue in the background."""

    def prove_on(self) -> None:
        """Collects their answers, then continues until the time is over or the gap is reached."""

    def remember(self) -> None:
        """Stores what is proven for the next search."""


class Search:
    """Incumbent, bound and limits of a search; reports each step to ``progress``.

    ``prices``: those with the best bound; ``proof``: continues while the plan is explained; ``pace``:
    deadline of the first plan (None: none).
    """

    def __init__(
        self,
        candidates: Candidates,
        watch: Stopwatch,
        gap: float,
        seed: int,
        progress: ProgressSink | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.candidates = candidates
        self.watch = watch
        self.asked_gap = gap
        self.seed = seed
        self.best: Choice | None = None
        self.bound_cents = 0
        self.prices = StockPrices()
        self.proof: Proof | None = None
        self.pace = pace
        self._progress = progress
        self._stage = "priced"

    def offer(self, choice: Choice | None, stage: str) -> bool:
        """Adopts a choice if it is better than the incumbent; returns whether it is."""
        better = choice is not None and (self.best is None or choice.rank < self.best.rank)
        if better:
            self.best = choice
        self._stage = stage
        self.tell()
        return better

    def offer_columns(self, chosen: Mapping[str, Column], stage: str) -> bool:
        """As ``offer``, for a column of each placed workload."""
        return self.offer(choice_from(self.candidates.problem, chosen), stage)

    def prove(self, bound_cents: int | None, stage: str) -> None:
        """Adopts a bound if it is higher than the best."""
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
        return self.watch.over() or self.near

    @property
    def near(self) -> bool:
        """Whether the asked gap is proven."""
        if self.best is None or self.best.required_missing:
            return False
        left_out = self._left_out_cents
        return controllable_gap_of(self.best.objective_cents, self.bound_cents, left_out) <= self.asked_gap

    def share(self, part: float) -> Limits:
        """Limits of a solver that may use ``part`` of the remaining time.

        Its gap is a tenth of the allowed one, so that the allowance is not spent twice. The solver's gap is
        relative to the whole objective, penalties of left-out workloads included, so it is scaled down by
        their share.
        """
        work = self.watch.work_left()
        most = None if work is None else part * work
        return Limits(self.watch.left * part, self.asked_gap / 10 * self._controllable_share, self.seed, most)

    @property
    def _left_out_cents(self) -> int:
        """The incumbent's penalties for left-out workloads."""
        names = frozenset() if self.best is None else self.best.left_out
        return sum(unplaced_cents(self.candidates.problem, name) or 0 for name in names)

    @property
    def _controllable_share(self) -> float:
        """The share of the incumbent's objective that is not a penalty for left-out workloads."""
        if self.best is None or not self.best.objective_cents:
            return 1.0
        return max(0.0, 1 - self._left_out_cents / self.best.objective_cents)


def choice_from(problem: Problem, chosen: Mapping[str, Column]) -> Choice:
    """The columns as a choice; workloads without a column are left out."""
    waiting = {s.name for s in problem.services() if s.starts_after and s.starts_after not in chosen}
    left = frozenset(w.name for w in problem.request.workloads if w.name not in chosen) - waiting
    return choice_of(problem, dict(chosen), left, 0.0, proven=False)
