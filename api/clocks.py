"""The clock of an installation that has no sandbox market."""

from __future__ import annotations

from datetime import UTC, datetime


class SystemClock:
    """This machine's time in UTC."""

    def now(self) -> datetime:
        """Now, aware."""
        return datetime.now(UTC)
