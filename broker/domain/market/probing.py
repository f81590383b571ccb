"""Probes of providers' APIs: whether their answers still have the form that the adapters read. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

EVERY = timedelta(days=1)
"""How often the scheduler probes each provider."""


class FindingKind(StrEnum):
    """How an answer differs from what its adapter expects.

    ``unanswered``: there was no answer, so nothing is known about its form. ``order refused``: the provider
    refuses an order in the form that we send. ``bought``: the provider carried out an order that was sent as
    a dry run.
    """

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
    """One difference. ``call`` names the answer, ``field`` the field in its rows ("": the whole answer)."""

    kind: FindingKind
    call: str
    field: str
    says: str

    def __str__(self) -> str:
        where = f"{self.call}, {self.field}" if self.field else self.call
        return f"{self.kind} ({where}): {self.says}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Identifies the finding in later probes. A changed text of the provider makes a new finding."""
        return self.kind, self.call, self.field, self.says


@dataclass(frozen=True, slots=True)
class ComparedCall:
    """One answer that was compared, and its number of rows."""

    call: str
    rows: int


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The result of one probe of a provider; without findings nothing differs."""

    provider: str
    at: datetime
    compared: tuple[ComparedCall, ...] = ()
    findings: tuple[Finding, ...] = ()


def is_due(last: ProbeReport | None, now: datetime) -> bool:
    """Whether a provider is to be probed again."""
    return last is None or now - last.at >= EVERY


def new_findings(before: ProbeReport | None, after: ProbeReport) -> tuple[Finding, ...]:
    """Findings of ``after`` that ``before`` does not have. A missing answer does not count as one."""
    known = {finding.key for finding in before.findings} if before is not None else set()
    return tuple(
        finding
        for finding in after.findings
        if finding.kind is not FindingKind.UNANSWERED and finding.key not in known
    )


def carried_over(before: ProbeReport | None, after: ProbeReport) -> ProbeReport:
    """``after`` as it is stored: if answers are missing, the findings of ``before`` are kept."""
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
