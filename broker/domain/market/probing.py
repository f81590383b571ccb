"""Probes of sellers: whether their answers still have the form that their adapters read. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

EVERY = timedelta(days=1)
"""How often each seller is probed by the timetable."""


class FindingKind(StrEnum):
    """How an answer differs from what its adapter expects.

    ``unanswered``: the seller could not be asked, so that nothing is known of its form. ``order refused``: it
    would not take an order as it is sent. ``bought``: it took an order that was sent as a dry run.
    """

    NEW_FIELD = "new field"
    VANISHED = "vanished"
    OTHER_TYPE = "other type"
    UNKNOWN_WORD = "unknown word"
    RETIRES = "retires"
    GONE = "gone"
    UNREADABLE = "unreadable"
    UNANSWERED = "unanswered"
    ORDER_REFUSED = "order refused"
    BOUGHT = "bought"


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. ``call``: which answer; ``field``: where in its rows, "" for the answer as a whole."""

    kind: FindingKind
    call: str
    field: str
    says: str

    def __str__(self) -> str:
        where = f"{self.call}, {self.field}" if self.field else self.call
        return f"{self.kind} ({where}): {self.says}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes it the same finding in a later probe; words of a seller may change, and count."""
        return self.kind, self.call, self.field, self.says


@dataclass(frozen=True, slots=True)
class ComparedCall:
    """One kind of answer that was compared: how many rows it had."""

    call: str
    rows: int


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What one probe of a provider found; without findings nothing differs."""

    provider: str
    at: datetime
    compared: tuple[ComparedCall, ...] = ()
    findings: tuple[Finding, ...] = ()


def is_due(last: ProbeReport | None, now: datetime) -> bool:
    """Whether a seller is to be probed again."""
    return last is None or now - last.at >= EVERY


def new_findings(before: ProbeReport | None, after: ProbeReport) -> tuple[Finding, ...]:
    """What ``after`` found and ``before`` did not; that a seller was not to be reached is no news."""
    known = {finding.key for finding in before.findings} if before is not None else set()
    return tuple(
        finding
        for finding in after.findings
        if finding.kind is not FindingKind.UNANSWERED and finding.key not in known
    )


def carried_over(before: ProbeReport | None, after: ProbeReport) -> ProbeReport:
    """``after`` as it is stored: where a seller could not be asked, what was known of its form stands."""
    unanswered = any(finding.kind is FindingKind.UNANSWERED for finding in after.findings)
    if before is None or not unanswered:
        return after
    known = {finding.key for finding in after.findings}
    kept = tuple(
        finding
        for finding in before.findings
        if finding.kind is not FindingKind.UNANSWERED and finding.key not in known
    )
    return ProbeReport(after.provider, after.at, after.compared, (*after.findings, *kept))
