"""The audit trail as JSON."""

from __future__ import annotations

from typing import Annotated

from api.schemas.base.forms import Form, From
from broker.domain.basics.account import AuditEntry
from broker.redaction import origin_of


def _detail(entry: AuditEntry) -> str:
    """The detail of an entry. Old entries hold whole webhook addresses, so these are cut to the origin."""
    return origin_of(entry.detail) if entry.object_kind == "webhook" else entry.detail


AUDIT = Form(
    AuditEntry,
    name="AuditForm",
    about="One entry: who did what to which object, when and why, with the provider's own id of the call.",
    types={
        "detail": Annotated[str, From(_detail)],
    },
    optional={"actor_name": ""},
)
AuditForm = Annotated[AuditEntry, AUDIT]
