"""Parallel layouts as arrays, and the enumeration of those worth trying.

L layouts. ``sharding`` over the data-parallel ranks: 0 none, 1 optimizer states (ZeRO-1), 2 also gradients
(ZeRO-2), 3 also parameters (FSDP, ZeRO-3), 3.5 parameters within a link domain with replicas between domains
(HSDP). ``interleave`` 0: derived from the layers of a stage. ``recompute`` indexes ``RECOMPUTE``;
``AS_NEEDED`` recomputes as many layers as memory requires, and plans call it "full".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from broker.domain.basics.estimate import Parallelism
from optimizer.performance.arrays import Array, as_array, number

RECOMPUTE = ("none", "selective", "full")
SELECTIVE, FULL_RECOMPUTE, AS_NEEDED = 1.0, 2.0, 3.0
FULLY_SHARDED, HYBRID = 3.0, 3.5
SHARDINGS = (1.0, FULLY_SHARDED, HYBRID)
SHARDINGS_OF_PIPELINES = sum(sharding < FULLY_SHARDED for sharding in SHARDINGS)
RECOMPUTED = (0.0, SELECTIVE, AS_NEEDED)
"""What ``enumerate_layouts`` tries, from the least recomputation on."""
LONG_CONTEXT = 16384
CONTEXTS_FROM = ((131072, 16), (LONG_CONTEXT + 1, 8), (8192, 2))
MICRO_BATCHES = (1, 2, 4, 8)
TENSOR_MOST = 8
PIPELINE_MOST = 32
EXPERT_RANKS = (1, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Layouts:
    """Parallel degrees, one entry per layout."""

    tp: Array
    pp: Array
    cp: Array
    ep: Array
    micro_batch: Array
    recompute: Array
    sharding: Array
    interleave: Array

    @property
    def ranks_per_copy(self) -> Array:
        """GPUs of one model copy: tp × pp × cp."""
        return self.tp * self.pp * self.cp

    @property
    def recompute_offset(self) -> NDArray[np.intp]:
        """How many places before each layout of ``enumerate_layouts`` it stands without recomputation."""
        shardings = np.where(self.pp == 1, len(SHARDINGS), SHARDINGS_OF_PIPELINES)
        found: NDArray[np.intp] = (np.searchsorted(RECOMPUTED, self.recompute) * shardings).astype(np.intp)
        return found

    def take(self, indices: NDArray[np.intp]) -> Layouts:
        """The layouts at ``indices``."""
        return Layouts(**{field.name: getattr(self, field.name)[indices] for field in fields(self)})

    def have(self, one: Layouts) -> bool:
        """Whether a single layout is among these, however it shards its states."""
        degrees = ("tp", "pp", "cp", "ep", "micro_batch", "recompute")
        return bool(np.all([getattr(self, name) == getattr(one, name) for name in degrees], axis=0).any())


def recompute_word(code: float) -> str:
    """The name that plans use for a code of ``Layouts.recompute``."""
    return RECOMPUTE[int(min(code, FULL_RECOMPUTE))]


Row = tuple[float, float, float, float, float, float, float, float]


def stack_layouts(rows: Iterable[Row]) -> Layouts:
    """Layouts from tuples in field order."""
    table = as_array(list(rows)).reshape(-1, 8)
    return Layouts(*(table[:, column].copy() for column in range(8)))


@lru_cache(maxsize=4096)
def ways_of(parallelism: Parallelism) -> tuple[Layouts, ...]:
    """Every way to run a layout of a plan, in plain numbers, since it does not state how states are sharded
    nor, for "full", how many layers are recomputed.
    """
    p = parallelism
    recompute = float(RECOMPUTE.index(p.recompute))
    recompute = AS_NEEDED if recompute == FULL_RECOMPUTE else recompute
    rows = [(p.tp, p.pp, p.cp, p.ep, p.micro_batch, recompute, sharding, 0.0) for sharding in SHARDINGS]
    return tuple(Layouts(*map(number, row)) for row in (rows[:1] if p.pp > 1 else rows))


@lru_cache(maxsize=256)
def enumerate_layouts(
    gpus_per_node: int, layers: int, heads: int, experts: int, sequence_length: int
) -> Layouts:
    """Layouts worth trying on nodes of ``gpus_per_node``; tensor groups stay inside a node.

    Pipelines have up to 32 stages and micro-batches 1 to 8 sequences; recomputation is none, selective or as
    needed. Parameter sharding is an alternative to pipelines; context parallelism is for long sequences.
    """
    tensor = [
        t for t in _powers(min(gpus_per_node, TENSOR_MOST)) if gpus_per_node % t == 0 and heads % t == 0
    ]
    context = _powers(next((most for least, most in CONTEXTS_FROM if sequence_length >= least), 1))
    expert = [e for e in EXPERT_RANKS if experts % e == 0] if experts else [1]
    micro = MICRO_BATCHES if sequence_length <= LONG_CONTEXT else MICRO_BATCHES[:2]
    rows: list[Row] = [
        (t, p, c, e, b, r, s, 0.0)
        for t, p, c, e, b, r, s in product(
            tensor,
            range(1, min(PIPELINE_MOST, layers) + 1),
            context,
            expert,
            micro,
            RECOMPUTED,
            SHARDINGS,
        )
        if (p == 1 or s < FULLY_SHARDED) and (e == 1 or e >= t)
    ]
    return stack_layouts(rows)


def _powers(most: int) -> list[int]:
    return [1 << k for k in range(max(1, most).bit_length())]
