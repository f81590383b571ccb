"""The training method of a row: objective, adapters, optimizer, offload, and padding.

Columns are named as the fields of a workload, or as the options of common trainers. An unknown word would
change the prediction, so it refuses the row and lists the known ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from broker.catalogue import named_format
from broker.domain.workloads.model_shape import ModelShape
from broker.domain.workloads.training_method import (
    Adapter,
    AdapterKind,
    BaseFormat,
    Objective,
    Offload,
    Optimizer,
    OptimizerName,
    Target,
    TrainingMethod,
    WeightMode,
)
from optimizer.calibration.tables.cells import NOTHING, Unreadable, number
from optimizer.calibration.tables.names import find_model

YES, NO = frozenset({"yes", "true", "1", "on", "1.0"}), frozenset({"no", "false", "0", "off", "0.0"})
OFF = NOTHING | NO
METHOD_COLUMNS = ("workload", "method", "training_method", "stage", "finetuning_type", "task")
ADAPTER_COLUMNS = ("adapter", "adapters", "peft", "use_lora", "lora", "use_peft", "use_dora")
RANK_COLUMNS = ("rank", "lora_r", "lora_rank", "adapter_rank")
TARGET_COLUMNS = ("targets", "target_modules", "lora_target_modules", "adapter_targets")
BASE_COLUMNS = ("base", "base_precision", "base_format", "adapter_base")
BITS_COLUMNS = {"load_in_4bit": BaseFormat.INT4, "load_in_8bit": BaseFormat.INT8}
OPTIMIZER_COLUMNS = ("optimizer", "optim", "optimizer_name")
OFFLOAD_COLUMNS = ("offload", "optimizer_offload", "offload_optimizer", "cpu_offload")
ACTIVATION_COLUMNS = ("offload_activations", "activation_offload", "activation_offloading")
WEIGHT_COLUMNS, PACKED_COLUMNS, TEACHER_COLUMNS = ("weights",), ("packed", "packing"), ("teacher",)
COLUMNS = frozenset({
    *METHOD_COLUMNS, *ADAPTER_COLUMNS, *RANK_COLUMNS, *TARGET_COLUMNS, *BASE_COLUMNS, *BITS_COLUMNS,
    *OPTIMIZER_COLUMNS, *OFFLOAD_COLUMNS, *ACTIVATION_COLUMNS, *WEIGHT_COLUMNS, *PACKED_COLUMNS,
    *TEACHER_COLUMNS, "mean_tokens",
})  # fmt: skip
OBJECTIVES: Mapping[str, Objective] = {
    "pretraining": Objective.PRETRAIN, "pre-training": Objective.PRETRAIN, "finetune": Objective.SFT,
    "fine-tune": Objective.SFT, "finetuning": Objective.SFT, "full": Objective.SFT,
    "distillation": Objective.DISTILL,
}  # fmt: skip
ADAPTERS: Mapping[str, tuple[AdapterKind, BaseFormat | None]] = {
    "lora": (AdapterKind.LORA, None),
    "sft-lora": (AdapterKind.LORA, None),
    "dora": (AdapterKind.DORA, None),
    "qlora": (AdapterKind.LORA, BaseFormat.INT4),
    "qdora": (AdapterKind.DORA, BaseFormat.INT4),
}
TARGETS: Mapping[str, tuple[Target, ...]] = {
    "all-linear": (Target.ALL,),
    "linear_qkv": (Target.Q_PROJ, Target.K_PROJ, Target.V_PROJ),
    "linear_proj": (Target.O_PROJ,),
    "linear_fc1": (Target.GATE_PROJ, Target.UP_PROJ),
    "linear_fc2": (Target.DOWN_PROJ,),
    "output_proj": (Target.O_PROJ,),
}
BASES: Mapping[str, BaseFormat] = {
    "nf4": BaseFormat.INT4, "4bit": BaseFormat.INT4, "4-bit": BaseFormat.INT4, "fp16": BaseFormat.BF16,
    "8bit": BaseFormat.INT8, "8-bit": BaseFormat.INT8, "llm.int8": BaseFormat.INT8,
}  # fmt: skip
ADAM = re.compile(r"(fused[ _-]?)?adamw?([ _-](fused|torch|torch_fused|apex|fp32|32-?bit))*")
EIGHT_BIT = re.compile(r"(paged[ _-]?)?(adamw?[ _-]?(bnb[ _-]?|torch[ _-]?)?8-?bit|8-?bit[ _-]adamw?)")
ROW_TARGETS, ROW_RANK = (Target.ATTENTION,), 16
"""What a published row with adapters has where it does not tell: as in MLPerf's benchmark."""

