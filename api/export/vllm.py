"""Serving and batch placements as vLLM configuration files: ``vllm serve --config FILE``.

Fields: the long options of ``vllm serve``, as documented under ``--config``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import yaml

from api.export.places import unsaid_rules
from api.export.servers import PORT, SERVED, Settings, engine_of, options, replicas_per_server, sequences_most
from api.export.targets import Exported, Target, export_each, heading, load_engine_words
from api.export.workload_facts import Facts, WorkloadFacts, checkpoint_problems, facts_for, model_settings
from broker.domain.basics.errors import FieldProblem
from broker.domain.planning.plan import Placement, Plan
from broker.domain.planning.workload import ServingEngine

INSTALL = f"pip install --quiet vllm=={load_engine_words(ServingEngine.VLLM).version}"


def vllm_settings(placement: Placement, facts: WorkloadFacts, model: str | None) -> Settings:
    """Options of one server, on one node or for one replica that spans nodes. The user adds the model.

    vLLM counts attention ranks separately from the tensor-parallel group; plans count them within it.
    """
    layout = placement.parallelism
    settings: Settings = {} if model is None else {"model": model}
    settings |= {
        "served-model-name": placement.workload,
        "tensor-parallel-size": layout.tp // layout.dp,
        "pipeline-parallel-size": layout.pp,
        "data-parallel-size": layout.dp * replicas_per_server(placement),
        **model_settings(placement, facts, length="max-model-len"),
        "host": "0.0.0.0",  # noqa: S104  a server in its own node, behind the tool's balancer
        "port": PORT,
        "max-num-seqs": sequences_most(placement, ServingEngine.VLLM),
    }
    if layout.ep > 1:
        settings["enable-expert-parallel"] = True
    return settings


def serve_command(placement: Placement, facts: WorkloadFacts) -> str:
    """``vllm serve`` with the placement's options; the model is ``$MODEL``."""
    return " ".join(['vllm serve "$MODEL"', *options(vllm_settings(placement, facts, None))])


def batch_command(placement: Placement, facts: WorkloadFacts) -> str:
    """``vllm run-batch`` from ``$INPUT`` to ``$OUTPUT``."""
    served_only = {"host", "port", "served-model-name"}
    settings = {k: v for k, v in vllm_settings(placement, facts, None).items() if k not in served_only}
    head = 'vllm run-batch --model "$MODEL" --input-file "$INPUT" --output-file "$OUTPUT"'
    return " ".join([head, *options(settings)])


def vllm_files(plan: Plan, facts: Facts, source: str, *, reserved: bool = False) -> Exported:
    """A configuration for each placement that vLLM serves; the others are skipped."""
    top = heading(plan, Target.VLLM, reserved=reserved)

    def problems_of(at: str, placement: Placement) -> Iterator[FieldProblem]:
        yield from _not_served(at, placement)
        yield from checkpoint_problems(at, placement, facts_for(facts, placement))

    def files_of(name: str, placement: Placement) -> dict[str, str]:
        known = facts_for(facts, placement)
        settings = vllm_settings(placement, known, known.model or None)
        return {f"{name}.vllm.yaml": top + yaml.safe_dump(settings, sort_keys=False)}

    unsaid = partial(unsaid_rules, target=Target.VLLM, reserved=reserved)
    return export_each(plan, source, problems_of, files_of, unsaid)


def _not_served(at: str, placement: Placement) -> Iterator[FieldProblem]:
    if placement.kind not in SERVED:
        yield FieldProblem(f"{at}/kind", repr(str(placement.kind)), "a service or batch, which vLLM serves")
    elif engine_of(placement) is not ServingEngine.VLLM:
        yield FieldProblem(f"{at}/engine", repr(str(engine_of(placement))), "vllm")
