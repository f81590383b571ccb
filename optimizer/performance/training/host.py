"""The optimizer's pass over its states, and what runs in host memory or moves there. Shapes broadcast."""

from __future__ import annotations

from broker.domain.workloads.training_method import BF16, FP32, PLAIN, Offload, OptimizerName, TrainingMethod
from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array
from optimizer.performance.training.memory import (
    expert_replicas,
    gradient_bytes,
    rank_params,
    streamed_bytes,
    trained_of_rank,
)
from optimizer.performance.training.scenario import Scenario

NEWTON_SCHULZ = 30.0
"""FLOPs per parameter and row of a matrix: five iterations of 6·n·m² (Jordan et al., Muon, 2024)."""


def optimizer_s(scenario: Scenario, dp: Array, owners: Array) -> Array:
    """The optimizer over the states of a rank, limited by memory bandwidth; ``owners`` ranks share them.

    Muon also orthogonalises its momentum by matrix products. An offloaded optimizer runs on the host.
    """
    method, compute, hw = scenario.run.method, scenario.compute, scenario.hw
    if method.optimizer.offload is not Offload.NONE:
        return xp.zeros_like(dp)
    dense, experts = rank_params(scenario.shapes, scenario.layouts)
    owned = dense / (owners * scenario.layouts.cp) + experts / expert_replicas(scenario.layouts, owners)
    if scenario.adapters is not None:
        owned = scenario.adapters.params / scenario.shapes.params * owned
    found: Array = _moved_bytes(scenario) * owned / (hw.hbm_bytes_per_s * compute.hbm_share)
    if method.optimizer.name is OptimizerName.MUON:
        rate = xp.maximum(hw.gemm["bf16"], hw.gemm["fp16"]) * compute.sustained_share
        rows = scenario.run.method.adapter.rank if scenario.run.method.adapter else scenario.shapes.hidden
        found = found + NEWTON_SCHULZ * rows * owned / rate
    return found


def host_s(
    scenario: Scenario,
    dp: Array,
    shards: Array,
    micro_batches: Array,
    pace_s: Array,
    held_bytes: Array,
    offloaded_bytes: Array,
) -> Array:
    """Exposed time of a step for transfers between GPU and host and for an optimizer on the host's cores.

    Activations and streamed weights move while a micro-batch computes for ``pace_s``; the optimizer begins
    when the last gradient has arrived, and its weights come back (Ren et al., ZeRO-Offload, 2021). Paged
    states move out and in again as far as the card lacks room beside ``held_bytes``.
    """
    method, link = scenario.run.method, scenario.hw.host_bytes_per_s
    offload, paged = method.optimizer.offload, method.optimizer.name is OptimizerName.PAGED_ADAMW8BIT
    seconds = xp.zeros_like(dp)
    if method.offload_activations or offload is Offload.ALL:
        moved = 2.0 * offloaded_bytes
        if offload is Offload.ALL:
            passes = 2.0 if scenario.forward is None else 3.0
            moved = moved + passes * streamed_bytes(scenario, dp, shards)
        seconds = seconds + micro_batches * xp.maximum(moved / link - pace_s, 0.0)
    if offload is not Offload.NONE:
        owned = trained_of_rank(scenario, dp, shards)
        on_node = owned * scenario.hw.gpus_per_node
        stepped = _moved_bytes(scenario) * on_node / scenario.calibration.host.adam_bytes_per_s
        seconds = seconds + (gradient_bytes(scenario) + BF16) * owned / link + stepped
    elif paged:
        states = method.moment_bytes * trained_of_rank(scenario, dp, shards)
        without = xp.clip(held_bytes + states - scenario.hw.memory_bytes, 0.0, states)
        seconds = seconds + 2.0 * without / link
    return seconds


def _moved_bytes(scenario: Scenario) -> float:
    """Bytes per trained parameter that the optimizer reads and writes."""
    method, compute = scenario.run.method, scenario.compute
    if method.is_pure and method.optimizer.name is OptimizerName.ADAMW:
        return compute.pure_adamw_bytes_per_param
    return compute.optimizer_bytes_per_param * _touched(method) / _touched(PLAIN)


def _touched(method: TrainingMethod) -> float:
    """Master copy and moments read and written, gradient read, weight written (in pure BF16 read too)."""
    master = 0.0 if method.is_pure else FP32
    gradient, weight = (BF16, 2.0 * BF16) if method.is_pure else (FP32, BF16)
    return 2.0 * (master + method.moment_bytes) + gradient + weight
