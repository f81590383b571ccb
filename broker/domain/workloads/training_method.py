"""How a run trains: its objective, what is trained, with which optimizer, and where the states are.

Bytes are counted per trained parameter. A frozen base has weights alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from broker.domain.workloads import document_fields as doc
from broker.domain.workloads.model_shape import ModelShape


class Objective(StrEnum):
    """What is learned. ``dpo`` compares two answers by a frozen copy of the model, ``distill`` learns from
    the logits of a teacher.
    """

    PRETRAIN = "pretrain"
    SFT = "sft"
    DPO = "dpo"
    DISTILL = "distill"


class AdapterKind(StrEnum):
    """Low-rank adapters beside frozen matrices; DoRA also trains the length of every row."""

    LORA = "lora"
    DORA = "dora"


class Target(StrEnum):
    """Matrices that have adapters: groups of them, or single ones by their names in Hugging Face's models."""

    ALL = "all"
    ATTENTION = "attention"
    MLP = "mlp"
    Q_PROJ = "q_proj"
    K_PROJ = "k_proj"
    V_PROJ = "v_proj"
    O_PROJ = "o_proj"
    GATE_PROJ = "gate_proj"
    UP_PROJ = "up_proj"
    DOWN_PROJ = "down_proj"


class BaseFormat(StrEnum):
    """Number format of frozen weights; ``int4`` is NF4 with quantised scales (QLoRA)."""

    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"


class OptimizerName(StrEnum):
    """Optimizers. ``paged_adamw8bit`` keeps its states in memory that moves to the host when the card is
    full; ``sgd`` has no momentum.
    """

    ADAMW = "adamw"
    ADAMW8BIT = "adamw8bit"
    PAGED_ADAMW8BIT = "paged_adamw8bit"
    ADAFACTOR = "adafactor"
    MUON = "muon"
    SGD = "sgd"


class Offload(StrEnum):
    """What is in host memory: nothing, states and gradients (ZeRO-Offload), or the weights too."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    ALL = "all"


class WeightMode(StrEnum):
    """``mixed``: 16-bit products of FP32 master weights; ``bf16``: weights, gradients and moments are in
    BF16 alone.
    """

    MIXED = "mixed"
    BF16 = "bf16"


GROUPS: Mapping[Target, tuple[Target, ...]] = {
    Target.ATTENTION: (Target.Q_PROJ, Target.K_PROJ, Target.V_PROJ, Target.O_PROJ),
    Target.MLP: (Target.GATE_PROJ, Target.UP_PROJ, Target.DOWN_PROJ),
}
BASE_BYTES: Mapping[BaseFormat, float] = {
    BaseFormat.BF16: 2.0,
    BaseFormat.FP8: 1.0,
    BaseFormat.INT8: 1.0,
    BaseFormat.INT4: 0.516,
}
"""Bytes per frozen matrix parameter. NF4 has 4 bits and 0.127 bits of quantised scales for blocks of 64
(Dettmers et al., QLoRA, 2023, section 3). Embeddings, output head and norms keep 16 bits.
"""
FP32, BF16 = 4.0, 2.0
STATES: Mapping[OptimizerName, tuple[float, float]] = {
    OptimizerName.ADAMW: (8.0, 4.0),
    OptimizerName.ADAMW8BIT: (2.03, 2.03),
    OptimizerName.PAGED_ADAMW8BIT: (2.03, 2.03),
    OptimizerName.ADAFACTOR: (0.01, 0.01),
    OptimizerName.MUON: (4.0, 2.0),
    OptimizerName.SGD: (0.0, 0.0),
}
"""Bytes of moments per parameter, with FP32 master weights and in pure BF16.

AdamW has two moments in the format of the weights that it steps; in 8 bits two bytes and a FP32 scale for
each block of 256 (Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022). Adafactor keeps sums
of rows and columns (Shazeer and Stern, 2018), Muon one momentum (Jordan et al., 2024).
"""
QUANTISED = frozenset({BaseFormat.INT8, BaseFormat.INT4})


@dataclass(frozen=True, slots=True)
class Adapter:
    """Trained matrices of ``rank`` beside frozen ones. ``base`` None: 8 bits where products have 8 bits,
    else 16.
    """

    kind: AdapterKind = AdapterKind.LORA
    rank: doc.Rank = 16
    targets: Annotated[tuple[Target, ...], doc.NotEmpty(), doc.OneOrList()] = (Target.ALL,)
    base: BaseFormat | None = None

    @property
    def matrices(self) -> frozenset[Target]:
        """The single matrices that have adapters."""
        every = [one for group in GROUPS.values() for one in group]
        named = [GROUPS.get(one, (one,)) for one in self.targets]
        return frozenset(every if Target.ALL in self.targets else (one for few in named for one in few))


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The optimizer, and what of a run is in host memory."""

    name: OptimizerName = OptimizerName.ADAMW
    offload: Offload = Offload.NONE


