"""Spend exports that are written in the background and downloaded when they are done."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

LONGEST = timedelta(minutes=15)
"""A job that runs longer than this has failed: its process has ended."""
KEPT = timedelta(days=1)


class ExportState(StrEnum):
    """State of an export job."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ExportJob:
    """One exported file with one team's data. ``manifest`` describes the finished file as JSON text."""

    export_id: str
    team: str
    file_name: str
    media_type: str
    started_at: datetime
    state: ExportState = ExportState.RUNNING
    manifest: str | None = None
    problem: str | None = None

    def state_at(self, now: datetime) -> ExportState:
        """The state at ``now``; a job that has run for longer than LONGEST has failed."""
        if self.state is ExportState.RUNNING and now - self.started_at > LONGEST:
            return ExportState.FAILED
        return self.state
