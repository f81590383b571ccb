"""Progress of a solve across processes: the worker sends it, the server publishes it as an event."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from broker.ports.planning import Progress, ProgressSink

Publish = Callable[[str, dict[str, object]], None]
LEAST_INTERVAL_S = 0.2


class Sender:
    """Sends the progress of labelled runs from the worker, not more often than a person can follow.

    ``tell`` gets a run's label and progress; it may raise OSError if nobody listens.
    """

    def __init__(self, tell: Callable[[str, Progress], None]) -> None:
        self._tell = tell

    def sink(self, label: str) -> ProgressSink:
        """A progress sink for one run. Planning goes on if the server is gone."""
        told: dict[str, float] = {}

        def send(progress: Progress) -> None:
            now = time.monotonic()
            if now - told.get(progress.stage, -LEAST_INTERVAL_S) < LEAST_INTERVAL_S:
                return
            told[progress.stage] = now
            try:
                self._tell(label, progress)
            except OSError:
                told[progress.stage] = float("inf")

        return send


def progress_event(progress: Progress) -> dict[str, object]:
    """Progress as an event: money as text in USD with cents, unknown values null."""
    return {
        "state": "running",
        "stage": progress.stage,
        "seconds": round(progress.seconds, 2),
        "incumbent_usd": _usd(progress.incumbent_usd),
        "bound_usd": _usd(progress.bound_usd),
        "gap": progress.gap,
    }


def progress_of(event: Mapping[str, object]) -> Progress | None:
    """The progress in an event of a running solve; None for other events."""
    if "stage" not in event:
        return None
    incumbent, bound, gap = (event.get(name) for name in ("incumbent_usd", "bound_usd", "gap"))
    return Progress(
        seconds=float(str(event["seconds"])),
        incumbent_usd=None if incumbent is None else float(str(incumbent)),
        bound_usd=None if bound is None else float(str(bound)),
        gap=None if gap is None else float(str(gap)),
        stage=str(event["stage"]),
    )


def _usd(amount: float | None) -> str | None:
    return None if amount is None else f"{amount:.2f}"
