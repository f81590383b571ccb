"""Traffic by the clock: time zones with daylight saving, bursts, and their peak and mean rates."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.domain.planning.workload import Serving, Slo
from broker.domain.workloads.bursts import Burst, Weekday
from broker.domain.workloads.traffic import Traffic, TrafficShape
from tests.depth import examples
from tests.placement.market import MODEL

HOUR = timedelta(hours=1)
MONDAY = datetime(2026, 11, 30, tzinfo=UTC)
WORKDAYS = (Weekday.MON, Weekday.TUE, Weekday.WED, Weekday.THU, Weekday.FRI)


def rates(traffic: Traffic, start: datetime, hours: int, horizon: datetime | None = None) -> list[float]:
    return [traffic.requests_per_s_at(start + n * HOUR, horizon or start) for n in range(hours)]


def test_office_hours_are_those_of_the_zone() -> None:
    burst = Burst("08:00", 600, 0.5, WORKDAYS)
    told = Traffic(100, 100, bursts=(burst,), time_zone="Europe/Berlin")
    found = rates(told, MONDAY, 168)
    busy = [n for n, rate in enumerate(found) if rate]
    assert busy == [24 * day + hour for day in range(5) for hour in range(7, 17)]


def test_a_change_of_the_clock_moves_the_hours_in_utc() -> None:
    """Berlin leaves daylight saving on 25 October 2026: 08:00 is 06:00 UTC before it and 07:00 after it."""
    told = Traffic(100, 100, bursts=(Burst("08:00", 60, 2.0),), time_zone="Europe/Berlin")
    start = datetime(2026, 10, 24, tzinfo=UTC)
    assert [n for n, rate in enumerate(rates(told, start, 72)) if rate] == [6, 24 + 7, 48 + 7]
    peak = Traffic(100, 100, TrafficShape.DIURNAL, 10.0, 0.2, time_zone="Europe/Berlin", peak_hour=15)
    for day, hour in ((0, 13), (1, 14), (2, 14)):
        by_day = rates(peak, start + day * 24 * HOUR, 24, start)
        assert by_day.index(max(by_day)) == hour


def test_a_week_follows_the_clock_and_a_list_for_the_horizon_does_not() -> None:
    start = datetime(2026, 10, 23, 22, tzinfo=UTC)  # midnight in Berlin
    week = tuple(float(hour) for hour in range(168))
    told = Traffic(100, 100, TrafficShape.HOURLY, 167.0, hourly=week, time_zone="Europe/Berlin")
    for n, rate in enumerate(rates(told, start, 120)):
        local = (start + n * HOUR).astimezone(ZoneInfo("Europe/Berlin"))
        assert rate % 24 == local.hour
    assert rates(replace(told, time_zone=None), start, 168) == list(week)
    longer = tuple(float(hour) for hour in range(200))
    assert rates(replace(told, hourly=longer), start, 200) == list(longer)


@settings(deadline=None, max_examples=examples(60))
@given(
    st.integers(0, 23),
    st.integers(0, 59),
    st.floats(1, 1440),
    st.sets(st.sampled_from(list(Weekday)), min_size=1),
    st.sampled_from(["UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]),
)
def test_mean_and_peak_of_hours_are_those_of_minutes(
    hour: int, minute: int, minutes: float, days: set[Weekday], zone: str
) -> None:
    """Against a count of the seconds of a week in which the burst lasts."""
    whole = round(minutes)
    told = Traffic(
        1, 1, TrafficShape.FLAT, 1.0, time_zone=zone,
        bursts=(Burst(f"{hour:02}:{minute:02}", whole, 5.0, tuple(days)),),
    )  # fmt: skip
    tz = ZoneInfo(zone)
    for n in range(0, 168, 5):
        begin = MONDAY + n * HOUR
        lasting = 0
        for step in range(60):
            now = begin + timedelta(minutes=step)
            for back in (0, 1):
                local = now.astimezone(tz)
                since = (local - timedelta(days=back)).replace(hour=hour, minute=minute, second=0)
                if (
                    list(Weekday)[since.weekday()] in days
                    and 0 <= (local - since) / timedelta(minutes=1) < whole
                ):
                    lasting += 1
                    break
        assert told.mean_requests_per_s_at(begin, MONDAY) == pytest.approx(1 + 4 * lasting / 60)
        assert told.requests_per_s_at(begin, MONDAY) == (5.0 if lasting else 1.0)


def test_rates_scale_together_and_an_end_ends_them() -> None:
    told = Traffic(1, 1, TrafficShape.FLAT, 2.0, bursts=(Burst("09:00", 5, 20.0),))
    assert rates(told.times(0.5), MONDAY, 10) == [1.0] * 9 + [10.0]
    service = Serving(
        name="chat", team="t", model=MODEL, traffic=told, slo=Slo(1000, 50), ends=MONDAY + 4 * HOUR
    )
    found = [service.requests_per_s_at(MONDAY + n * HOUR, MONDAY) for n in range(6)]
    assert found == [2.0] * 4 + [0.0] * 2
    assert service.mean_requests_per_s_at(MONDAY + 5 * HOUR, MONDAY) == 0
