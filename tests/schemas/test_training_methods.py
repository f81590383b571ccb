"""How a run trains, as a document says it: short forms, what follows, and what contradicts itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.schemas.workloads.workloads import read_workloads
from broker.domain.basics.errors import InputError
from broker.domain.planning.workload import Training, TrainingStack
from broker.domain.planning.workload_document import to_document
from broker.domain.workloads.training_method import (
    Adapter,
    AdapterKind,
    BaseFormat,
    Offload,
    Optimizer,
    OptimizerName,
    Target,
)
from tests.placement.market import T0

RUN: dict[str, Any] = {
    "name": "tune",
    "kind": "training",
    "model": "Llama-3.1-8B",
    "tokens": 5e7,
    "sequence_length": 4096,
    "global_batch_tokens": 131072,
    "deadline": "+5d",
}
QLORA = {"adapter": {"base": "int4"}}


def document(**fields: Any) -> str:
    horizon = {"start": T0.isoformat(), "days": 7}
    return json.dumps({"team": "t", "horizon": horizon, "workloads": [RUN | fields]})


def read(**fields: Any) -> Training:
    """The run with ``fields``, which is the same when it is written and read again."""
    request = read_workloads(document(**fields), source="d", base=None, now=T0)
    again = json.dumps(to_document(request))
    assert read_workloads(again, source="d", base=None, now=T0) == request
    (run,) = request.workloads
    assert isinstance(run, Training)
    return run


def test_short_forms_stand_for_their_objects() -> None:
    run = read(adapter="dora", optimizer="muon")
    assert run.adapter == Adapter(AdapterKind.DORA, 16, (Target.ALL,), None)
    assert run.optimizer == Optimizer(OptimizerName.MUON, Offload.NONE)
    assert read(adapter={"targets": "attention"}).adapter == Adapter(targets=(Target.ATTENTION,))


@pytest.mark.parametrize(
    ("fields", "software"),
    [
        ({}, TrainingStack.TUNED),
        ({"adapter": "lora", "method": "dpo"}, TrainingStack.TUNED),
        (QLORA, TrainingStack.EAGER),
        ({"optimizer": "adamw8bit"}, TrainingStack.EAGER),
        ({"weights": "bf16"}, TrainingStack.EAGER),
        ({"offload_activations": True}, TrainingStack.EAGER),
        ({"optimizer": {"offload": "all"}}, TrainingStack.DEEPSPEED),
        ({**QLORA, "software": "fsdp"}, TrainingStack.FSDP),
    ],
)
def test_a_stack_that_trains_so_is_assumed(fields: dict[str, Any], software: TrainingStack) -> None:
    assert read(**fields).software is software


def test_a_name_states_the_base_of_adapters() -> None:
    run = read(model="unsloth/Llama-3.1-8B-bnb-4bit", adapter="lora")
    assert run.adapter == Adapter(base=BaseFormat.INT4)


@pytest.mark.parametrize(
    ("fields", "pointer", "expected"),
    [
        ({"lora": {"rank": 8}}, "/lora", "adapter: {kind: lora"),
        ({"qlora": True}, "/qlora", "base: int4"),
        ({"cpu_offload": True}, "/cpu_offload", "optimizer: {name: adamw, offload"),
        ({"adapter": "qlora"}, "/adapter/kind", "'lora' or 'dora'"),
        ({"method": "grpo"}, "/method", "'pretrain', 'sft', 'dpo' or 'distill'"),
        ({"optimizer": "lion"}, "/optimizer/name", "'adamw', 'adamw8bit'"),
        ({"optimizer": {"offload": "disk"}}, "/optimizer/offload", "'none', 'optimizer' or 'all'"),
        ({"adapter": {"rank": 0}}, "/adapter/rank", "at least 1"),
        ({"adapter": {"targets": ["embed"]}}, "/adapter/targets/0", "'all', 'attention'"),
        ({"adapter": {"base": "int3"}}, "/adapter/base", "'bf16', 'fp8', 'int8' or 'int4'"),
        ({"weights": "fp32"}, "/weights", "'mixed' or 'bf16'"),
        ({**QLORA, "software": "tuned"}, "/software", "a base in int4: eager or fsdp"),
        ({"optimizer": {"offload": "all"}, "software": "eager"}, "/software", "offload: deepspeed"),
        ({"method": "distill"}, "/teacher", "the model from whose logits"),
        ({"teacher": "Llama-3.1-70B"}, "/teacher", "the method distill"),
        ({"packed": False}, "/mean_tokens", "the mean length"),
        ({"mean_tokens": 200}, "/mean_tokens", "packed: false"),
        ({"packed": False, "mean_tokens": 9000}, "/mean_tokens", "at most sequence_length"),
        ({"method": "dpo", "global_batch_tokens": 4096}, "/global_batch_tokens", "a pair of sequences"),
        (
            {"optimizer": {"name": "paged_adamw8bit", "offload": "optimizer"}},
            "/optimizer/offload",
            "move by themselves",
        ),
        ({"model": "unsloth/Llama-3.1-8B-bnb-4bit"}, "/model", "an adapter"),
    ],
)
def test_an_error_names_the_field_and_what_to_write(
    fields: dict[str, Any], pointer: str, expected: str
) -> None:
    with pytest.raises(InputError) as error:
        read_workloads(document(**fields), source="d", base=None, now=T0)
    (problem,) = error.value.problems
    assert problem.pointer == f"/workloads/0{pointer}"
    assert expected in problem.expected
