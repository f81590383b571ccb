"""The audit trail as JSON."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from api.schemas.base.parts import PageForm
from api.schemas.base.times import Instant, format_time
from broker.domain.basics.account import AuditEntry
from broker.redaction import origin_of


class AuditForm(BaseModel):
    """One step: who did what to which object, when and why, with the provider's own id of the call."""

    at: Instant
    actor: str
    action: str
    object_kind: str
    object_id: str
    team: str
    detail: str
    provider_request_id: str | None


AuditPage = PageForm[AuditForm]


def entry_to_document(entry: AuditEntry) -> dict[str, Any]:
    """The JSON form of ``entry`` as plain data."""
    return {
        "at": format_time(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "object_kind": entry.object_kind,
        "object_id": entry.object_id,
        "team": entry.team,
        # Entries of before hold whole addresses of webhooks.
        "detail": origin_of(entry.detail) if entry.object_kind == "webhook" else entry.detail,
        "provider_request_id": entry.provider_request_id,
    }
