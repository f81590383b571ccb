"""Public SSH keys as JSON."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.accounts.keys import Words
from api.schemas.base.forms import PageForm, write
from api.schemas.base.times import Instant
from broker.domain.basics.machines import SshKey
from broker.domain.workloads.document_fields import TRIMMED


class NewSshKey(BaseModel):
    """A public key to store, of a ``team`` (null: that of the caller), or of a ``person`` in it.

    ``public_key`` is one line of a public key file. ``name`` null: the comment of that line. ``person``:
    ``me``, or the caller's own name or id; the key then goes with that caller's orders only.
    """

    model_config = ConfigDict(extra="forbid")

    public_key: Annotated[str, Field(min_length=1, max_length=16_384)]
    name: Words | None = None
    team: Words | None = None
    person: Annotated[str, Field(min_length=1, max_length=300, pattern=TRIMMED)] | None = None


class SshKeyForm(BaseModel):
    """A public key. ``person`` null: it goes with every order of its team."""

    key_id: str
    name: str
    team: str
    person: str | None
    public_key: Annotated[str, Field(description="The key as `kind base64`, without its comment")]
    fingerprint: Annotated[str, Field(description="As `ssh-keygen -l` prints it", examples=["SHA256:…"])]
    created_at: Instant
    created_by: str


SshKeyPage = PageForm[SshKeyForm]


def ssh_key_to_document(key: SshKey) -> dict[str, Any]:
    """The JSON form of ``key`` as plain data."""
    return write(SshKeyForm, key)
