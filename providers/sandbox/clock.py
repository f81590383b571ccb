"""The sandbox's time: wall time plus an offset that ``POST /_sandbox/clock`` moves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from providers.sandbox.store import Store

_OFFSET = "clock_offset_us"


def wall_now() -> datetime:
    """The machine's own time, aware, in UTC."""
    return datetime.now(UTC)


class SandboxClock:
    """Wall time plus a stored offset, which only grows.

    ``start`` is the first time that a new clock shows; a stored clock continues where it was.
    """

    def __init__(
        self, store: Store, start: datetime | None = None, wall: Callable[[], datetime] = wall_now
    ) -> None:
        self._store = store
        self._wall = wall
        kept = store.setting(_OFFSET)
        if kept is None:
            offset = start - wall() if start is not None else timedelta(0)
            store.keep_setting(_OFFSET, str(offset // timedelta(microseconds=1)))
        else:
            offset = timedelta(microseconds=int(kept))
        self._offset = offset

    def now(self) -> datetime:
        """Now in the sandbox, aware, in UTC."""
        return self._wall() + self._offset

    @property
    def offset_s(self) -> float:
        """How far the clock is ahead of the wall, in seconds."""
        return self._offset.total_seconds()

    def advance(self, seconds: float) -> datetime:
        """Moves the clock ``seconds`` (≥ 0) forward, for good, and returns the new time."""
        self._offset += timedelta(seconds=seconds)
        self._store.keep_setting(_OFFSET, str(self._offset // timedelta(microseconds=1)))
        return self.now()
