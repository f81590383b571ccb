"""The server of a placement as the start of its machines: the engine's own image, and its command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from shlex import quote

import yaml

from api.export.engines import command_problems, commands_of
from api.export.servers import engine_of, nodes_per_server
from api.export.targets import load_images
from api.export.workload_facts import WorkloadFacts, facts_for, facts_of, written_models
from broker.catalogue import load_gpus
from broker.domain.basics.errors import FieldProblem, InputError
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import PlanRequest, ServingEngine
from broker.domain.workloads.startup import Startup

VENDOR = "NVIDIA"
"""Whose GPUs the images are for."""


def engine_start(document: str, request: PlanRequest, placement: Placement, wish: Startup) -> Startup:
    """``wish`` with the image and the command that serve ``placement``, a part of the plan of ``document``.

    Raises InputError with what stands in the way.
    """
    facts = facts_for(facts_of(request, written_models(yaml.safe_load(document)), {}), placement)
    problems = tuple(_problems(f"/workloads/{placement.workload}", placement, facts))
    if problems:
        raise InputError("startup", problems)
    image = load_images()[str(engine_of(placement))]
    return replace(wish, engine=False, image=image, command=_command(placement, facts))


def _problems(at: str, placement: Placement, facts: WorkloadFacts) -> Iterator[FieldProblem]:
    yield from command_problems(at, placement, facts)
    if not facts.model:
        expected = "the name of a repository of Hugging Face, such as Qwen/Qwen3-32B"
        yield FieldProblem(f"{at}/model", "a model without one", expected)
    if nodes_per_server(placement) > 1:
        found = f"{placement.gpus_per_replica} GPUs a replica, more than a node has"
        yield FieldProblem(f"{at}/startup/engine", found, "a script or an image that joins its nodes")
    if load_gpus()[placement.gpu].vendor != VENDOR:
        found = f"{placement.gpu}, which is not of {VENDOR}"
        yield FieldProblem(f"{at}/startup/engine", found, "a script or an image for it")


def _command(placement: Placement, facts: WorkloadFacts) -> str:
    """What the image runs; the entry point of vLLM's is ``vllm serve``, others run what they are given."""
    words = commands_of(placement).serve(placement, facts).replace('"$MODEL"', quote(facts.model))
    if engine_of(placement) is ServingEngine.VLLM:
        return words.removeprefix("vllm serve ")
    return f"bash -c {quote(words)}" if "&&" in words else words
