"""What an export needs of the workloads document: checkpoints, lengths of requests, rules on places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from api.export.servers import SERVED, Settings, engine_of
from api.export.targets import load_engine_words, load_own_code_models
from broker.catalogue import load_hugging_face_names
from broker.domain.basics.errors import FieldProblem
from broker.domain.market.offer import HostKind
from broker.domain.planning.effective_rules import rules_of
from broker.domain.planning.plan import Placement
from broker.domain.planning.workload import (
    Batch,
    PlanRequest,
    Policy,
    Precision,
    Serving,
    ServingEngine,
    Training,
    Workload,
)
from broker.domain.workloads.training_method import Objective, Offload, OptimizerName

LENGTH_STEP = 16
"""Lengths of contexts are multiples of the blocks of a cache."""
CACHE_SHARE = 0.5
"""Share of the predicted cache that one request may fill: the prediction may be too high."""


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """Facts of one workload.

    ``model`` is the repository or folder of its checkpoint; empty where nobody says. ``is_chosen``: the user
    named that checkpoint, which is then in the plan's number format. ``published`` is the format in which the
    model is published. ``request_tokens`` is the length of its longest request with the answer, ``context``
    the model's. ``own_code``: its repository brings code that the engine must run. ``method`` has how a run
    trains, as variables for its script. ``place_rules`` and
    ``host_rules`` name the rules of the document that a tool which chooses the place or the host may break.
    """

    model: str = ""
    is_chosen: bool = False
    published: Precision | None = None
    request_tokens: int | None = None
    context: int | None = None
    own_code: bool = False
    method: Mapping[str, str] = field(default_factory=dict)
    place_rules: tuple[str, ...] = ()
    host_rules: tuple[str, ...] = ()


Facts = Mapping[str, WorkloadFacts]
"""Facts by workload."""
NO_FACTS = WorkloadFacts()


def facts_for(facts: Facts, placement: Placement) -> WorkloadFacts:
    """The facts of the placement's workload."""
    return facts.get(placement.workload, NO_FACTS)


def facts_of(request: PlanRequest, written: Mapping[str, str], chosen: Mapping[str, str]) -> Facts:
    """The facts of each workload of ``request``.

    ``written``: the models' names as the document has them, by workload; a name with a slash is that of a
    repository. ``chosen``: the checkpoints that the user names, by workload.
    """
    return {
        workload.name: _facts(
            workload, request.policy, written.get(workload.name, ""), chosen.get(workload.name)
        )
        for workload in request.workloads
    }


def written_models(document: Any) -> dict[str, str]:
    """The names of models as a workloads document has them, by workload."""
    rows = document.get("workloads") or () if isinstance(document, dict) else ()
    return {str(row.get("name")): str(row.get("model")) for row in rows}


def _facts(workload: Workload, team: Policy, written: str, chosen: str | None) -> WorkloadFacts:
    shape = workload.model
    repository = written if "/" in written and not written.endswith(".json") else ""
    return WorkloadFacts(
        model=chosen or repository or load_hugging_face_names().get(shape.name, ""),
        is_chosen=chosen is not None,
        published=Precision(shape.published_precision),
        request_tokens=_longest(workload),
        context=shape.context,
        own_code=shape.name in load_own_code_models(),
        method=method_variables(workload) if isinstance(workload, Training) else {},
        place_rules=tuple(_place_rules(team, workload.policy)),
        host_rules=tuple(_host_rules(team, workload)),
    )


def method_variables(run: Training) -> dict[str, str]:
    """How the run trains, as variables for its script: what is not usual, in the words of a document."""
    told: dict[str, str | None] = {
        "METHOD": run.method if run.method is not Objective.PRETRAIN else None,
        "TEACHER": run.teacher.name if run.teacher is not None else None,
        "OPTIMIZER": run.optimizer.name if run.optimizer.name is not OptimizerName.ADAMW else None,
        "OFFLOAD": run.optimizer.offload if run.optimizer.offload is not Offload.NONE else None,
        "WEIGHTS": run.weights if run.training_method.is_pure else None,
        "OFFLOAD_ACTIVATIONS": "true" if run.offload_activations else None,
        "PACKED": None if run.packed else "false",
        "MEAN_TOKENS": None if run.packed else str(run.mean_tokens),
    }
    adapter = run.adapter
    if adapter is not None:
        told |= {
            "ADAPTER": adapter.kind,
            "ADAPTER_RANK": str(adapter.rank),
            "ADAPTER_TARGETS": ",".join(adapter.targets),
            "ADAPTER_BASE": adapter.base,
        }
    return {name: str(value) for name, value in told.items() if value is not None}


