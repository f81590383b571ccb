"""What the reconciler would do, as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel

from api.schemas.base.forms import Form
from broker.domain.reconciling.lease_effects import LeaseEffect

PROSPECT = Form(
    LeaseEffect,
    name="ProspectForm",
    about="One lease or order. ``gone``: its provider does not show it any more.",
)


class UnreadForm(BaseModel):
    """A provider that cannot be listed: of it nothing is known."""

    provider: str
    error: str


class ProspectsForm(BaseModel):
    """All of them. ``paused``: nothing of it happens while the broker is paused."""

    paused: bool
    items: list[Annotated[LeaseEffect, PROSPECT]]
    unread: list[UnreadForm]


def prospects_to_document(
    found: Iterable[LeaseEffect], unread: Mapping[str, str], *, paused: bool
) -> dict[str, Any]:
    """The JSON form as plain data."""
    return {
        "paused": paused,
        "items": [PROSPECT.write(one) for one in found],
        "unread": [{"provider": name, "error": error} for name, error in sorted(unread.items())],
    }
