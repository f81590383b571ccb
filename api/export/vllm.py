"""Serving and batch placements as vLLM's own configuration: ``vllm serve --config FILE``.

Fields: the long options of ``vllm serve``, as its documentation of ``--config`` asks for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from shlex import quote

import yaml

from api.export.targets import load_precisions, named
from broker.domain.errors import FieldProblem, InputError
from broker.domain.plan import Placement, Plan
from broker.domain.workload import WorkloadKind

PORT = 8000
INSTALL_VLLM = "pip install --quiet vllm"
SERVED = frozenset({WorkloadKind.SERVING, WorkloadKind.BATCH})

Settings = dict[str, str | int | bool]


def vllm_settings(placement: Placement, model: str | None) -> Settings:
    """Options of one server: a node's, or those of a replica that spans nodes. No model: left to the user."""
    layout = placement.parallelism
    settings: Settings = {} if model is None else {"model": model}
    settings |= {
        "served-model-name": placement.workload,
        "tensor-parallel-size": layout.tp,
        "pipeline-parallel-size": layout.pp,
        "data-parallel-size": replicas_per_server(placement),
        **load_precisions()[placement.precision],
        "host": "0.0.0.0",  # noqa: S104  a server in its own node, behind the tool's balancer
        "port": PORT,
    }
    if layout.ep > 1:
        settings["enable-expert-parallel"] = True
    return settings


def nodes_per_server(placement: Placement) -> int:
    """Nodes that one server spans: more than one only where a replica is larger than a node."""
    return max(1, math.ceil(placement.gpus_per_replica / gpus_per_node(placement)))


def replicas_per_server(placement: Placement) -> int:
    """Replicas that one server runs side by side on its node."""
    return max(1, gpus_per_node(placement) // placement.gpus_per_replica)


def gpus_per_node(placement: Placement) -> int:
    """GPUs of a node."""
    return placement.gpus // placement.nodes


def servers(placement: Placement) -> tuple[int, int]:
    """How many servers run at the trough and at the peak of the held nodes."""
    spanned = nodes_per_server(placement)
    least = min(segment.nodes for segment in placement.segments)
    return max(1, min(least, placement.nodes) // spanned), max(1, placement.nodes // spanned)


def serve_command(placement: Placement) -> str:
    """``vllm serve`` with the placement's options; the model is ``$MODEL``."""
    return " ".join(['vllm serve "$MODEL"', *_options(vllm_settings(placement, None))])


def batch_command(placement: Placement) -> str:
    """``vllm run-batch`` from ``$INPUT`` to ``$OUTPUT``."""
    served_only = {"host", "port", "served-model-name"}
    settings = {k: v for k, v in vllm_settings(placement, None).items() if k not in served_only}
    head = 'vllm run-batch --model "$MODEL" --input-file "$INPUT" --output-file "$OUTPUT"'
    return " ".join([head, *_options(settings)])


def _options(settings: Settings) -> list[str]:
    return [
        f"--{name}" if value is True else f"--{name} {quote(str(value))}" for name, value in settings.items()
    ]


def vllm_files(plan: Plan, models: Mapping[str, str], source: str) -> dict[str, str]:
    """A configuration a placement; InputError for a plan that serves nothing. ``models`` by workload."""
    files = {
        f"{name}.vllm.yaml": yaml.safe_dump(
            vllm_settings(placement, models.get(placement.workload)), sort_keys=False
        )
        for name, placement in named(plan)
        if placement.kind in SERVED
    }
    if not files:
        problem = FieldProblem("/placements", "training alone", "a serving or batch placement for vLLM")
        raise InputError(source, (problem,))
    return files
