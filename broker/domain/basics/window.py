"""Half-open windows of time in UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


def require_utc(instant: datetime, name: str) -> datetime:
    """``instant`` in UTC; naive times are refused by name."""
    if instant.tzinfo is UTC:
        return instant
    if instant.tzinfo is None:
        raise ValueError(f"{name} must carry a time zone, found naive {instant.isoformat()}")
    return instant.astimezone(UTC)


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """``[start, end)`` in UTC. Windows that touch do not overlap."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", require_utc(self.start, "start"))
        object.__setattr__(self, "end", require_utc(self.end, "end"))
        if self.end <= self.start:
            raise ValueError(f"a window must end after it starts, found {self.start} to {self.end}")

    @property
    def duration(self) -> timedelta:
        """Length of the window."""
        return self.end - self.start

    @property
    def hours(self) -> float:
        """Length in hours."""
        return self.duration / timedelta(hours=1)

    def contains(self, instant: datetime) -> bool:
        """Whether ``instant`` lies in ``[start, end)``."""
        return self.start <= instant < self.end

    def overlaps(self, other: Window) -> bool:
        """Whether both share an instant."""
        return self.start < other.end and other.start < self.end

    def intersection(self, other: Window) -> Window | None:
        """The shared part, or None."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return Window(start, end) if start < end else None


@dataclass(frozen=True, slots=True)
class Wish:
    """Time as somebody asked for it; ``end`` None: until released."""

    start: datetime
    end: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", require_utc(self.start, "start"))
        if self.end is not None:
            object.__setattr__(self, "end", require_utc(self.end, "end"))

    @property
    def window(self) -> Window | None:
        """The wish as a window; None without an end."""
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
            raise ValueError(f"a segment must end after it starts, found {self.start} to {self.end}")
        if self.nodes <= 0:
            raise ValueError(f"a segment holds at least one node, found {self.nodes}")

    @property
    def window(self) -> Window:
        """The time that the segment covers."""
        return Window(self.start, self.end)

    @property
    def hours(self) -> float:
        """Length in hours."""
        return (self.end - self.start) / timedelta(hours=1)