@dataclass(frozen=True, slots=True)
class TrainingMethod:
    """How a run trains. ``mean_tokens``: mean length of its sequences, which are padded to the longest of
    their micro-batch; None: sequences are packed. ``teacher``: whose logits a distillation learns from.
    """

    objective: Objective = Objective.PRETRAIN
    adapter: Adapter | None = None
    optimizer: Optimizer = field(default_factory=Optimizer)
    weights: WeightMode = WeightMode.MIXED
    offload_activations: bool = False
    mean_tokens: float | None = None
    teacher: ModelShape | None = None

    @property
    def is_pure(self) -> bool:
        """Whether weights have no FP32 master copy."""
        return self.weights is WeightMode.BF16

    @property
    def is_quantised(self) -> bool:
        """Whether frozen weights are in a format that no product reads."""
        return self.adapter is not None and self.adapter.base in QUANTISED

    @property
    def moment_bytes(self) -> float:
        """Bytes of the optimizer's moments per trained parameter."""
        return STATES[self.optimizer.name][self.is_pure]

    @property
    def kept_bytes(self) -> float:
        """Bytes per trained parameter of a checkpoint: 16-bit weights, master copy and moments."""
        return BF16 + (0.0 if self.is_pure else FP32) + self.moment_bytes

    def trained_params(self, model: ModelShape) -> float:
        """Number of trained parameters."""
        return model.total_params if self.adapter is None else adapter_params(model, self.adapter)

    def checkpoint_share(self, model: ModelShape) -> float:
        """Size of a checkpoint divided by that of a full run in mixed precision with AdamW."""
        return self.trained_params(model) / model.total_params * self.kept_bytes / PLAIN.kept_bytes


PLAIN = TrainingMethod()
"""Full training in mixed precision with AdamW."""


def adapter_params(model: ModelShape, adapter: Adapter) -> float:
    """Trained parameters of the adapters: rank·(in + out) of each matrix (Hu et al., LoRA, 2021), and with
    DoRA one length for each output (Liu et al., 2024).
    """
    long = 1.0 if adapter.kind is AdapterKind.DORA else 0.0
    return sum(
        copies * (adapter.rank * (into + out) + long * out)
        for into, out, copies in _sizes(model, adapter.matrices)
    )


def target_params(model: ModelShape, adapter: Adapter) -> float:
    """Parameters of the frozen matrices that have adapters."""
    return sum(copies * into * out for into, out, copies in _sizes(model, adapter.matrices))


def widths_per_token(model: ModelShape, matrices: frozenset[Target]) -> tuple[float, float]:
    """Widths that a token enters and leaves in the matrices of an average layer, each summed."""
    sizes = list(_sizes(model, matrices, per_token=True))
    into = sum(copies * one for one, _, copies in sizes) / model.layers
    return into, sum(copies * one for _, one, copies in sizes) / model.layers


def _sizes(
    model: ModelShape, matrices: frozenset[Target], *, per_token: bool = False
) -> list[tuple[int, int, float]]:
    """Inputs, outputs and number of matrices of each kind; ``per_token``: those that one token meets."""
    keys, values = model.head_widths
    hidden, heads, groups = model.hidden, model.heads, model.kv_heads
    attention = {
        Target.Q_PROJ: (hidden, heads * keys),
        Target.K_PROJ: (hidden, groups * keys),
        Target.V_PROJ: (hidden, groups * values),
        Target.O_PROJ: (heads * values, hidden),
    }
    found = [(*size, float(model.layers)) for one, size in attention.items() if one in matrices]
    routed = model.active_experts if per_token else model.experts
    inner = model.moe_hidden or hidden
    parts = (
        (hidden, model.ffn, float(model.layers - model.moe_layers)),
        (inner, model.moe_ffn, float(model.moe_layers * routed)),
        (hidden, model.moe_ffn, float(model.moe_layers * model.shared_experts)),
    )
    into_ffn = sum(one in matrices for one in (Target.GATE_PROJ, Target.UP_PROJ)[3 - model.mlp_mats :])
    for outer, ffn, copies in parts:
        found += [(outer, ffn, copies * into_ffn), (ffn, outer, copies * (Target.DOWN_PROJ in matrices))]
    return found
