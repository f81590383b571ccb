"""How long a part of a batch holds its nodes: a cold start, its requests, and what interruptions lose. Pure.

Interruptions of a node are a Poisson process. Each loses a chunk of work and a cold start, so of h held hours
h × rate × (chunk + cold start) are lost, and h = (cold start + requests / rate of answers) / share kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from broker.domain.basics.confidence import MEDIAN, work_factors
from broker.domain.basics.estimate import Estimate
from broker.domain.basics.node_launch import COLD_START
from broker.domain.planning.workload import Batch

HOURS = "hours"
REQUEST_RATE = "requests_per_s_per_replica"
LEAST_KEPT = 1e-3
"""Where interruptions leave less than this share of the time, no deadline can be met anyway."""


def kept_share(batch: Batch, cold_start_s: float, interruptions_per_hour: float) -> float:
    """The share of held time that is not lost to interruptions, at ``interruptions_per_hour`` of a node."""
    lost_hours = batch.chunk_minutes / 60 + cold_start_s / 3600
    return max(LEAST_KEPT, 1 - interruptions_per_hour * lost_hours)


def with_hours(
    estimate: Estimate, batch: Batch, requests: float, replicas: int, interruptions_per_hour: float
) -> Estimate:
    """``estimate`` of a configuration with the held hours of ``requests`` on ``replicas`` of it."""

    def hours(cold_start_s: float, rate: float) -> float:
        kept = kept_share(batch, cold_start_s, interruptions_per_hour)
        return (cold_start_s + requests / (replicas * rate)) / kept / 3600

    cold_s, rate = estimate.value[COLD_START], estimate.value[REQUEST_RATE]
    is_median = batch.planned_confidence == MEDIAN
    slower, faster = rate / estimate.low[REQUEST_RATE] - 1, estimate.high[REQUEST_RATE] / rate - 1
    sure, mean = work_factors(slower, faster, batch.planned_confidence)

    def told(metrics: Mapping[str, float], rates: Mapping[str, float]) -> Mapping[str, float]:
        return {**metrics, HOURS: hours(metrics[COLD_START], rates[REQUEST_RATE])}

    return replace(
        estimate,
        value=told(estimate.value, estimate.value),
        low=told(estimate.low, estimate.high),
        high=told(estimate.high, estimate.low),
        at_confidence={} if is_median else {HOURS: hours(cold_s, rate / sure)},
        expected_hours=None if is_median else hours(cold_s, rate / mean),
    )
