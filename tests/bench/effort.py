"""What a piece of work costs this process."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Effort:
    """What a piece of work cost this process."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    before_mb: float = 0.0
    peak_mb: float = 0.0
    stall_s: float = 0.0
    """The longest time that the event loop answered nobody."""


@contextlib.asynccontextmanager
async def measured(effort: Effort) -> AsyncIterator[None]:
    """Fills ``effort`` with what the work within cost."""

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            effort.stall_s = max(effort.stall_s, time.perf_counter() - began - 0.005)

    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")  # Linux: the peak starts anew
    effort.before_mb = _memory_mb("VmRSS")
    watching = asyncio.ensure_future(watch())
    used, began = _cpu_s(), time.perf_counter()
    try:
        yield
    finally:
        effort.wall_s, effort.cpu_s = time.perf_counter() - began, _cpu_s() - used
        effort.peak_mb = _memory_mb("VmHWM")
        watching.cancel()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _memory_mb(name: str) -> float:
    """A line of the process's status; where there is none, the peak since the process began."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def effort_table(rows: Sequence[tuple[str, int, Effort]]) -> Table:
    """What each piece of work cost the polling process."""
    table = Table(
        "work", "offers", "wall s", "CPU s", "memory before MB", "peak MB", "longest stall of the loop s"
    )
    for title, offers, effort in rows:
        table.add_row(
            title,
            f"{offers:,}",
            f"{effort.wall_s:.1f}",
            f"{effort.cpu_s:.1f}",
            f"{effort.before_mb:.0f}",
            f"{effort.peak_mb:.0f}",
            f"{effort.stall_s:.2f}",
        )
    return table
