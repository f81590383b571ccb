"""From a node that just came to the first token: read weights, start, compile, capture."""

from __future__ import annotations

from optimizer.performance import elementwise as np
from optimizer.performance.arrays import Array
from optimizer.performance.calibration import ColdStart


def cold_start_s(weight_bytes: Array, gpus: Array, constants: ColdStart) -> Array:
    """Seconds from process start: weights over the storage rate, then the engine's own phases."""
    nodes_read = np.minimum(constants.storage_bytes_per_s * gpus, constants.storage_bytes_per_s_most)
    engine = constants.process_s + constants.compile_s + constants.capture_s
    return weight_bytes / nodes_read + engine + constants.distributed_s * (gpus - 1.0)
