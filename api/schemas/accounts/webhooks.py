"""Webhooks as JSON."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.base.times import Instant
from broker.domain.basics.webhook import EVERYTHING

Pattern = Annotated[str, Field(min_length=1, max_length=100)]


class NewWebhook(BaseModel):
    """``events``: names with ``*``, such as ``plan.*``; all of them unless told."""

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, Field(min_length=1, max_length=2000)]
    events: list[Pattern] = list(EVERYTHING)


class WebhookForm(BaseModel):
    """A webhook; its ``secret`` is in the answer that makes it, and nowhere else."""

    webhook_id: str
    team: str
    url: str
    events: list[str]
    created_at: Instant
    disabled_at: Instant | None


class DeliveryForm(BaseModel):
    """One event for one webhook; ``next_at`` only while it is tried again."""

    message_id: str
    state: str
    attempts: int
    next_at: Instant | None
    error: str


class NewWebhookForm(WebhookForm):
    """A webhook that was just made, with the secret that signs what it is sent."""

    secret: str


class ToldWebhookForm(WebhookForm):
    """A webhook with what was last sent to it."""

    deliveries: list[DeliveryForm]
