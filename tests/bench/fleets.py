"""Services alone: ``python -m tests.bench.fleets DIR...``, each with ``market.json`` and ``workloads.json``.

For each instance the sum of what its services cost at least, the sum of their cheapest fleets with nobody
beside them, the gap between both, and the CPU time that a service takes. Nothing is shared here, so the gap
is the planner's own: a part of it that no sharing of stock can explain.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from optimizer.placement.best_fleets import fleets
from optimizer.placement.fleet_bound import bound_fleet
from optimizer.placement.ladders import free_nodes
from rich.console import Console
from rich.table import Table

from api.schemas.market import read_market
from api.schemas.workloads import read_workloads
from broker.catalogue import load_gpus
from broker.domain.workload import Serving
from optimizer.performance.calibration import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.placement.candidates import Candidates
from optimizer.placement.estimates import Estimates, build_estimates
from optimizer.placement.fleet_cases import build_fleet_case
from optimizer.placement.oracle_crew import Crew
from optimizer.placement.problem import Problem, build_problem

LADDERS = 2


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """USD of the bound and of the best fleet, CPU seconds of each."""

    name: str
    bound_usd: float
    fleet_usd: float
    bound_s: float
    fleets_s: float

    @property
    def gap(self) -> float:
        """Share of the fleet's cost that is not proven."""
        return 1 - self.bound_usd / self.fleet_usd if self.fleet_usd else 0.0


def main() -> int:
    """Prints a row for each instance; with ``--each`` one for each service."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fleets", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--each", action="store_true", help="a row for each service")
    wish = parser.parse_args()
    columns = ("instance", "services", "bounds USD", "fleets USD", "gap", "CPU ms: bound", "fleets")
    table = Table(*columns)
    for folder in wish.folders:
        found = measure(folder)
        for one in found if wish.each else []:
            table.add_row(one.name, "1", *_cells([one]))
        table.add_row(folder.name, str(len(found)), *_cells(found))
    Console(width=110).print(table)
    return 0


def measure(folder: Path) -> list[ServiceFigures]:
    """Every service of an instance that can be served at all."""
    market = read_market((folder / "market.json").read_text(), source=folder.name)
    text = (folder / "workloads.json").read_text()
    request = read_workloads(text, source=folder.name, base=None, now=market.as_of)
    problem = build_problem(request, market.offers, market.as_of)
    estimates = build_estimates(problem, Estimator(load_gpus(), load_calibration()))
    found = (_figures(problem, estimates, s) for s in problem.services() if s.starts_after is None)
    return [one for one in found if one is not None]


def _figures(problem: Problem, estimates: Estimates, service: Serving) -> ServiceFigures | None:
    case = build_fleet_case(problem, estimates, service)
    if case.log.obstacle is not None:
        return None
    began = time.process_time()
    bound = bound_fleet(problem, case)
    bounded = time.process_time()
    case = replace(case, spare_rates=bound.spare_rates, covers=bound.covers)
    candidates = Candidates(
        problem, estimates, {}, {service.name: case}, {service.name: bound}, Crew(problem)
    )
    columns = fleets(candidates.problem, case, free_nodes(problem), [None], None, LADDERS)
    built = time.process_time()
    if not columns:
        return None
    least = candidates.least_service_usd(service, None)
    cheapest = min(column.total_cents for column in columns) / 100
    return ServiceFigures(service.name, least, cheapest, bounded - began, built - bounded)


def _cells(found: list[ServiceFigures]) -> list[str]:
    bound, fleet = sum(f.bound_usd for f in found), sum(f.fleet_usd for f in found)
    count = max(1, len(found))
    gap = 1 - bound / fleet if fleet else 0.0
    bound_ms = 1000 * sum(f.bound_s for f in found) / count
    fleets_ms = 1000 * sum(f.fleets_s for f in found) / count
    return [f"{bound:,.0f}", f"{fleet:,.0f}", f"{100 * gap:.2f} %", f"{bound_ms:.0f}", f"{fleets_ms:.0f}"]


if __name__ == "__main__":
    sys.exit(main())
