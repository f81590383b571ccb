"""What the reconciler would do, as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from broker.domain.reconciling.prospects import Deed, Prospect


class ProspectForm(BaseModel):
    """One lease or order. ``gone``: its provider does not show it any more."""

    deed: Deed
    provider: str
    reservation_id: str | None
    reference: str | None
    nodes: int
    detail: str


class UnreadForm(BaseModel):
    """A provider that cannot be listed: of it nothing is known."""

    provider: str
    error: str


class ProspectsForm(BaseModel):
    """All of them. ``paused``: nothing of it happens while the broker is paused."""

    paused: bool
    items: list[ProspectForm]
    unread: list[UnreadForm]


def prospects_to_document(
    found: Iterable[Prospect], unread: Mapping[str, str], *, paused: bool
) -> dict[str, Any]:
    """The JSON form as plain data."""
    return {
        "paused": paused,
        "items": [asdict(one) for one in found],
        "unread": [{"provider": name, "error": error} for name, error in sorted(unread.items())],
    }
