"""Layouts of a published training row: the given degrees, and all sensible ones for blank cells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from broker.domain.workloads.model_shape import ModelShape
from broker.domain.workloads.training_method import Objective
from optimizer.calibration.tables.cells import NOTHING, Unreadable, number
from optimizer.calibration.tables.training_methods import objective_of
from optimizer.performance.training.layouts import (
    AS_NEEDED,
    FULL_RECOMPUTE,
    FULLY_SHARDED,
    HYBRID,
    MICRO_BATCHES,
    PIPELINE_MOST,
    RECOMPUTE,
    SHARDINGS,
    TENSOR_MOST,
    Row,
)

TRAINERS, TUNERS = "eager", ("torchtune",)
REBUILD_SOME = frozenset({"tuned", "tuned_2026", "megatron_lm", "fsdp", "fsdp_compiled"})
SHARDED = frozenset({"fsdp", "fsdp_compiled", "fsdp_2022"})
EXPERT_MOST = 64
CONTEXT_FROM, CONTEXT_TOKENS, CONTEXT_LEAST = 8192, 8192, 8
MICRO_BATCH_TOKENS = 65536
SHARD_GROUP = re.compile(r"FSDP(\d+)")
NODE_GROUPS = range(4, 17)
HYBRID_WORDS = ("HSDP", "HYBRID", "MICS")
PART_WORDS = ("GRADOP", "SHARDGRAD")
WHOLE_WORDS = ("FSDP", "FULLSHARD")
SHARE_OPTIMIZER = ("internevo", "internlm")
BEFORE_SHARING = frozenset({"megatron_2021", "megatron_2022"})
NO_SHARDING = frozenset({"0", "ZERO0", "STAGE0", "DDP", "NO", "NONE", "NOSHARD"})


@dataclass(frozen=True, slots=True)
class LayoutSpec:
    """What the layouts of a row must divide: the model, the GPUs in total and per link domain, the batch."""

    model: ModelShape
    gpus: int
    domain: int
    sequence_length: float
    sequences: float
    software: str


def row_layouts(row: Mapping[str, str], asked: LayoutSpec) -> tuple[Row, ...]:
    """All layouts that the row allows. Raises Unreadable if none divides the GPUs."""
    model = asked.model
    most = min(TENSOR_MOST, asked.domain)
    tensor = _given(row, "tp", [t for t in _powers(most) if model.heads % t == 0])
    stages = _given(row, "pp", _stages(model.layers))
    expert = _given(row, "ep", [e for e in _powers(EXPERT_MOST) if model.experts % e == 0])
    chunks = number(row, "interleave") or 0.0
    dp = number(row, "dp")
    rows = [
        (t, p, c, e, b, r, s, chunks)
        for t, p, c, e, b, r, s in product(
            tensor,
            stages,
            _contexts(row, asked),
            expert if model.is_moe else [1.0],
            _micro_batches(row, asked),
            _recompute(row, asked.software),
            _sharding(row, asked.software),
        )
        if t * p * c <= asked.gpus
        and (dp is None or _same_dp(row, dp, t * p * c, asked.gpus))
        and (p == 1 or s < FULLY_SHARDED)
    ]
    if not rows:
        raise Unreadable("no layout fits the GPU count")
    return tuple(rows)


def _same_dp(row: Mapping[str, str], dp: float, ranks: float, gpus: int) -> bool:
    """Whether the layout agrees with a given data-parallel degree, which only counts if the other degrees are
    blank."""
    return _fixed(row) or dp * ranks == gpus


def _fixed(row: Mapping[str, str]) -> bool:
    """Whether tensor and pipeline degrees are given; then other blank degrees are one."""
    return number(row, "tp") is not None and number(row, "pp") is not None


def _given(row: Mapping[str, str], name: str, options: Sequence[float]) -> list[float]:
    value = number(row, name)
    return [value] if value else [float(option) for option in options]


def _stages(layers: int) -> list[int]:
    """Pipeline degrees: powers of two, and divisors of the number of layers."""
    most = min(PIPELINE_MOST, layers)
    return sorted({*_powers(most), *(p for p in range(1, most + 1) if layers % p == 0)})


def _contexts(row: Mapping[str, str], asked: LayoutSpec) -> list[float]:
    """Context-parallel degrees: tried from 8k tokens on, up to 8, and beyond that while each rank keeps 8k
    tokens."""
    if _fixed(row) or asked.sequence_length < CONTEXT_FROM:
        return _given(row, "cp", [1.0])
    most = max(CONTEXT_LEAST, int(asked.sequence_length) // CONTEXT_TOKENS)
    return _given(row, "cp", _powers(most))


def _micro_batches(row: Mapping[str, str], asked: LayoutSpec) -> list[float]:
    """The micro-batch of the row, or usual ones: more sequences if they are short.

    torchtitan gives the batch of a rank and cuts it into as many micro-batches as a pipeline has ranks,
    however many chunks each of them has.
    """
    stages, given = number(row, "pp") or 1.0, number(row, "micro_batch")
    pipelines = asked.gpus / (stages * (number(row, "tp") or 1.0) * (number(row, "cp") or 1.0))
    of_rank = asked.sequences / pipelines
    if asked.software in SHARDED and stages > 1.0 and (given is None or given >= of_rank):
        return [max(1.0, of_rank // stages)]
    most = max(MICRO_BATCHES[-1], int(MICRO_BATCH_TOKENS // asked.sequence_length))
    return [given] if given else [float(b) for b in _powers(most)]


def _powers(most: int) -> list[int]:
    return [1 << k for k in range(max(1, most).bit_length())]


def _recompute(row: Mapping[str, str], software: str) -> list[float]:
    """The recomputation of the row, or every kind that the software has. Fine-tuning scripts with Hugging
    Face's trainers and recipes of torchtune recompute every layer by default."""
    word = (row.get("recompute") or "").strip().split("(")[0].lower()
    if word in RECOMPUTE:
        return [float(RECOMPUTE.index(word))]
    framework = (row.get("framework") or "").lower()
    rebuilds = software == TRAINERS or any(name in framework for name in TUNERS)
    if rebuilds and objective_of(row) is not Objective.PRETRAIN:
        return [FULL_RECOMPUTE]
    return [0.0, AS_NEEDED] if software in REBUILD_SOME else [0.0, 1.0, FULL_RECOMPUTE]


