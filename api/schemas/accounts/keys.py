"""API keys as JSON. Only the answer that creates a key has its secret."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.base.forms import From, PageForm, write
from api.schemas.base.times import Instant, ToldInstant
from broker.domain.basics.account import ApiKey, Scope
from broker.domain.planning.document_fields import TRIMMED

Words = Annotated[str, Field(min_length=1, max_length=100, pattern=TRIMMED)]


class NewKey(BaseModel):
    """A key to create. Team ``*`` is the role over all teams, which reads and decides.

    ``scopes`` null: the usual ones of such a key. ``expires_at`` null: it is valid until it is revoked.
    ``person`` null: nobody in particular.
    """

    model_config = ConfigDict(extra="forbid")

    name: Words
    team: Words
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(Scope))] | None = None
    expires_at: ToldInstant | None = None
    person: Annotated[str, Field(min_length=1, max_length=300, pattern=TRIMMED)] | None = None


class KeyForm(BaseModel):
    """A key without its secret. ``revoked_at`` null: it is not revoked; ``person`` null: nobody's own."""

    key_id: str
    name: str
    team: str
    scopes: Annotated[list[Scope], From(lambda key: sorted(key.scopes))]
    created_at: Instant
    expires_at: Instant | None
    revoked_at: Instant | None
    person: Annotated[str | None, From(lambda key: key.person or None)] = None


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
    """A new key with its secret. A repeated request is answered without it (``secret`` null)."""

    secret: str | None


def key_to_document(key: ApiKey) -> dict[str, Any]:
    """The JSON form of ``key`` as plain data."""
    return write(KeyForm, key)
