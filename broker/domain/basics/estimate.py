"""The predicted performance of a workload on a SKU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Provenance(StrEnum):
    """Where an estimate comes from, least to most trusted."""

    MODELLED = "modelled"
    CALIBRATED = "calibrated"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Parallelism:
    """A parallel layout: tensor, pipeline, data, context and expert degrees.

    ``recompute`` is ``none``, ``selective`` or ``full``.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    micro_batch: int = 1
    recompute: str = "none"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Metrics by name with an 80 % interval; all three mappings have the same keys.

    Training: ``step_s mfu tokens_per_s hours memory_gb_per_gpu communication_share
    checkpoint_share goodput``. Serving and batch: ``requests_per_s_per_replica ttft_p95_ms
    itl_p95_ms tokens_per_s memory_gb_per_gpu kv_tokens usd_per_million_tokens cold_start_s``. If every
    answer is a single token, ``itl_p95_ms`` is absent.

    ``at_confidence`` has the metrics that hold with the workload's confidence (runs and batches: ``hours``;
    services: rate and latencies); it is empty where the workload is planned by medians. ``expected_hours``
    is the mean of ``hours``.
    """

    value: Mapping[str, float] = field(hash=False)
    low: Mapping[str, float] = field(hash=False)
    high: Mapping[str, float] = field(hash=False)
    provenance: Provenance = Provenance.MODELLED
    at_confidence: Mapping[str, float] = field(default_factory=dict, hash=False)
    expected_hours: float | None = None

    def __getitem__(self, metric: str) -> float:
        return self.value[metric]

    @property
    def sure_hours(self) -> float:
        """Hours that suffice with the workload's confidence."""
        return self.at_confidence.get("hours", self.value["hours"])

    @property
    def sure_requests_per_s(self) -> float:
        """Requests per second of a replica that hold with the workload's confidence."""
        rate = "requests_per_s_per_replica"
        return self.at_confidence.get(rate, self.value[rate])

    @property
    def mean_hours(self) -> float:
        """Hours that capacity is held on average where it can be held until the work is done."""
        return self.value["hours"] if self.expected_hours is None else self.expected_hours
