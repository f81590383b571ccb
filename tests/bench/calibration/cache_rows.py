"""KV cache capacities as printed by engines, compared with the memory model of serving.

No constant is fitted to them. The weights' format follows from their printed size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.domain.market.sku import Sku
from broker.domain.planning.workload import Precision
from broker.domain.workloads.model_shape import GpuSpec, ModelShape
from optimizer.calibration.tables.cells import Unreadable, needed, number
from optimizer.performance.arrays import Array, as_array
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.hardware.sku_arrays import GIB, build_hardware
from optimizer.performance.serving.estimate import format_of
from optimizer.performance.serving.served_model import Replica, ServedModel, cache_tokens, weight_bytes
from optimizer.performance.shapes import build_shape

FORMATS = (Precision.BF16, Precision.FP8)


def cache_ratios(
    rows: Sequence[Mapping[str, str]],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> Array:
    """Predicted over measured tokens of each readable row."""
    found = []
    for row in rows:
        try:
            found.append(_ratio(row, calibration, gpus, models))
        except Unreadable:
            continue
    return as_array(found)


def _ratio(
    row: Mapping[str, str],
    calibration: Calibration,
    gpus: Mapping[str, GpuSpec],
    models: Mapping[str, ModelShape],
) -> float:
    model, spec = models.get(row.get("model", "")), _gpu(row.get("gpu", ""), gpus)
    if model is None or spec is None:
        raise Unreadable("unknown model or GPU")
    tp, weights = needed(row, "tp"), needed(row, "weights_gib") * GIB
    sku = Sku(name="", gpu=spec.gpu, gpus_per_node=8, gpu_memory_gb=spec.memory_gb)
    hw, one = build_hardware([sku], gpus, calibration), as_array([1.0])
    served = [
        ServedModel(
            build_shape(model),
            format_of(precision, calibration),
            Replica(as_array([tp]), one, one),
            hw,
            calibration,
            sequences_told=as_array([number(row, "max_num_seqs") or 0.0]),
        )
        for precision in FORMATS
    ]
    likely = min(served, key=lambda one: abs(float(sum(weight_bytes(one))) - weights))
    return float(cache_tokens(likely)[0]) / needed(row, "kv_tokens")


def _gpu(name: str, gpus: Mapping[str, GpuSpec]) -> GpuSpec | None:
    """Logs say "H100 80GB", which means the SXM board."""
    family, _, size = name.partition(" ")
    return gpus.get(name) or gpus.get(f"{family}-SXM-{size}")
