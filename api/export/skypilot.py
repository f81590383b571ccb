"""Placements as SkyPilot tasks: ``sky launch FILE``, or ``sky serve up FILE`` for services.

Fields: SkyPilot's task YAML. The user gives the command of a training run in COMMAND.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import yaml

from api.export.engines import command_problems, commands_of
from api.export.environment import MODEL_GUARD, RUN_GUARD, batch_guard, environment
from api.export.hosts import pool_name
from api.export.places import place_problems, unsaid
from api.export.servers import PORT, SERVED, gpus_per_node, nodes_per_server, replicas_per_server, servers
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
from broker.domain.basics.errors import FieldProblem
from broker.domain.market.offer import Tier
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import WorkloadKind

_RANK = '"$SKYPILOT_NODE_RANK"'
_FIRST = '$(echo "$SKYPILOT_NODE_IPS" | head -n1)'
TORCHRUN = (
    'torchrun --nnodes "$SKYPILOT_NUM_NODES" --node-rank "$SKYPILOT_NODE_RANK" '
    f'--nproc-per-node "$SKYPILOT_NUM_GPUS_PER_NODE" --master-addr "{_FIRST}" --master-port 29500 $COMMAND'
)


def skypilot_files(plan: Plan, facts: Facts, source: str, *, reserved: bool = False) -> Exported:
    """A task a placement; sellers, GPUs and engines that SkyPilot cannot have are skipped.

    ``reserved``: the tasks run on the plan's machines, as a pool of SSH nodes for each workload.
    """
    top = heading(plan, Target.SKYPILOT, reserved=reserved)
    words = load_words(Target.SKYPILOT)

    def problems_of(at: str, placement: Placement) -> Iterator[FieldProblem]:
        known = facts_for(facts, placement)
        yield from word_problems(at, placement, words, reserved=reserved)
        yield from command_problems(at, placement, known)
        if not reserved:
            yield from place_problems(at, placement, words, known)

    def files_of(name: str, placement: Placement) -> dict[str, str]:
        resources = _held(placement, words) if reserved else _resources(placement, words)
        task = _task(name, placement, facts_for(facts, placement), resources)
        return {f"{name}.sky.yaml": top + yaml.safe_dump(task, sort_keys=False, width=200)}

    return export_each(plan, source, problems_of, files_of, partial(unsaid, words=words, reserved=reserved))


def _task(name: str, placement: Placement, facts: WorkloadFacts, resources: dict[str, Any]) -> dict[str, Any]:
    task: dict[str, Any] = {
        "name": name,
        "num_nodes": placement.nodes,
        "resources": resources,
        "envs": environment(placement, facts),
    }
    if placement.kind in SERVED:
        task["setup"] = commands_of(placement).install
    if placement.kind is WorkloadKind.TRAINING:
        task["run"] = f"{RUN_GUARD}\n{TORCHRUN}\n"
    elif placement.kind is WorkloadKind.BATCH:
        task["run"] = f"{MODEL_GUARD}\n{batch_guard(placement, _RANK)}\n{batch_command(placement, facts)}\n"
    else:
        spanned = nodes_per_server(placement)
        task["num_nodes"] = spanned
        task["resources"]["ports"] = PORT
        task["service"] = _service(placement)
        task["run"] = f"{MODEL_GUARD}\n{_serve(placement, facts)}\n"
    return task


def _serve(placement: Placement, facts: WorkloadFacts) -> str:
    """The server's command, with the options that join its nodes if it spans several."""
    commands = commands_of(placement)
    if commands.spans is None or nodes_per_server(placement) == 1:
        return commands.serve(placement, facts)
    joined = {"nodes": "$SKYPILOT_NUM_NODES", "rank": "$SKYPILOT_NODE_RANK", "first": _FIRST}
    return commands.serve(placement, facts) + commands.spans.format(**joined)


def _held(placement: Placement, words: Words) -> dict[str, Any]:
    """Machines of the pool that ``broker hosts`` writes for the workload."""
    gpus = f"{words.gpus[placement.gpu]}:{gpus_per_node(placement)}"
    return {"infra": f"ssh/{pool_name(placement.workload)}", "accelerators": gpus}


def _resources(placement: Placement, words: Words) -> dict[str, Any]:
    seller, place = words.sellers[placement.provider], words.place_of(placement)
    resources: dict[str, Any] = {"infra": seller if place is None else f"{seller}/{place}"}
    if placement.provider in words.same_types:
        resources["instance_type"] = placement.sku
    else:
        resources["accelerators"] = f"{words.gpus[placement.gpu]}:{gpus_per_node(placement)}"
    if placement.disk_gb is not None:
        resources["disk_size"] = math.ceil(placement.disk_gb)
    if placement.memory_gb is not None:
        resources["memory"] = f"{memory_gib(placement.memory_gb)}+"
    resources["use_spot"] = placement.tier is Tier.SPOT
    if placement.nodes > 1 and (placement.kind is WorkloadKind.TRAINING or nodes_per_server(placement) > 1):
        resources["network_tier"] = "best"
    return resources


def _service(placement: Placement) -> dict[str, Any]:
    least, most = servers(placement)
    policy: dict[str, Any] = {"min_replicas": least, "max_replicas": most}
    rate = placement.estimate.value.get("requests_per_s_per_replica")
    if rate and most > least:
        policy["target_qps_per_replica"] = round(rate * replicas_per_server(placement), 3)
    launch_s = placement.cold_start.launch_s if placement.cold_start is not None else 0.0
    patience = round((placement.estimate.value.get("cold_start_s", 600.0) - launch_s) * 2)
    probe = {"path": "/health", "initial_delay_seconds": max(60, patience)}
    return {"readiness_probe": probe, "replica_policy": policy}
