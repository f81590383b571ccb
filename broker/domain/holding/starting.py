"""When machines are asked about their start, and what follows from their answers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from broker.domain.holding.back_off import Waits
from broker.domain.holding.startup_run import StartupRun, StartupState

MOST_TRIES = 12
"""Connections that may fail in a row; with the waits between them some 40 minutes."""
TRIES = Waits(timedelta(seconds=15), timedelta(minutes=5))
LOOK_SHARE = 0.1
"""A machine is asked again after this share of the time that its script has run."""
LONGEST_LOOK = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class StartReport:
    """What one machine says of its script.

    ``has_ended`` without ``exit_code``: its process is gone and left none. ``output``: its last lines.
    """

    has_ended: bool
    exit_code: int | None = None
    output: str = ""


@dataclass(frozen=True, slots=True)
class Unreached:
    """Why a machine could not be asked. ``is_final``: another try would change nothing."""

    why: str
    is_final: bool = False


def is_due(run: StartupRun, looked_at: datetime | None, now: datetime) -> bool:
    """Whether the machines are asked at ``now``; they were asked at ``looked_at`` (None: not by this
    process)."""
    if run.tries:
        return now >= run.at + TRIES.after(run.tries)
    if run.state is StartupState.WAITING or looked_at is None:
        return True
    return now >= looked_at + min(LONGEST_LOOK, (looked_at - run.at) * LOOK_SHARE)


def after_reports(run: StartupRun, reports: Sequence[StartReport | Unreached], now: datetime) -> StartupRun:
    """``run`` after its machines were asked, in their order."""
    unreached = [one for one in reports if isinstance(one, Unreached)]
    final = next((one for one in unreached if one.is_final), None)
    if final is not None:
        return StartupRun(StartupState.FAILED, now, error=final.why, tries=run.tries)
    if unreached:
        tries, why = run.tries + 1, unreached[0].why
        if tries < MOST_TRIES:
            return replace(run, at=now, error=why, tries=tries)
        return StartupRun(StartupState.FAILED, now, error=f"{why}; tried {tries} times", tries=tries)
    told = [one for one in reports if isinstance(one, StartReport)]
    if not all(one.has_ended for one in told):
        is_new = run.state is not StartupState.RUNNING or run.tries
        return StartupRun(StartupState.RUNNING, now) if is_new else run
    for node, one in enumerate(told):
        if one.exit_code != 0:
            said = one.output
            if one.exit_code is None:
                said = "it left no exit code: it was killed, or the machine was restarted"
            where = f"node {node}: " if len(told) > 1 else ""
            return StartupRun(StartupState.FAILED, now, one.exit_code, f"{where}{said}".strip())
    return StartupRun(StartupState.DONE, now, 0)
