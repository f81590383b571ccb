"""Solves allocation problems as Mélange's paper (arXiv 2404.14527) formulates them, with PuLP and CBC.

Reads a JSON file: a list of {"usd": [G], "req_per_s": [B], "capacity": [B][G], "slices", "limit_s"}, over G
kinds of instance and B buckets of request sizes. Each bucket's rate is cut into equal slices. A slice runs
whole on one kind of instance and loads it by its rate over what one instance serves of that size; the
instances of a kind, in whole numbers, carry the load of its slices; the instances cost least. Prints for
each problem the cost an hour, the instances, whether CBC proved the optimum, and the CPU seconds of
building and solving.
"""

import json
import resource
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pulp


def cpu_s() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    solver = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + solver.ru_utime + solver.ru_stime


def solve(asked: dict[str, Any]) -> dict[str, Any]:
    began = cpu_s()
    kinds = range(len(asked["usd"]))
    pieces = [
        [rate / asked["slices"] / asked["capacity"][bucket][kind] for kind in kinds]
        for bucket, rate in enumerate(asked["req_per_s"])
        if rate > 0
        for _ in range(asked["slices"])
    ]
    programme = pulp.LpProblem("allocation", pulp.LpMinimize)
    runs_on = {
        (piece, kind): pulp.LpVariable(f"slice{piece}_on{kind}", cat=pulp.LpBinary)
        for piece, kind in product(range(len(pieces)), kinds)
    }
    instances = [pulp.LpVariable(f"instances{kind}", lowBound=0, cat=pulp.LpInteger) for kind in kinds]
    programme += pulp.lpSum(usd * count for usd, count in zip(asked["usd"], instances, strict=True))
    for piece in range(len(pieces)):
        programme += pulp.lpSum(runs_on[piece, kind] for kind in kinds) == 1
    for kind in kinds:
        load = pulp.lpSum(loads[kind] * runs_on[piece, kind] for piece, loads in enumerate(pieces))
        programme += load <= instances[kind]
    programme.solve(pulp.PULP_CBC_CMD(msg=False, threads=1, timeLimit=asked["limit_s"]))
    used_s = cpu_s() - began
    return {
        "usd": pulp.value(programme.objective),
        "instances": [round(count.value() or 0) for count in instances],
        "proven": programme.sol_status == pulp.LpSolutionOptimal and used_s < asked["limit_s"],
        "cpu_s": used_s,
    }


def main(path: str) -> None:
    print(json.dumps([solve(asked) for asked in json.loads(Path(path).read_text())]))


main(sys.argv[1])
