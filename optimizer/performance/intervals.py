"""80 % intervals: the likely error of each metric, by regime and by how well the GPU is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from broker.domain.basics.estimate import Estimate, Provenance
from optimizer.performance.constants.groups import Intervals, Table

SHARES = frozenset({"communication_share", "checkpoint_share", "goodput", "mfu"})
SAME, NEAR = 0.95, 0.9
MOE, OLD, BURST, OBJECTIVE, P95 = "_moe", "_old", "burst", "objective", "_p95"
FIRST_ALONE, OVERLOAD = "first", "overload"
WIDER = {BURST: "closed", FIRST_ALONE: "single"}
GRID_STACK = "eager"


@dataclass(frozen=True, slots=True)
class Closeness:
    """How close own measurements are: the correlation with the closest one, and factors on half-widths of
    logarithms, for times and rates (``shrink``) and for first tokens (``shrink_first``).
    """

    nearness: float = 0.0
    shrink: float = 1.0
    shrink_first: float = 1.0


NO_ROWS = Closeness()


def with_interval(
    value: Mapping[str, float], relative: Mapping[str, float], provenance: Provenance
) -> Estimate:
    """The interval from ``value / (1 + r)`` to ``value · (1 + r)`` for each metric; shares stay at most 1."""
    low = {name: number / (1.0 + relative[name]) for name, number in value.items()}
    high = {name: number * (1.0 + relative[name]) for name, number in value.items()}
    for name in SHARES.intersection(high):
        high[name] = max(min(high[name], 1.0), value[name])
    return Estimate(dict(value), low, high, provenance)


def memory_regime(software: str, adapters: bool = False) -> str:
    """Class of memory predictions with a common interval: adapters, and ``eager``, ``old`` or other
    (``tuned``) stacks.
    """
    if adapters:
        return "adapters"
    if software == "eager":
        return software
    return "old" if software.endswith("_2022") else "tuned"


def training_relative(
    moe: bool,
    known_gpu: bool,
    measured: bool,
    constants: Intervals,
    near: Closeness = NO_ROWS,
    adapters: bool = False,
    software: str = "",
) -> dict[str, float]:
    """Relative half-width of each training metric; ``adapters``: LoRA; ``software``: class of the stack."""
    dense = constants.training_grid if software == GRID_STACK else constants.training_dense
    dense = constants.training_adapters if adapters else dense
    time = constants.training_moe if moe else dense
    time += 0.0 if known_gpu else constants.training_unseen_gpu
    time = constants.measured if measured else _narrowed(time, near.shrink, constants.measured)
    return {
        "step_s": time,
        "mfu": time,
        "tokens_per_s": time,
        "hours": time + constants.goodput,
        "memory_gb_per_gpu": constants.training_memory[memory_regime(software, adapters)],
        "communication_share": 2.0 * time,
        "checkpoint_share": 2.0 * time,
        "goodput": constants.goodput,
    }


def serving_relative(
    batch: bool,
    known_gpu: bool,
    measured: bool,
    constants: Intervals,
    moe: bool = False,
    near: Closeness = NO_ROWS,
) -> dict[str, float]:
    """Relative half-width of each serving metric."""
    more, least = 0.0 if known_gpu else constants.serving_unseen_gpu, constants.measured
    modelled = _narrowed(half_width_of(constants.tokens_per_s, "offline", moe) + more, near.shrink, least)
    rate = least if measured else modelled
    ttft = half_width_of(constants.ttft, "closed" if batch else "open", moe) + more
    itl = half_width_of(constants.itl, "closed", moe) + more
    return {
        "requests_per_s_per_replica": rate,
        "ttft_p95_ms": _narrowed(ttft, near.shrink_first, least),
        "itl_p95_ms": _narrowed(itl, near.shrink, least),
        "tokens_per_s": rate,
        "memory_gb_per_gpu": constants.kv,
        "kv_tokens": constants.kv,
        "usd_per_million_tokens": rate,
        "cold_start_s": constants.cold_start,
    }


def half_width_of(table: Table, regime: str, moe: bool, old: bool = False) -> float:
    """The half-width of a regime, with its own value for old engines or models with experts if there is one.

    Without a value of its own, a burst uses that of a closed loop, and a first token in the engine's own
    process that of a single stream.
    """
    plain = table.get(regime, table[WIDER.get(regime, regime)])
    of_kind = table.get(f"{regime}{MOE}", plain) if moe else plain
    return table.get(f"{regime}{OLD}", of_kind) if old else of_kind


def _narrowed(relative: float, shrink: float, least: float) -> float:
    """A half-width narrowed in logarithms by rows nearby, but not below the differences between repeated
    measurements.
    """
    if shrink >= 1.0 or relative <= least:
        return relative
    return max(math.expm1(math.log1p(relative) * shrink), least)


def provenance_of(measured: bool, known_gpu: bool, near: Closeness = NO_ROWS) -> Provenance:
    """Whether an estimate is measured by the user (same configuration), calibrated (on rows nearby or on
    published rows of the GPU), or modelled from the data sheet alone.
    """
    if measured or near.nearness >= SAME:
        return Provenance.MEASURED
    return Provenance.CALIBRATED if known_gpu or near.shrink <= NEAR else Provenance.MODELLED
