"""What a workload needs of a host besides its GPUs: disk for image, weights and checkpoints, and memory for
loading.

GB are 10⁹ bytes, per node. A capacity that an offer does not state is assumed to suffice.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.domain.market.sku import Sku
from broker.domain.planning.workload import Precision, Training
from broker.domain.workloads.model_shape import ModelShape
from broker.domain.workloads.training_method import FP32, Offload, OptimizerName
from optimizer.performance.constants.calibrated import Calibration
from optimizer.performance.serving.estimate import format_of
from optimizer.performance.serving.served_model import stored_bytes
from optimizer.performance.shapes import build_shape
from optimizer.performance.training.estimate import saved_params
from optimizer.performance.training.memory import WEIGHT_BYTES

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

    Disk: image, the node's share of the kept checkpoints, and what a run reads as published: the frozen base
    of adapters, a teacher. Memory: a process for each GPU, the snapshot from which asynchronous saves write,
    and what is offloaded.
    """
    host, method = calibration.host, run.training_method
    share = calibration.goodput.checkpoint_bytes_per_param * saved_params(run) / nodes / GB
    read = [run.model] if method.adapter is not None else []
    read += [method.teacher] if method.teacher is not None else []
    disk = host.image_gb + host.checkpoints_kept * share
    disk += sum(model.total_params * WEIGHT_BYTES / GB for model in read)
    return HostNeeds(disk, gpus * host.process_gb + share + _offloaded_gb(run, nodes, gpus))


def _offloaded_gb(run: Training, nodes: int, gpus: int) -> float:
    """Host memory of a node for what its GPUs do not have: states with FP32 gradients, shared by all nodes;
    weights; and the inputs of the layers of a sequence on each GPU.
    """
    method, model = run.training_method, run.model
    trained, offload = method.trained_params(model), method.optimizer.offload
    held = trained * method.moment_bytes if method.optimizer.name is OptimizerName.PAGED_ADAMW8BIT else 0.0
    if offload is not Offload.NONE:
        held = trained * (method.kept_bytes - WEIGHT_BYTES + FP32)
    if offload is Offload.ALL:
        held += WEIGHT_BYTES * model.total_params
    inputs = WEIGHT_BYTES * model.layers * model.hidden * run.sequence_length * method.offload_activations
    return (held / nodes + gpus * inputs) / GB
