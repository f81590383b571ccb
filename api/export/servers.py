"""How many servers a placement's nodes run, how large each is, and the options of its command line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from shlex import quote

from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import ServingEngine, WorkloadKind
from optimizer.performance.constants.calibrated import load_priors

PORT = 8000
SERVED = frozenset({WorkloadKind.SERVING, WorkloadKind.BATCH})
Settings = dict[str, str | int | bool]


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


def sequences_most(placement: Placement, engine: ServingEngine) -> int:
    """Sequences that a replica has in flight at most, as the plan assumes: a service's few, as many as the
    engine takes for a batch. A pipeline's stages work on as many each."""
    engines_say = load_priors()
    service = placement.kind is WorkloadKind.SERVING
    most = engines_say.serving.batch_most if service else engines_say.engines[engine.value].batch_most
    return round(most) * placement.parallelism.pp


def engine_of(placement: Placement) -> ServingEngine:
    """What serves the placement; vLLM where the plan does not say."""
    return placement.engine or ServingEngine.VLLM


def options(settings: Mapping[str, str | int | bool]) -> list[str]:
    """``--name value`` each; ``--name`` alone where the value is True."""
    return [
        f"--{name}" if value is True else f"--{name} {quote(str(value))}" for name, value in settings.items()
    ]
