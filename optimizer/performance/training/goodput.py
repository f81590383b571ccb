"""Checkpoints, failures and restarts: the share of held time that moves the run forward.

Arguments broadcast; rates are per hour, times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.performance import elementwise as xp
from optimizer.performance.arrays import Array
from optimizer.performance.constants.calibrated import Calibration

EXPONENT_MOST = 600.0


@dataclass(frozen=True, slots=True)
class Saving:
    """Cost of checkpoints: blocking seconds of one, seconds between two, seconds to come back."""

    blocking_s: Array
    interval_s: Array
    restart_s: Array


def checkpoint_bytes(params: Array, calibration: Calibration) -> Array:
    """Weights, master copy and moments: 12-14 B a parameter."""
    return calibration.goodput.checkpoint_bytes_per_param * params


def failures_per_hour(
    nodes: Array, gpus_per_node: Array, interruptions: Array, calibration: Calibration
) -> Array:
    """Failures of a run: hardware by nodes of eight, software and people, spot by node.

    Software fails with every node that joins, up to what the largest runs bear: min(s·n, most).
    """
    goodput = calibration.goodput
    eights = nodes * gpus_per_node / 8.0
    software = xp.minimum(
        goodput.software_failures_per_node_hour * eights, goodput.software_failures_per_hour_most
    )
    return goodput.failures_per_node_hour * eights + software + nodes * interruptions


def daly_interval_s(blocking_s: Array, between_failures_s: Array) -> Array:
    """Best time between saves: √(2CM)·(1 + √(C/2M)/3 + C/18M) − C for C < 2M, else M (Daly 2006)."""
    c, m = blocking_s, between_failures_s
    ratio = xp.minimum(c / (2.0 * m), 1.0)
    best = xp.sqrt(2.0 * c * m) * (1.0 + xp.sqrt(ratio) / 3.0 + ratio / 9.0) - c
    return xp.where(c < 2.0 * m, best, m)


def saving(
    params: Array,
    nodes: Array,
    gpus_per_node: Array,
    every_minutes: float | None,
    failures: Array,
    calibration: Calibration,
) -> Saving:
    """Checkpoints: the copy to host memory blocks, and of the write ``blocking_write_share`` (0 where saves
    are asynchronous, 1 where they are not); the write limits how often."""
    goodput = calibration.goodput
    size = checkpoint_bytes(params, calibration)
    rate = xp.minimum(goodput.storage_bytes_per_s_per_node * nodes, goodput.storage_bytes_per_s_most)
    write = size / rate
    copy = size / (nodes * gpus_per_node * goodput.snapshot_bytes_per_s_per_gpu)
    blocking = goodput.snapshot_fixed_s + copy + goodput.blocking_write_share * write
    least = xp.maximum(write, goodput.interval_least_s)
    wanted = daly_interval_s(blocking, 3600.0 / failures) if every_minutes is None else every_minutes * 60.0
    restart = goodput.detect_and_reschedule_s + goodput.warm_up_s + write
    return Saving(blocking, xp.maximum(wanted, least), restart)


def goodput_share(plan: Saving, failures: Array) -> Array:
    """Useful share of held time, failures as a Poisson process (Daly's complete form).

    τ / (M·e^(R/M)·(e^((τ+C)/M) − 1)); near 1 − C/τ − (τ/2 + R)/M when failures are rare.
    """
    mean = 3600.0 / failures
    segment, lost = (plan.interval_s + plan.blocking_s) / mean, plan.restart_s / mean
    kept = xp.exp(-xp.minimum(segment + lost, EXPONENT_MOST))
    share: Array = plan.interval_s / mean * kept / -xp.expm1(-segment)
    return share


def checkpoint_share(plan: Saving) -> Array:
    """Share of running time that saves block."""
    return plan.blocking_s / (plan.interval_s + plan.blocking_s)
