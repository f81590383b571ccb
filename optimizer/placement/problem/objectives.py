"""The tightest latency objective that a service can meet on the offers that its rules allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from broker.domain.planning.workload import Serving, Slo
from optimizer.placement.problem.estimates import Estimates
from optimizer.placement.problem.gates import open_gates
from optimizer.placement.problem.host_room import services_without_room
from optimizer.placement.problem.problem import Problem
from optimizer.placement.runtime.tuning import TUNING

DIGITS = 2
LOOSE_MS = 1e7

SloOf = Callable[[float], Slo]


def reachable_objectives(problem: Problem, estimates: Estimates, service: Serving) -> list[Slo]:
    """Latency objectives that some allowed offer meets, each as tight as the performance core allows.

    Each of the two limits is loosened alone; if neither suffices, both are loosened together. Limits are
    rounded up to two significant digits.
    """
    ttft_ms, itl_ms = service.slo.ttft_p95_ms, service.slo.itl_p95_ms
    asker = _Asker(problem, estimates, service)
    alone = [
        asker.least(lambda ms: Slo(ttft_ms, ms), itl_ms),
        asker.least(lambda ms: Slo(ms, itl_ms), ttft_ms),
    ]
    found = [slo for slo in alone if slo is not None]
    if found:
        return found
    first = asker.least(lambda ms: Slo(ms, LOOSE_MS), ttft_ms)
    if first is None:
        return []
    both = asker.least(lambda ms: Slo(first.ttft_p95_ms, ms), itl_ms)
    return [] if both is None else [both]


class _Asker:
    """Evaluates many objectives of one service at once, on the allowed kinds of node."""

    def __init__(self, problem: Problem, estimates: Estimates, service: Serving) -> None:
        opened = open_gates(problem, service)
        self._skus = [problem.table.skus[int(kind)] for kind in np.flatnonzero(opened.by_kind)]
        self._estimates, self._service = estimates, service

    def least(self, slo_of: SloOf, unmet_ms: float) -> Slo | None:
        """The smallest limit above ``unmet_ms`` whose objective ``slo_of`` some kind of node meets; None if
        none does.
        """
        low = unmet_ms
        grid = [unmet_ms * 4.0**step for step in range(1, TUNING.problem.objective_steps + 1)]
        for _ in range(1 + TUNING.problem.objective_refinements):
            met = self._meets([slo_of(ms) for ms in grid])
            if not any(met):
                return None
            at = met.index(True)
            low, high = (grid[at - 1] if at else low), grid[at]
            ratio = (high / low) ** (1 / TUNING.problem.objective_steps)
            grid = [low * ratio**step for step in range(1, TUNING.problem.objective_steps)] + [high]
        return slo_of(_rounded_up(high))

    def _meets(self, objectives: Sequence[Slo]) -> list[bool]:
        if not self._skus:
            return [False] * len(objectives)
        asked = [replace(self._service, name=str(i), slo=slo) for i, slo in enumerate(objectives)]
        table = self._estimates.estimator.serving(asked, self._skus)
        table.withhold(services_without_room(asked, self._skus, table.configs))
        return [bool(table.fits[row].any()) for row in range(len(asked))]


def _rounded_up(ms: float) -> float:
    """Rounds up to two significant digits."""
    unit = 10.0 ** (math.floor(math.log10(ms)) - DIGITS + 1)
    return round(math.ceil(ms / unit - 1e-9) * unit, 12)
