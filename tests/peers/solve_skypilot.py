"""Solves chains of tasks with SkyPilot's optimizer over the catalogues in its home; fetches nothing.

Reads a JSON file: {"clouds": [name], "chains": [[accelerator:count of each task in turn]]}. Every task
takes an hour (what SkyPilot assumes) and hands no data on. Prints for each chain the cost of all tasks and
the CPU seconds of making the tasks and optimizing.
"""

import json
import resource
import sys
from pathlib import Path
from typing import Any

import sky
import sky.check
from sky.optimizer import Optimizer
from sky.utils import registry


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime + children.ru_utime + children.ru_stime


def solve(accelerators: list[str]) -> dict[str, float]:
    began = cpu_s()
    with sky.Dag() as dag:
        before = None
        for number, wanted in enumerate(accelerators):
            task = sky.Task(name=f"task-{number}", run="true")
            task.set_resources(sky.Resources(accelerators=wanted))
            if before is not None:
                before >> task
            before = task
    Optimizer.optimize(dag, quiet=True)
    usd = sum(task.best_resources.get_cost(3600) for task in dag.tasks)
    return {"usd": usd, "cpu_s": cpu_s() - began}


def main(path: str) -> None:
    asked: dict[str, Any] = json.loads(Path(path).read_text())
    enabled = [registry.CLOUD_REGISTRY.from_str(name) for name in asked["clouds"]]
    sky.check.get_cached_enabled_clouds_or_refresh = lambda *_, **__: list(enabled)
    solve(asked["chains"][0][:1])
    print("\n" + json.dumps([solve(chain) for chain in asked["chains"]]))


main(sys.argv[1])
