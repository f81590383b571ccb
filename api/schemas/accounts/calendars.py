"""Calendar feeds as JSON."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.base.times import Instant
from api.schemas.base.validation import PRINTABLE


class NewCalendar(BaseModel):
    """``team``: an administrator says whose; a team's key makes its own team's alone."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=100, pattern=PRINTABLE)] = "calendar"
    team: Annotated[str, Field(min_length=1, max_length=100, pattern=PRINTABLE)] | None = None


class CalendarForm(BaseModel):
    """A feed that a calendar program reads. ``token`` and the ``url`` with it are shown once: whoever has
    them sees the windows of the team, and nothing else. ``DELETE /v1/calendars/{key_id}`` ends it."""

    key_id: str
    team: str
    name: str
    created_at: Instant
    token: str | None
    url: str | None
