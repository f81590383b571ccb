"""Placements as dstack configurations: a fleet for each, and the task or service that runs on it.

Apply the fleet first: ``dstack apply -f FILE``. A batch has a task for each node. Fields: dstack's fleet,
task and service YAML.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import yaml

from api.export.engines import command_problems, commands_of
from api.export.environment import MODEL_GUARD, RUN_GUARD, batch_guard, environment
from api.export.hosts import pool_name
from api.export.places import place_problems, unsaid
from api.export.servers import PORT, gpus_per_node, nodes_per_server, replicas_per_server, servers
from api.export.targets import (
    Exported,
    Target,
    Words,
    export_each,
    heading,
    load_words,
    memory_gib,
    word_problems,
)
from api.export.vllm import batch_command
from api.export.workload_facts import Facts, WorkloadFacts, facts_for
from broker.catalogue import load_gpus
from broker.domain.basics.errors import FieldProblem
from broker.domain.market.offer import Tier
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import WorkloadKind

TORCHRUN = (
    'torchrun --nnodes "$DSTACK_NODES_NUM" --node-rank "$DSTACK_NODE_RANK" '
    '--nproc-per-node "$DSTACK_GPUS_PER_NODE" '
    '--master-addr "$DSTACK_MASTER_NODE_IP" --master-port 29500 $COMMAND'
)


def dstack_files(plan: Plan, facts: Facts, source: str, *, reserved: bool = False) -> Exported:
    """A fleet and a run a placement; what dstack cannot say is skipped.

    ``reserved``: the runs use the SSH fleet of their workload's machines, and no other fleet is made.
    """
    top = heading(plan, Target.DSTACK, reserved=reserved)
    words = load_words(Target.DSTACK)

    def problems_of(at: str, placement: Placement) -> Iterator[FieldProblem]:
        known = facts_for(facts, placement)
        yield from word_problems(at, placement, words, reserved=reserved)
        yield from command_problems(at, placement, known)
        if not reserved:
            yield from place_problems(at, placement, words, known)
        if placement.kind is WorkloadKind.SERVING and nodes_per_server(placement) > 1:
            expected = "replicas of at most one node, as dstack's services have"
            yield FieldProblem(f"{at}/gpus_per_replica", f"{placement.gpus_per_replica} GPUs", expected)

    def files_of(name: str, placement: Placement) -> dict[str, str]:
        place = _held(placement, words) if reserved else _place(placement, words)
        fleet = pool_name(placement.workload) if reserved else f"{name}-f"
        made = {} if reserved else {f"{name}.fleet.dstack.yml": _fleet(fleet, placement, place)}
        known, is_batch = facts_for(facts, placement), placement.kind is WorkloadKind.BATCH
        nodes = placement.nodes if is_batch else 1
        for node in range(nodes):
            run = name if nodes == 1 else f"{name}-n{node}"
            made[f"{run}.dstack.yml"] = _run(run, fleet, placement, known, node) | place
        return {file: top + _yaml(document) for file, document in made.items()}

    return export_each(plan, source, problems_of, files_of, partial(unsaid, words=words, reserved=reserved))


def _yaml(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, width=200)


def _place(placement: Placement, words: Words) -> dict[str, Any]:
    gpu, memory = words.gpus[placement.gpu], load_gpus()[placement.gpu].memory_gb
    sold: dict[str, Any] = {
        "backends": [words.sellers[placement.provider]],
        "resources": {
            "gpu": {"name": gpu, "memory": f"{memory:g}GB", "count": gpus_per_node(placement)},
        },
        "spot_policy": "spot" if placement.tier is Tier.SPOT else "on-demand",
    }
    if placement.disk_gb is not None:
        sold["resources"]["disk"] = f"{math.ceil(placement.disk_gb)}GB.."
    if placement.memory_gb is not None:
        sold["resources"]["memory"] = f"{memory_gib(placement.memory_gb)}GB.."
    place = words.place_of(placement)
    if place is not None:
        sold["regions"] = [place]
        if placement.zone:
            sold["availability_zones"] = [placement.zone]
    if placement.provider in words.same_types:
        sold["instance_types"] = [placement.sku]
    return sold


def _held(placement: Placement, words: Words) -> dict[str, Any]:
    """What a machine of the placement has, whoever sells it."""
    return {"resources": {"gpu": {"name": words.gpus[placement.gpu], "count": gpus_per_node(placement)}}}


def _fleet(name: str, placement: Placement, place: Mapping[str, Any]) -> dict[str, Any]:
    together = placement.nodes > 1 and placement.kind is WorkloadKind.TRAINING
    return {
        "type": "fleet",
        "name": name,
        "nodes": placement.nodes,
        "placement": "cluster" if together else "any",
        **place,
    }


def _run(name: str, fleet: str, placement: Placement, facts: WorkloadFacts, node: int) -> dict[str, Any]:
    """The run ``name`` on the fleet of a placement; the nodes of a batch have a task each."""
    run: dict[str, Any] = {
        "type": "service" if placement.kind is WorkloadKind.SERVING else "task",
        "name": name,
        "fleets": [fleet],
        "env": environment(placement, facts),
    }
    if placement.kind is WorkloadKind.TRAINING:
        run |= {"nodes": placement.nodes, "commands": [RUN_GUARD, TORCHRUN]}
    elif placement.kind is WorkloadKind.BATCH:
        commands = [
            commands_of(placement).install,
            MODEL_GUARD,
            batch_guard(placement, str(node)),
            batch_command(placement, facts),
        ]
        run |= {"nodes": 1, "commands": commands}
    else:
        engine = commands_of(placement)
        commands = [engine.install, MODEL_GUARD, engine.serve(placement, facts)]
        run |= {"port": PORT, **_replicas(placement), "commands": commands}
    return run


def _replicas(placement: Placement) -> dict[str, Any]:
    least, most = servers(placement)
    rate = placement.estimate.value.get("requests_per_s_per_replica")
    if least == most or not rate:
        return {"replicas": most}
    target = round(rate * replicas_per_server(placement), 3)
    return {"replicas": f"{least}..{most}", "scaling": {"metric": "rps", "target": target}}
