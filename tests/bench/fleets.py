"""Services alone: ``python -m tests.bench.fleets DIR...``, each with ``market.json`` and ``workloads.json``.

For each instance the sum of what its services cost at least, the sum of their cheapest fleets with nobody
beside them, the gap between both, and the CPU time that a service takes. Nothing is shared here, so the gap
is the planner's own: a part of it that no sharing of stock can explain.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from api.schemas.market.market import read_market
from api.schemas.workloads.workloads import read_workloads
from broker.catalogue import load_gpus
from broker.domain.planning.workload import Serving
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.placement.fleets.cases import build_fleet_case
from optimizer.placement.fleets.model import answer_fleet, fleet_columns
from optimizer.placement.problem.estimates import Estimates, build_estimates
from optimizer.placement.problem.problem import Problem, build_problem


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """USD of the bound and of the best fleet; the CPU seconds of both."""

    name: str
    bound_usd: float
    fleet_usd: float
    cpu_s: float

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
    columns = ("instance", "services", "bounds USD", "fleets USD", "gap", "CPU ms")
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
    answer = answer_fleet(problem, case)
    columns = list(fleet_columns(problem, answer, None))
    spent_s = time.process_time() - began
    if not columns:
        return None
    cheapest = min(column.total_cents for column in columns) / 100
    return ServiceFigures(service.name, answer.bound_usd, cheapest, spent_s)


def _cells(found: list[ServiceFigures]) -> list[str]:
    bound, fleet = sum(f.bound_usd for f in found), sum(f.fleet_usd for f in found)
    count = max(1, len(found))
    gap = 1 - bound / fleet if fleet else 0.0
    cpu_ms = 1000 * sum(f.cpu_s for f in found) / count
    return [f"{bound:,.0f}", f"{fleet:,.0f}", f"{100 * gap:.2f} %", f"{cpu_ms:.0f}"]


if __name__ == "__main__":
    sys.exit(main())
