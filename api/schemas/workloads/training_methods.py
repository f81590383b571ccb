"""Rules on how a run trains that concern several fields of a document."""

from __future__ import annotations

from collections.abc import Iterator

from broker.domain.planning.workload import Training, TrainingStack
from broker.domain.workloads.training_method import Objective, Offload, OptimizerName

EVERY = tuple(TrainingStack)
HUGGING_FACE = (TrainingStack.EAGER, TrainingStack.FSDP, TrainingStack.FSDP_COMPILED, TrainingStack.DEEPSPEED)
"""Stacks with PEFT, torchtune, bitsandbytes and torchao; the first is assumed."""
OFFLOADING = (TrainingStack.DEEPSPEED, TrainingStack.FSDP, TrainingStack.FSDP_COMPILED)
MEGATRON = frozenset({OptimizerName.ADAMW, OptimizerName.MUON, OptimizerName.SGD})
Problem = tuple[str, str, str | None]
"""Pointer below the workload, what is expected, and what was found (None: the value there)."""


def stacks_of(run: Training) -> tuple[str, tuple[TrainingStack, ...]]:
    """What of the run few stacks have, in words, and the stacks that have it; the first is assumed."""
    method = run.training_method
    if method.optimizer.offload is not Offload.NONE:
        return "offload", OFFLOADING
    if method.is_quantised and method.adapter is not None:
        return f"a base in {method.adapter.base}", HUGGING_FACE
    if method.optimizer.name not in MEGATRON:
        return method.optimizer.name, HUGGING_FACE
    if method.is_pure:
        return "weights in bf16 alone", HUGGING_FACE
    if method.offload_activations:
        return "offloaded activations", HUGGING_FACE
    return "", EVERY


def method_problems(run: Training) -> Iterator[Problem]:
    """What contradicts itself in how a run trains."""
    if run.method is Objective.DISTILL and run.teacher is None:
        yield "teacher", "the model from whose logits a distillation learns", "nothing"
    if run.method is not Objective.DISTILL and run.teacher is not None:
        yield "teacher", "the method distill beside it, because no other has a teacher", None
    if run.packed and run.mean_tokens is not None:
        yield "mean_tokens", "packed: false beside it, because packed sequences have no padding", None
    if not run.packed and run.mean_tokens is None:
        yield "mean_tokens", "the mean length of a sequence, because sequences are not packed", "nothing"
    if run.mean_tokens is not None and run.mean_tokens > run.sequence_length:
        yield "mean_tokens", f"at most sequence_length, {run.sequence_length}", None
    if run.method is Objective.DPO and run.global_batch_tokens < 2 * run.sequence_length and run.packed:
        yield "global_batch_tokens", f"at least a pair of sequences, {2 * run.sequence_length} tokens", None
    if run.optimizer.name is OptimizerName.PAGED_ADAMW8BIT and run.optimizer.offload is not Offload.NONE:
        yield "optimizer/offload", "none, because paged states move by themselves", None
