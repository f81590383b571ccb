"""What became of the start of a unit's machines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class StartupState(StrEnum):
    """State of the start of a unit's machines.

    ``ordered``: it went with the order, and the seller does not tell its outcome. ``waiting``: the broker
    runs it over SSH once the machines answer. ``running``, ``done`` and ``failed`` are of such a run.
    ``impossible``: nobody but the buyer can run it.
    """

    ORDERED = "ordered"
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class StartupRun:
    """The start of a unit's machines. ``at`` is when it came into ``state``, or was last tried in vain.

    ``exit_code`` is that of the first machine whose script failed, else 0 once all are done. ``error`` has
    the last lines of its output, or why a machine could not be reached. ``tries``: connections that failed.
    """

    state: StartupState
    at: datetime
    exit_code: int | None = None
    error: str = ""
    tries: int = 0

    @property
    def is_the_brokers(self) -> bool:
        """Whether the broker itself still has to run it, or to learn how it ended."""
        return self.state in (StartupState.WAITING, StartupState.RUNNING)

    @property
    def is_over(self) -> bool:
        """Whether a run of the broker ended."""
        return self.state in (StartupState.DONE, StartupState.FAILED)
