"""Half-open windows of time in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

INSTANT = timedelta(microseconds=1)
"""The shortest time between two stored instants."""


def require_utc(instant: datetime, name: str) -> datetime:
    """``instant`` in UTC. Raises ValueError with ``name`` for a time without a time zone."""
    if instant.tzinfo is UTC:
        return instant
    if instant.tzinfo is None:
        raise ValueError(f"{name} must have a time zone, but {instant.isoformat()} has none")
    return instant.astimezone(UTC)


def instant_words(at: datetime) -> str:
    """``2026-11-24T06:00:00Z``: an instant as errors name it, and as it can be given, in whole seconds."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """``[start, end)`` in UTC. Windows that touch do not overlap."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", require_utc(self.start, "start"))
        object.__setattr__(self, "end", require_utc(self.end, "end"))
        if self.end <= self.start:
            raise ValueError(f"a window must end after it starts; this one is {self.start} to {self.end}")

    @property
    def duration(self) -> timedelta:
        """Length of the window."""
        return self.end - self.start

    @property
    def hours(self) -> float:
        """Length in hours."""
        return self.duration / timedelta(hours=1)

    def contains(self, instant: datetime) -> bool:
        """Whether ``instant`` is in ``[start, end)``."""
        return self.start <= instant < self.end

    def overlaps(self, other: Window) -> bool:
        """Whether both windows share an instant."""
        return self.start < other.end and other.start < self.end

    def intersection(self, other: Window) -> Window | None:
        """The window that both share; None if they do not overlap."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return Window(start, end) if start < end else None


@dataclass(frozen=True, slots=True)
class Wish:
    """The time that was requested. ``end`` None means until released."""

    start: datetime
    end: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", require_utc(self.start, "start"))
        if self.end is not None:
            object.__setattr__(self, "end", require_utc(self.end, "end"))

    @property
    def window(self) -> Window | None:
        """The requested time as a window; None without an end, or if the end is not after the start."""
        return Window(self.start, self.end) if self.end is not None and self.start < self.end else None


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """``nodes`` held over ``[start, end)``: one step of a step function."""

    start: datetime
    end: datetime
    nodes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", require_utc(self.start, "start"))
        object.__setattr__(self, "end", require_utc(self.end, "end"))
        if self.end <= self.start:
            raise ValueError(f"a segment must end after it starts; this one is {self.start} to {self.end}")
        if self.nodes <= 0:
            raise ValueError(f"a segment must hold at least one node; this one holds {self.nodes}")

    @property
    def window(self) -> Window:
        """The time of the segment as a window."""
        return Window(self.start, self.end)

    @property
    def hours(self) -> float:
        """Length in hours."""
        return (self.end - self.start) / timedelta(hours=1)
