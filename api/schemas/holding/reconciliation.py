"""Preview of the reconciler's next pass as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel

from api.schemas.base.forms import Form
from broker.domain.reconciling.lease_effects import LeaseEffect

PROSPECT = Form(
    LeaseEffect,
    name="ProspectForm",
    about="One lease or order. ``gone``: its provider no longer lists it.",
)


class UnreadForm(BaseModel):
    """A provider whose leases cannot be listed, so that nothing is known about them."""

    provider: str
    error: str


class ProspectsForm(BaseModel):
    """The whole preview. ``paused``: the broker is paused and does none of it."""

    paused: bool
    items: list[Annotated[LeaseEffect, PROSPECT]]
    unread: list[UnreadForm]


def prospects_to_document(
    found: Iterable[LeaseEffect], unread: Mapping[str, str], *, paused: bool
) -> dict[str, Any]:
    """The JSON form of the preview as plain data."""
    return {
        "paused": paused,
        "items": [PROSPECT.write(one) for one in found],
        "unread": [{"provider": name, "error": error} for name, error in sorted(unread.items())],
    }
