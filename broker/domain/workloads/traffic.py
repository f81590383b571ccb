"""The requests of a service over time: their rates, their lengths, and how far both may be off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import Annotated
from zoneinfo import ZoneInfo

from broker.domain.workloads import document_fields as doc
from broker.domain.workloads.bursts import HOUR, Burst, mean_rate, peak_rate

HOURS_PER_WEEK = 168


class TrafficShape(StrEnum):
    """Form of the demand curve."""

    FLAT = "flat"
    DIURNAL = "diurnal"
    HOURLY = "hourly"


@dataclass(frozen=True, slots=True)
class RequestSize:
    """A size of requests: their share of all requests, in (0, 1], and their length in tokens."""

    share: doc.PartShare
    input_tokens: doc.Count
    output_tokens: doc.Count


def mean_tokens(mix: Sequence[RequestSize]) -> tuple[int, int]:
    """Mean input and output tokens of a request of ``mix``, rounded and at least 1."""
    tokens_in = sum(size.share * size.input_tokens for size in mix)
    tokens_out = sum(size.share * size.output_tokens for size in mix)
    return max(1, round(tokens_in)), max(1, round(tokens_out))


@dataclass(frozen=True, slots=True)
class TrafficUncertainty:
    """How far the traffic may be from what is stated, as relative standard deviations of log-normals.

    With a ``level`` of 0.2 the traffic is one standard deviation above what is stated at 1.2 times it, and
    below it at 1/1.2 times. It is measured with the first day. ``growth`` is the same of how much the traffic
    changes in each week from then on: after two weeks it may be (1 + growth)² times as much.
    """

    level: doc.Spread = 0.0
    growth: doc.Spread = 0.0

    @property
    def level_deviation(self) -> float:
        """The standard deviation of the logarithm of the level."""
        return math.log1p(self.level)

    @property
    def weekly_deviation(self) -> float:
        """The standard deviation of the logarithm of what a week changes."""
        return math.log1p(self.growth)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests per second over time, and their lengths in tokens.

    With a ``mix`` of sizes, whose shares sum to 1, the lengths are its means. With ``hourly`` rates the peak
    is the largest of them. ``time_zone`` (an IANA name, UTC by default) is that of ``peak_hour``, of the
    bursts and of a week of ``hourly`` rates.
    """

    input_tokens: Annotated[doc.Count, doc.OrNull] = 0
    output_tokens: Annotated[doc.Count, doc.OrNull] = 0
    shape: Annotated[TrafficShape, doc.OrNull] = TrafficShape.FLAT
    peak_requests_per_s: Annotated[doc.PeakDemand, doc.OrNull] = 0.0
    trough_share: doc.Share = 1.0
    peak_hour_utc: doc.HourOfDay = 0.0
    hourly: Annotated[tuple[doc.Demand, ...], doc.NotEmpty(), doc.OrNull] = ()
    mix: Annotated[tuple[RequestSize, ...], doc.NotEmpty(), doc.OrNull] = ()
    time_zone: doc.TimeZone | None = None
    peak_hour: doc.HourOfDay | None = None
    bursts: Annotated[tuple[Burst, ...], doc.NotEmpty(), doc.OrNull] = ()
    uncertainty: TrafficUncertainty = TrafficUncertainty()

    @property
    def zone(self) -> tzinfo:
        """The time zone in which times of day are read."""
        return UTC if self.time_zone is None else ZoneInfo(self.time_zone)

    @property
    def most_requests_per_s(self) -> float:
        """The highest rate of any hour and burst."""
        return max((self.peak_requests_per_s, *(one.requests_per_s for one in self.bursts)))

    @property
    def repeats_daily(self) -> bool:
        """Whether each day has the same rates at the same hours in UTC."""
        return self.shape is not TrafficShape.HOURLY and self.time_zone is None and not self.bursts

    def requests_per_s_at(self, hour_start: datetime, horizon_start: datetime) -> float:
        """The highest requests per second in the hour that begins at ``hour_start``."""
        base = self._base_at(hour_start, horizon_start)
        return peak_rate(base, self.bursts, hour_start, self.zone) if self.bursts else base

    def mean_requests_per_s_at(self, hour_start: datetime, horizon_start: datetime) -> float:
        """The mean requests per second in that hour; less than the highest where a burst is shorter."""
        base = self._base_at(hour_start, horizon_start)
        return mean_rate(base, self.bursts, hour_start, self.zone) if self.bursts else base

    def times(self, factor: float, rounded: Callable[[float], float] = float) -> Traffic:
        """The traffic with each of its rates times ``factor``, then ``rounded``."""
        hourly = tuple(rounded(rate * factor) for rate in self.hourly)
        bursts = tuple(
            replace(one, requests_per_s=rounded(one.requests_per_s * factor)) for one in self.bursts
        )
        peak = max(hourly, default=rounded(self.peak_requests_per_s * factor))
        return replace(self, peak_requests_per_s=peak, hourly=hourly, bursts=bursts)

    def _base_at(self, hour_start: datetime, horizon_start: datetime) -> float:
        """Requests per second at ``hour_start`` beside bursts.

        Diurnal: a cosine between peak and ``trough_share`` × peak, highest at the peak hour. Hourly: the list
        starts at the horizon's start and repeats; a week follows the clock of the time zone.
        """
        if self.shape is TrafficShape.FLAT:
            return self.peak_requests_per_s
        if self.shape is TrafficShape.HOURLY:
            since = hour_start - horizon_start
            if self.time_zone is not None and len(self.hourly) == HOURS_PER_WEEK:
                since = _wall_clock(hour_start, self.zone) - _wall_clock(horizon_start, self.zone)
            return self.hourly[int(since // HOUR) % len(self.hourly)]
        peak_hour, at = self.peak_hour_utc, hour_start
        if self.peak_hour is not None:
            peak_hour, at = self.peak_hour, _wall_clock(hour_start, self.zone)
        hour = at.hour + at.minute / 60 + at.second / 3600
        wave = (1 + math.cos(2 * math.pi * (hour - peak_hour) / 24)) / 2
        return self.peak_requests_per_s * (self.trough_share + (1 - self.trough_share) * wave)


def _wall_clock(instant: datetime, zone: tzinfo) -> datetime:
    """What a clock of the zone shows; differences ignore changes of the clock."""
    return instant.astimezone(zone).replace(tzinfo=None)
