"""What a workload needs of a host besides its GPUs: disk for image, weights and checkpoints, and memory for
loading.

GB are 10⁹ bytes, per node. A capacity that an offer does not state is assumed to suffice.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.domain.market.sku import Sku
from broker.domain.planning.model_shape import ModelShape
from broker.domain.planning.workload import Precision, Training
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.serving.estimate import format_of
from optimizer.performance.serving.served_model import stored_bytes
from optimizer.performance.shapes import build_shape

GB = 1e9


@dataclass(frozen=True, slots=True)
class HostNeeds:
    """Disk and memory of one node, GB."""

    disk_gb: float
    memory_gb: float

    def shortage(self, sku: Sku) -> str | None:
        """What the node states too little of, in plain words; None if everything suffices."""
        for what, has, needs in (
            ("disk", sku.disk_gb, self.disk_gb),
            ("memory", sku.memory_gb, self.memory_gb),
        ):
            if has is not None and has < needs:
                return f"{has:,.0f} GB of {what}, {needs:,.0f} GB are needed"
        return None


def weights_gb(model: ModelShape, precision: Precision, calibration: Calibration) -> float:
    """Size of the weights as published in ``precision``, in GB."""
    form = format_of(precision, calibration, model.packed_in(precision))
    return float(sum(stored_bytes(build_shape(model), form, calibration.serving))) / GB


def serving_needs(model: ModelShape, precision: Precision, gpus: int, calibration: Calibration) -> HostNeeds:
    """Needs of a serving node with ``gpus`` GPUs.

    Disk: image and one copy of the weights. Memory: for each GPU a process that reads one file of the weights
    at a time.
    """
    host = calibration.host
    disk = host.image_gb + weights_gb(model, precision, calibration)
    return HostNeeds(disk, gpus * (host.process_gb + host.shard_gb))


def training_needs(run: Training, nodes: int, gpus: int, calibration: Calibration) -> HostNeeds:
    """Needs of each of ``nodes`` training nodes with ``gpus`` GPUs.

    Disk: image and the node's share of the kept checkpoints. Memory: a process for each GPU, and the snapshot
    from which asynchronous saves write.
    """
    host = calibration.host
    share = calibration.goodput.checkpoint_bytes_per_param * run.model.total_params / nodes / GB
    disk = host.image_gb + host.checkpoints_kept * share
    return HostNeeds(disk, gpus * host.process_gb + share)
