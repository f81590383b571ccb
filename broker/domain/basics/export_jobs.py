"""Files of spend that take a while to write: asked for, written in the background, fetched when done."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

LONGEST = timedelta(minutes=15)
"""After this much nobody writes it any more: the process that did has ended."""
KEPT = timedelta(days=1)


class ExportState(StrEnum):
    """Whether a file is there."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ExportJob:
    """One file, of one team's view. ``manifest``: what it is, as JSON text, once it is there."""

    export_id: str
    team: str
    file_name: str
    media_type: str
    started_at: datetime
    state: ExportState = ExportState.RUNNING
    manifest: str | None = None
    problem: str | None = None

    def state_at(self, now: datetime) -> ExportState:
        """Its state; a file that is written for longer than LONGEST is not written any more."""
        if self.state is ExportState.RUNNING and now - self.started_at > LONGEST:
            return ExportState.FAILED
        return self.state
