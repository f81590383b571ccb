"""Named places at which a test has this process die, as by a power cut.

There is one before and one after every commit and every provider call of reserving, releasing and
reconciling; ``tests/faults`` finds those calls in the source and fails where a point is missing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

VARIABLE = "BROKER_CRASH_POINT"
"""Environment variable that names the point; nothing happens anywhere while it is not set."""

watchers: list[Callable[[str], None]] = []
"""Told of every point that is passed."""


def here(name: str) -> None:
    """Ends this process with SIGKILL if ``name`` is the point that the environment names."""
    for watcher in watchers:
        watcher(name)
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
