"""The two stages of a service: until it was measured for a day, and after it.

What a replica carries is known within an interval. Until a service has run for a day, it holds what suffices
with its confidence; after it, what it needs is known, and the plan counts the median. How its traffic grows
from then on is not known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from broker.domain.basics.confidence import MEDIAN, normal_quantile
from broker.domain.planning.workload import Batch, PlanRequest, Serving, Training

HOUR = timedelta(hours=1)
MEASURED_HOURS = DAY_H = 24
MOST_LATE = timedelta(hours=24)


class StageBasis(StrEnum):
    """Which rate of a replica counts: the one that holds with the confidence, or the median."""

    CONFIDENCE = "confidence"
    EXPECTED = "expected"


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the time of a service, until an instant, and the rate that counts in it."""

    until: datetime
    basis: StageBasis


def measured_hour(request: PlanRequest, service: Serving, earliest: datetime) -> int | None:
    """The first hour of the horizon in which the median counts; None if there is none.

    It is a day after the service begins: with the horizon, at its own start or at the latest end of the run
    for which it waits, and not before ``earliest``. A service that is planned again was measured meanwhile,
    so that its first stage may be over.
    """
    if service.planned_confidence == MEDIAN:
        return None
    begin = max(earliest, service.starts_at or earliest)
    for one in request.workloads:
        if one.name == service.starts_after and isinstance(one, Training | Batch):
            begin = max(begin, _latest_end(one))
    hour = -(-(begin - request.horizon.start) // HOUR) + MEASURED_HOURS
    return hour if request.horizon.start + hour * HOUR < request.horizon.end else None


def grown_weeks(measured: int, hour: int) -> float:
    """Weeks of unmeasured growth that an hour of the horizon counts, to the end of its day after the
    ``measured`` hour: 0 before it.
    """
    return 0.0 if hour < measured else ((hour - measured) // DAY_H + 1) / 7


def growth_share(service: Serving, weeks: float) -> float:
    """By what traffic has grown with the service's confidence after ``weeks`` that nobody has measured."""
    if service.planned_confidence == MEDIAN:
        return 1.0
    deviations = normal_quantile(service.planned_confidence)
    return math.exp(deviations * service.traffic.uncertainty.weekly_deviation * weeks)


def stages_of(request: PlanRequest, service: Serving, earliest: datetime) -> tuple[Stage, ...]:
    """The stages of a service; none if one rate counts throughout."""
    hour = measured_hour(request, service, earliest)
    if hour is None:
        return ()
    until = request.horizon.start + hour * HOUR
    return Stage(until, StageBasis.CONFIDENCE), Stage(request.horizon.end, StageBasis.EXPECTED)


def _latest_end(run: Training | Batch) -> datetime:
    """The last instant at which a run may be done."""
    may_be_late = isinstance(run, Training) and run.late_usd_per_hour is not None
    return run.deadline + (MOST_LATE if may_be_late else timedelta())