W = TypeVar("W", bound=StrEnum)


def method_of(row: Mapping[str, str], models: Mapping[str, ModelShape]) -> TrainingMethod:
    """How the row trains. Raises Unreadable with the column, the word, and the known words."""
    packed = _switch(row, PACKED_COLUMNS)
    mean_tokens = number(row, "mean_tokens")
    if packed is False and not mean_tokens:
        raise Unreadable("packed 'false': mean_tokens is missing")
    return TrainingMethod(
        objective=objective_of(row),
        adapter=adapter_of(row),
        optimizer=Optimizer(_optimizer(row), _offload(row)),
        weights=_word(row, WEIGHT_COLUMNS, WeightMode) or WeightMode.MIXED,
        offload_activations=bool(_switch(row, ACTIVATION_COLUMNS)),
        mean_tokens=None if packed else mean_tokens or None,
        teacher=_teacher(row, models),
    )


def is_usual(row: Mapping[str, str]) -> bool:
    """Whether the row states full training or LoRA, with AdamW, all in GPU memory; not if it states a word
    that is not known.
    """
    try:
        adapter, states = adapter_of(row), (_optimizer(row), _offload(row))
        plain = adapter is None or (adapter.kind is AdapterKind.LORA and adapter.base is None)
        usual = objective_of(row) in (Objective.PRETRAIN, Objective.SFT)
        return plain and usual and states == (OptimizerName.ADAMW, Offload.NONE)
    except Unreadable:
        return False


def objective_of(row: Mapping[str, str]) -> Objective:
    """What the row learns: the most special of the words of its columns."""
    found = {_objective(column, word) for column, word in _cells(row, METHOD_COLUMNS)}
    if {Objective.DPO, Objective.DISTILL} <= found:
        raise Unreadable("dpo and distill in one row: state one method")
    special = (Objective.DISTILL, Objective.DPO, Objective.SFT)
    return next((one for one in special if one in found), Objective.PRETRAIN)


def _objective(column: str, word: str) -> Objective:
    if word in ADAPTERS:
        return Objective.SFT
    if word in OBJECTIVES or word in set(Objective):
        return OBJECTIVES.get(word) or Objective(word)
    known = sorted({*OBJECTIVES, *Objective, *ADAPTERS})
    raise Unreadable(f"{column} {word[:60]!r}: a method that is not predicted; known are {', '.join(known)}")


def adapter_of(row: Mapping[str, str]) -> Adapter | None:
    """The adapters that the row trains; None: it trains all weights."""
    named = [ADAPTERS[word] for _, word in _cells(row, METHOD_COLUMNS) if word in ADAPTERS]
    for column, word in _cells(row, ADAPTER_COLUMNS):
        if word in OFF:
            continue
        kind = "dora" if column == "use_dora" else "lora"
        if word not in YES and word not in ADAPTERS:
            raise Unreadable(f"{column} {word[:60]!r}: an adapter that is not predicted; {_known(ADAPTERS)}")
        named.append(ADAPTERS[kind if word in YES else word])
    column, base = _base(row)
    if not named:
        if base is not None and base is not BaseFormat.BF16:
            told = f"{column} {(row.get(column) or '')[:60]!r}"
            raise Unreadable(f"{told}: frozen weights need adapters, in the column adapter")
        return None
    kinds = [kind for kind, _ in named]
    kind = AdapterKind.DORA if AdapterKind.DORA in kinds else AdapterKind.LORA
    stated = next((one for _, one in named if one is not None), None)
    rank = next((number(row, column) for column in RANK_COLUMNS if number(row, column)), None)
    return Adapter(kind, int(rank or ROW_RANK), _targets(row) or ROW_TARGETS, base or stated)


