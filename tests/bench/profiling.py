"""Where the CPU time of one plan goes: ``python -m tests.bench.profiling [--size L] [--instance DIR]``.

One plan and its check under cProfile, in CPU time of this process: own time by module, and the functions
with the most of it. Profiling slows calls, not work inside NumPy or the solver, so that shares of small
functions are too high.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from broker.catalogue import load_gpus
from broker.ports.planning import PlanOptions
from optimizer.performance.constants.calibrated import load_calibration
from optimizer.performance.estimator import Estimator
from optimizer.planner import JointPlanner
from tests.bench.instances import SIZES
from tests.bench.planning import Case, load

ROOT = Path(__file__).resolve().parents[2]
MODULES, FUNCTIONS = 15, 25


def main() -> int:
    """Prints both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.profiling", description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), default="XS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--instance", type=Path, help="a folder to read instead")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds")
    parser.add_argument("--gap", type=float, default=0.01)
    wish = parser.parse_args()
    stats = profiled(Case(wish.size, wish.seed, wish.time_limit, wish.gap, wish.instance))
    console = Console()
    console.print(module_table(stats))
    console.print(function_table(stats))
    return 0


def profiled(case: Case) -> pstats.Stats:
    """One plan of a case; the market is read before."""
    offers, request, as_of = load(case)
    planner = JointPlanner(Estimator(load_gpus(), load_calibration()))
    options = PlanOptions(case.time_limit_s, case.gap, seed=1, baselines=False)
    profile = cProfile.Profile(time.process_time)
    profile.runcall(planner.plan, request, offers, as_of, options)
    return pstats.Stats(profile)


def module_table(stats: pstats.Stats) -> Table:
    """Own seconds by module; what is built in counts for whom it is named after."""
    own: defaultdict[str, float] = defaultdict(float)
    for (file, _, name), (_, _, seconds, _, _) in _rows(stats).items():
        own[_module(file, name)] += seconds
    whole = sum(own.values())
    table = Table("module", "own s", "share")
    for module, seconds in sorted(own.items(), key=lambda row: -row[1])[:MODULES]:
        table.add_row(module, f"{seconds:.2f}", f"{100 * seconds / whole:.1f} %")
    return table


def function_table(stats: pstats.Stats) -> Table:
    """The functions with the most own time."""
    rows = sorted(_rows(stats).items(), key=lambda row: -row[1][2])
    whole = sum(row[1][2] for row in rows)
    table = Table("function", "calls", "own s", "share", "with callees s")
    for (file, _, name), (_, calls, seconds, total, _) in rows[:FUNCTIONS]:
        share = f"{100 * seconds / whole:.1f} %"
        table.add_row(f"{_module(file, name)}: {name}", f"{calls:,}", f"{seconds:.2f}", share, f"{total:.2f}")
    return table


def _rows(stats: pstats.Stats) -> dict[tuple[str, int, str], tuple[int, int, float, float, object]]:
    found: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = stats.stats  # type: ignore[attr-defined]
    return found


def _module(file: str, name: str) -> str:
    path = Path(file)
    for library in ("numpy", "ortools"):
        if library in path.parts or (file == "~" and library in name):
            return library
    if file == "~":
        return "built in"
    return (
        ".".join(path.relative_to(ROOT).with_suffix("").parts) if path.is_relative_to(ROOT) else "libraries"
    )


if __name__ == "__main__":
    sys.exit(main())