def _longest(workload: Workload) -> int | None:
    if isinstance(workload, Batch):
        return workload.input_tokens + workload.output_tokens
    if not isinstance(workload, Serving):
        return None
    traffic = workload.traffic
    sizes = [size.input_tokens + size.output_tokens for size in traffic.mix]
    return max([traffic.input_tokens + traffic.output_tokens, *sizes])


def _place_rules(*policies: Policy) -> Iterator[str]:
    for name in ("regions", "countries", "geography", "compliance"):
        if any(getattr(policy, name) for policy in policies):
            yield name


def _host_rules(team: Policy, workload: Workload) -> Iterator[str]:
    if team.compliance or workload.policy.compliance:
        yield "compliance"
    rules = rules_of(team, workload)
    if rules.min_reliability:
        yield "min_reliability"
    if any(policy.hosts is not None for policy in (team, workload.policy)) and rules.hosts != set(HostKind):
        yield "hosts"


def checkpoint_problems(at: str, placement: Placement, facts: WorkloadFacts) -> Iterator[FieldProblem]:
    """The number format of the placement ``at`` a pointer, if no server makes it of the checkpoint."""
    if placement.kind not in SERVED or facts.is_chosen or facts.published is None:
        return
    engine, wanted = engine_of(placement), placement.precision
    if wanted == facts.published or _is_converted(engine, wanted, facts.published):
        return
    yield FieldProblem(
        f"{at}/precision",
        f"'{wanted}', where {facts.model or 'the model'} is published in {facts.published}",
        f"a checkpoint in {wanted}: --model {placement.workload}=REPOSITORY names it",
    )


def format_settings(placement: Placement, facts: WorkloadFacts) -> Mapping[str, str]:
    """What the placement's engine is told of its number format."""
    engine, wanted = engine_of(placement), placement.precision
    words = load_engine_words(engine)
    is_16_bit = wanted in (Precision.BF16, Precision.FP16)
    if not is_16_bit and (facts.is_chosen or wanted == facts.published):
        return words.as_published
    return words.converts.get(wanted, words.as_published)


def _is_converted(engine: ServingEngine, wanted: Precision, published: Precision) -> bool:
    return published in (Precision.BF16, Precision.FP16) and wanted in load_engine_words(engine).converts


def context_tokens(placement: Placement, facts: WorkloadFacts) -> int | None:
    """The longest request that a server of the placement must take, with its answer; None: it is not known.

    It is as long as half of the predicted cache holds, at least the document's longest request, and at most
    the model's context. An engine would otherwise reserve the cache of the whole context, or refuse to start.
    """
    if facts.request_tokens is None:
        return None
    cache = placement.estimate.value.get("kv_tokens", 0.0) / max(1, placement.parallelism.dp)
    longest = max(facts.request_tokens, int(CACHE_SHARE * cache))
    longest = -(-longest // LENGTH_STEP) * LENGTH_STEP
    return longest if facts.context is None else min(longest, facts.context)


def model_settings(
    placement: Placement, facts: WorkloadFacts, *, length: str, own_code: str = "trust-remote-code"
) -> Settings:
    """Options that follow from the document: the number format, the context, the model's own code.

    ``length`` and ``own_code`` are the engine's names of the last two.
    """
    settings: Settings = dict(format_settings(placement, facts))
    tokens = context_tokens(placement, facts)
    if tokens is not None:
        settings[length] = tokens
    if facts.own_code:
        settings[own_code] = True
    return settings