def _base(row: Mapping[str, str]) -> tuple[str, BaseFormat | None]:
    """The column that states the format of frozen weights (its own, or the model's name), and the format."""
    for column, stated in BITS_COLUMNS.items():
        if _switch(row, (column,)):
            return column, stated
    for column, word in _cells(row, BASE_COLUMNS):
        found = BASES.get(word)
        return column, found if found is not None else _known_word(column, word, BaseFormat, BASES)
    named = named_format(row.get("model") or "")
    if named is None or named in ("bf16", "fp16"):
        return "model", None
    if named not in set(BaseFormat):
        raise Unreadable(
            f"model {row['model'][:60]!r}: weights in few bits are not trained; {_known(BaseFormat)}"
        )
    return "model", BaseFormat(named)


def _targets(row: Mapping[str, str]) -> tuple[Target, ...]:
    found: list[Target] = []
    for column, told in _cells(row, TARGET_COLUMNS):
        for word in filter(None, re.split(r"[\s,;|\[\]'\"]+", told)):
            some = TARGETS.get(word)
            found += some if some is not None else [_known_word(column, word, Target, TARGETS)]
    return tuple(dict.fromkeys(found))


def _optimizer(row: Mapping[str, str]) -> OptimizerName:
    for column, told in _cells(row, OPTIMIZER_COLUMNS):
        word = told.replace("pagedadam", "paged_adam")
        if ADAM.fullmatch(word):
            return OptimizerName.ADAMW
        if EIGHT_BIT.fullmatch(word):
            paged = word.startswith("paged")
            return OptimizerName.PAGED_ADAMW8BIT if paged else OptimizerName.ADAMW8BIT
        return _known_word(column, word, OptimizerName)
    return OptimizerName.ADAMW


def _offload(row: Mapping[str, str]) -> Offload:
    """What is offloaded; FSDP's ``cpu_offload`` moves weights too."""
    for column, word in _cells(row, OFFLOAD_COLUMNS):
        if word in NO:
            continue
        if word in YES and column != "offload":
            return Offload.ALL if column == "cpu_offload" else Offload.OPTIMIZER
        return _known_word(column, word, Offload)
    return Offload.NONE


def _teacher(row: Mapping[str, str], models: Mapping[str, ModelShape]) -> ModelShape | None:
    named = (row.get("teacher") or "").strip()
    wanted = objective_of(row) is Objective.DISTILL
    if named.lower() in NOTHING:
        if wanted:
            raise Unreadable("distill: the column teacher is missing")
        return None
    if not wanted:
        raise Unreadable(f"teacher {named[:60]!r}: only the method distill has one")
    return find_model(named, models)[0]


def _cells(row: Mapping[str, str], columns: Sequence[str]) -> list[tuple[str, str]]:
    """The columns that state something, with their words in lower case."""
    told = [(column, (row.get(column) or "").strip().lower()) for column in columns]
    return [(column, word) for column, word in told if word not in NOTHING]


def _switch(row: Mapping[str, str], columns: Sequence[str]) -> bool | None:
    for column, word in _cells(row, columns):
        if word not in YES | NO:
            raise Unreadable(f"{column} {word[:60]!r}: known are true and false")
        return word in YES
    return None


def _word(row: Mapping[str, str], columns: Sequence[str], kind: type[W]) -> W | None:
    return next((_known_word(column, word, kind) for column, word in _cells(row, columns)), None)


def _known_word(column: str, word: str, kind: type[W], others: Mapping[str, object] | None = None) -> W:
    if word in set(kind):
        return kind(word)
    raise Unreadable(f"{column} {word[:60]!r}: {_known((*kind, *(others or ())))}")


def _known(words: Iterable[str]) -> str:
    return f"known are {', '.join(str(word) for word in words)}"
