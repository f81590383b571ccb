"""API keys as JSON. Only the answer that creates a key has its secret."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.base.forms import From, PageForm, write
from api.schemas.base.times import Instant, ToldInstant
from broker.domain.basics.account import ApiKey, Scope
from broker.domain.workloads.document_fields import TRIMMED

LONGEST_INVITATION_HOURS = 30 * 24
INVITATION = "/signin/invitation"
"""The page on which an invitation is accepted."""
Words = Annotated[str, Field(min_length=1, max_length=100, pattern=TRIMMED)]


class NewKey(BaseModel):
    """A key to create. Team ``*`` is the role over all teams, which reads and decides.

    ``scopes`` null: the usual ones of such a key. ``expires_at`` null: it is valid until it is revoked.
    ``person`` null: nobody in particular.
    ``invitation_hours``: a link is made, with which somebody can take the key once within that time.
    """

    model_config = ConfigDict(extra="forbid")

    name: Words
    team: Words
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(Scope))] | None = None
    expires_at: ToldInstant | None = None
    person: Annotated[str, Field(min_length=1, max_length=300, pattern=TRIMMED)] | None = None
    invitation_hours: Annotated[int, Field(ge=1, le=LONGEST_INVITATION_HOURS)] | None = None

    @property
    def invited_for(self) -> timedelta | None:
        """How long the invitation stands; None for a key without one."""
        return None if self.invitation_hours is None else timedelta(hours=self.invitation_hours)


class KeyForm(BaseModel):
    """A key without its secret. ``revoked_at`` null: it is not revoked; ``person`` null: nobody's own.

    ``invited_until``: it is an invitation that can be accepted until then; null: it is a key.
    """

    key_id: str
    name: str
    team: str
    scopes: Annotated[list[Scope], From(lambda key: sorted(key.scopes))]
    created_at: Instant
    expires_at: Instant | None
    revoked_at: Instant | None
    person: Annotated[str | None, From(lambda key: key.person or None)] = None
    invited_until: Instant | None = None


class CallerForm(BaseModel):
    """The key of the request."""

    key_id: Annotated[str, Field(description="Id of the key, which is not its secret")]
    name: Annotated[str, Field(description="Name that the key was given", examples=["ci"])]
    team: Annotated[
        str,
        Field(description="Team whose objects it sees; `admin` sees all", examples=["research"]),
    ]
    scopes: Annotated[
        list[Scope],
        From(lambda caller: sorted(caller.scopes)),
        Field(description="What it may do; `admin` includes all", examples=[["plans:read", "plans:write"]]),
    ]


KeyPage = PageForm[KeyForm]


class NewKeyForm(KeyForm):
    """A new key with its secret, or an invitation with its link. A repeated request is answered without
    either.
    """

    secret: str | None
    invitation_url: str | None = None


def invitation_path(token: str) -> str:
    """The path of the page that accepts the invitation with ``token``."""
    return f"{INVITATION}?token={token}"


def key_to_document(key: ApiKey) -> dict[str, Any]:
    """The JSON form of ``key`` as plain data."""
    return write(KeyForm, key)
