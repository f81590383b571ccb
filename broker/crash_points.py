"""Named points at which a test can kill this process, as a power failure would.

There is one before and one after each commit and provider call of reserving, releasing and reconciling.
``tests/faults`` finds these calls in the source and fails if a point is missing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

VARIABLE = "BROKER_CRASH_POINT"
"""Environment variable with the name of the point. Without it, no point has an effect."""

watchers: list[Callable[[str], None]] = []
"""Functions that are called with the name of each passed point."""


def here(name: str) -> None:
    """Kills this process with SIGKILL if the environment variable names this point."""
    for watcher in watchers:
        watcher(name)
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