def _sharding(row: Mapping[str, str], software: str) -> list[float]:
    """What the data-parallel ranks shard; pipelines are combined with sharded optimizer states, and so are
    frameworks whose default that is. Megatron shards them since the end of 2022."""
    text = (row.get("zero_fsdp") or row.get("zero") or "").strip()
    word = re.sub(r"[^A-Z0-9]", "", text.upper()) if text.lower() not in NOTHING else ""
    alone = (number(row, "pp") or 1.0) == 1.0
    if not word and not _fixed(row) and software in REBUILD_SOME:
        return list(SHARDINGS)
    if not word and software in BEFORE_SHARING:
        return [0.0]
    if not word:
        framework = (row.get("framework") or "").lower()
        whole = software in SHARDED and alone and not any(name in framework for name in SHARE_OPTIMIZER)
        return [FULLY_SHARDED] if whole else [1.0]
    level = _level(word)
    return [level] if alone or level < FULLY_SHARDED else [1.0]


def _level(word: str) -> float:
    """The code of a word such as ZERO3, FSDP2FULL, STAGE2, HSDP, GRADOP, FSDP8 (a group of eight)."""
    group = SHARD_GROUP.match(word)
    near = group is not None and int(group.group(1)) in NODE_GROUPS
    if near or any(name in word for name in HYBRID_WORDS):
        return HYBRID
    if word in NO_SHARDING:
        return 0.0
    if any(name in word for name in PART_WORDS):
        return 2.0
    if any(name in word for name in WHOLE_WORDS):
        return FULLY_SHARDED
    return {"2": 2.0, "3": FULLY_SHARDED}.get(word[-1], 1.0)
