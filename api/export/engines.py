"""The commands of the serving engines, for tools that launch nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from api.export import sglang, tensorrt_llm, vllm
from api.export.servers import SERVED, engine_of, gpus_per_node, nodes_per_server, replicas_per_server
from api.export.workload_facts import WorkloadFacts, checkpoint_problems
from broker.domain.basics.errors import FieldProblem
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import ServingEngine, WorkloadKind


@dataclass(frozen=True, slots=True)
class Commands:
    """How an engine is installed and started.

    ``spans`` has the options that join the nodes of one server: the number of nodes, the node's rank and the
    first node's address are filled in; None if a server cannot span nodes. ``replicas``: whether one server
    runs several replicas.
    """

    install: str
    serve: Callable[[Placement, WorkloadFacts], str]
    spans: str | None
    replicas: bool = True


COMMANDS: Mapping[ServingEngine, Commands] = {
    ServingEngine.VLLM: Commands(
        vllm.INSTALL,
        vllm.serve_command,
        ' --nnodes "{nodes}" --node-rank "{rank}" --master-addr "{first}"'
        ' $([ "{rank}" = 0 ] || echo --headless)',
    ),
    ServingEngine.SGLANG: Commands(
        sglang.INSTALL,
        sglang.serve_command,
        ' --nnodes "{nodes}" --node-rank "{rank}" --dist-init-addr "{first}:29500"',
    ),
    ServingEngine.TENSORRT_LLM: Commands(
        tensorrt_llm.INSTALL, tensorrt_llm.serve_command, spans=None, replicas=False
    ),
}


def commands_of(placement: Placement) -> Commands:
    """The commands of the placement's engine."""
    return COMMANDS[engine_of(placement)]


def command_problems(at: str, placement: Placement, facts: WorkloadFacts) -> Iterator[FieldProblem]:
    """What the placement ``at`` a pointer asks of its engine that the engine has no command for."""
    if placement.kind not in SERVED:
        return
    yield from checkpoint_problems(at, placement, facts)
    engine, known = engine_of(placement), commands_of(placement)
    if placement.kind is WorkloadKind.BATCH and engine is not ServingEngine.VLLM:
        yield FieldProblem(f"{at}/engine", repr(str(engine)), "vllm, which can process files of requests")
    if placement.kind is WorkloadKind.BATCH and nodes_per_server(placement) > 1:
        expected = "replicas of at most one node: vLLM processes files of requests on one"
        yield FieldProblem(f"{at}/gpus_per_replica", f"{placement.gpus_per_replica} GPUs", expected)
    elif known.spans is None and nodes_per_server(placement) > 1:
        expected = f"replicas of at most one node, because {engine} would need a launcher for more"
        yield FieldProblem(f"{at}/gpus_per_replica", f"{placement.gpus_per_replica} GPUs", expected)
    if not known.replicas and replicas_per_server(placement) > 1:
        found = f"{placement.gpus_per_replica} of a node's {gpus_per_node(placement)} GPUs"
        yield FieldProblem(
            f"{at}/gpus_per_replica", found, f"one replica per node, the most that {engine} serves"
        )
