"""What of a probe is news, and what stands when a seller cannot be asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from broker.domain.market.probing import (
    Finding,
    FindingKind,
    ProbeReport,
    carried_over,
    is_due,
    new_findings,
)

AT = datetime(2026, 11, 26, 12, tzinfo=UTC)
NEW = Finding(FindingKind.VANISHED, "GET /types", "colour", "is read")
GONE = Finding(FindingKind.GONE, "GET /leases", "", "HTTP 410")
SILENT = Finding(FindingKind.UNANSWERED, "what is on sale", "", "no answer")


def report(*findings: Finding) -> ProbeReport:
    return ProbeReport("fake", AT, (), findings)


def test_a_probe_is_due_after_a_day() -> None:
    assert is_due(None, AT)
    assert not is_due(report(), AT + timedelta(hours=23, minutes=59))
    assert is_due(report(), AT + timedelta(days=1))


def test_only_what_was_not_found_before_is_news() -> None:
    assert new_findings(None, report(NEW)) == (NEW,)
    assert new_findings(report(NEW), report(NEW, GONE)) == (GONE,)
    assert new_findings(report(NEW), report()) == ()
    assert new_findings(report(), report(NEW)) == (NEW,)


def test_a_seller_that_cannot_be_asked_changes_nothing_that_is_known() -> None:
    silent = carried_over(report(NEW), report(SILENT))
    assert silent.findings == (SILENT, NEW)
    assert new_findings(report(NEW), silent) == ()
    assert new_findings(silent, report(NEW)) == ()
    assert carried_over(silent, report()).findings == ()
