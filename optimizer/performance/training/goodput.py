"""Checkpoints, failures and restarts: the share of held time that advances the run.

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
    """Cost of checkpoints: seconds for which one blocks, seconds between two, seconds to restart."""

    blocking_s: Array
    interval_s: Array
    restart_s: Array


def checkpoint_bytes(params: Array, calibration: Calibration) -> Array:
    """Weights, master copy and moments: 12-14 bytes per parameter."""
    return calibration.goodput.checkpoint_bytes_per_param * params


def failures_per_hour(
    nodes: Array, gpus_per_node: Array, interruptions: Array, calibration: Calibration
) -> Array:
    """Failure rate of a run: hardware per eight GPUs, software and operators, spot interruptions per node.

    Software fails in proportion to nodes n up to the rate of the largest runs: min(s·n, most).
    """
    goodput = calibration.goodput
    eights = nodes * gpus_per_node / 8.0
    software = xp.minimum(
        goodput.software_failures_per_node_hour * eights, goodput.software_failures_per_hour_most
    )
    return goodput.failures_per_node_hour * eights + software + nodes * interruptions


def daly_interval_s(blocking_s: Array, between_failures_s: Array) -> Array:
    """Optimal time between checkpoints for cost C and mean time between failures M (Daly 2006):

    √(2CM)·(1 + √(C/2M)/3 + C/18M) − C for C < 2M, else M
    """
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
    """The checkpoint schedule of a run.

    The copy to host memory blocks, and so does ``blocking_write_share`` of the write (0 if saves are
    asynchronous, else 1). The write limits how often checkpoints are possible.
    """
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


def begun_again_s(
    params: Array, nodes: Array, gpus_per_node: Array, every_minutes: float | None, calibration: Calibration
) -> Array:
    """Seconds that a run takes to go on elsewhere where its window ends: the start-up there, loading of the
    last checkpoint, and the work since then, on average half the time between two checkpoints.
    """
    goodput = calibration.goodput
    failures = failures_per_hour(nodes, gpus_per_node, xp.zeros_like(nodes), calibration)
    plan = saving(params, nodes, gpus_per_node, every_minutes, failures, calibration)
    load_s = plan.restart_s - goodput.detect_and_reschedule_s - goodput.warm_up_s
    lost_s: Array = goodput.startup_s + load_s + plan.interval_s / 2.0
    return lost_s


def goodput_share(plan: Saving, failures: Array) -> Array:
    """Goodput with failures as a Poisson process (Daly's complete form):

      τ / (M·e^(R/M)·(e^((τ+C)/M) − 1))

    For rare failures it is close to 1 − C/τ − (τ/2 + R)/M.
    """
    mean = 3600.0 / failures
    segment, lost = (plan.interval_s + plan.blocking_s) / mean, plan.restart_s / mean
    kept = xp.exp(-xp.minimum(segment + lost, EXPONENT_MOST))
    share: Array = plan.interval_s / mean * kept / -xp.expm1(-segment)
    return share


def checkpoint_share(plan: Saving) -> Array:
    """Share of running time for which checkpoints block."""
    return plan.blocking_s / (plan.interval_s + plan.blocking_s)
