"""Progress on stderr: one moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from api.cli.output import stderr
from api.figures import percent, whole_usd
from api.plan_words import doing
from broker.ports.planning import Progress

PLAIN_INTERVAL_S = 5.0


def describe(progress: Progress) -> str:
    """``searching  12.3 s  best $123,456  bound $120,000  gap 2.8 %``, without what is not known yet."""
    parts = [doing(progress.stage), f"{progress.seconds:.1f} s"]
    if progress.incumbent_usd is not None:
        parts.append(f"best {whole_usd(progress.incumbent_usd)}")
    if progress.bound_usd is not None:
        parts.append(f"bound {whole_usd(progress.bound_usd)}")
    if progress.gap is not None:
        parts.append(f"gap {percent(progress.gap)}")
    return "  ".join(parts)


class ProgressLine:
    """A ``ProgressSink`` and a context manager. Plain lines are printed at a new stage, or every few
    seconds."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or stderr()
        self._moving: Status | None = None
        self._stage = ""
        self._told_at = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._moving = self._console.status("starting")
            self._moving.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._moving is not None:
            self._moving.stop()

    def say(self, text: str) -> None:
        """Prints a line without figures, such as what begins now."""
        if self._moving is not None:
            self._moving.update(text)
        else:
            self._console.print(text, soft_wrap=True)

    def __call__(self, progress: Progress) -> None:
        """Shows the progress of the solver."""
        if self._moving is not None:
            self._moving.update(describe(progress))
        elif doing(progress.stage) != self._stage or progress.seconds - self._told_at >= PLAIN_INTERVAL_S:
            self._stage, self._told_at = doing(progress.stage), progress.seconds
            self._console.print(describe(progress), soft_wrap=True)
