"""How many servers a placement's nodes run, how large each is, and the options of its command line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from shlex import quote

from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import ServingEngine, WorkloadKind
from optimizer.performance.constants.calibrated import load_priors

PORT = 8000
SERVED = frozenset({WorkloadKind.SERVING, WorkloadKind.BATCH})
Settings = dict[str, str | int | bool]


def held_span(placement: Placement) -> tuple[datetime, datetime]:
    """When its first nodes are held, and until when the last."""
    return min(s.start for s in placement.segments), max(s.end for s in placement.segments)


def nodes_per_server(placement: Placement) -> int:
    """The number of nodes of one server: more than 1 only if a replica is larger than a node."""
    return max(1, math.ceil(placement.gpus_per_replica / gpus_per_node(placement)))


def replicas_per_server(placement: Placement) -> int:
    """The number of replicas in one server on its node."""
    return max(1, gpus_per_node(placement) // placement.gpus_per_replica)


def gpus_per_node(placement: Placement) -> int:
    """The number of GPUs of a node."""
    return placement.gpus // placement.nodes


def servers(placement: Placement) -> tuple[int, int]:
    """The number of servers at the fewest and at the most held nodes."""
    spanned = nodes_per_server(placement)
    least = min(segment.nodes for segment in placement.segments)
    return max(1, min(least, placement.nodes) // spanned), max(1, placement.nodes // spanned)


def sequences_most(placement: Placement, engine: ServingEngine) -> int:
    """The most concurrent sequences of a replica that the plan assumes: few for a service, as many as the
    engine takes for a batch. Each stage of a pipeline works on as many.
    """
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
