"""80 % intervals: how far each metric may be off, by regime and by how well the GPU is known."""

from __future__ import annotations

from collections.abc import Mapping

from broker.domain.estimate import Estimate, Provenance
from optimizer.performance.calibration import Intervals

SHARES = frozenset({"communication_share", "checkpoint_share", "goodput", "mfu"})


def with_interval(
    value: Mapping[str, float], relative: Mapping[str, float], provenance: Provenance
) -> Estimate:
    """``value / (1 + r)`` to ``value · (1 + r)`` for each metric; shares stay at most 1."""
    low = {name: number / (1.0 + relative[name]) for name, number in value.items()}
    high = {name: number * (1.0 + relative[name]) for name, number in value.items()}
    for name in SHARES.intersection(high):
        high[name] = max(min(high[name], 1.0), value[name])
    return Estimate(dict(value), low, high, provenance)


def memory_regime(software: str) -> str:
    """Classes of training stacks whose peaks are judged together: ``eager``, ``old`` or ``tuned``."""
    if software == "eager":
        return software
    return "old" if software.endswith("_2022") else "tuned"


def training_relative(
    moe: bool, known_gpu: bool, measured: bool, constants: Intervals, memory: str = "tuned"
) -> dict[str, float]:
    """Relative half-width of each training metric; ``memory``: the regime of the stack's peaks."""
    time = constants.training_moe if moe else constants.training_dense
    time += 0.0 if known_gpu else constants.training_unseen_gpu
    time = constants.measured if measured else time
    return {
        "step_s": time,
        "mfu": time,
        "tokens_per_s": time,
        "hours": time + constants.goodput,
        "memory_gb_per_gpu": constants.training_memory[memory],
        "communication_share": 2.0 * time,
        "checkpoint_share": 2.0 * time,
        "goodput": constants.goodput,
    }


def serving_relative(batch: bool, known_gpu: bool, measured: bool, constants: Intervals) -> dict[str, float]:
    """Relative half-width of each serving metric."""
    more = 0.0 if known_gpu else constants.serving_unseen_gpu
    modelled = constants.tokens_per_s["offline"] + more
    rate = constants.measured if measured else modelled
    return {
        "requests_per_s_per_replica": rate,
        "ttft_p95_ms": constants.ttft["closed" if batch else "open"] + more,
        "itl_p95_ms": constants.itl["closed"] + more,
        "tokens_per_s": rate,
        "memory_gb_per_gpu": constants.kv,
        "kv_tokens": constants.kv,
        "usd_per_million_tokens": rate,
        "cold_start_s": constants.cold_start,
    }


def serving_row_relative(
    regime: str, known_gpu: bool, constants: Intervals
) -> tuple[float, float, float, float, float]:
    """Half-widths of tokens/s, first token (median, p95) and time between tokens (median, p95) by regime."""
    more = 0.0 if known_gpu else constants.serving_unseen_gpu
    ttft, itl = constants.ttft[regime] + more, constants.itl[regime] + more
    return constants.tokens_per_s[regime] + more, ttft, ttft, itl, itl


def provenance_of(measured: bool, known_gpu: bool) -> Provenance:
    """Measured by the user, calibrated on published rows of that GPU, or from its data sheet alone."""
    if measured:
        return Provenance.MEASURED
    return Provenance.CALIBRATED if known_gpu else Provenance.MODELLED
