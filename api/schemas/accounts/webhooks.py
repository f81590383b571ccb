"""Webhooks as JSON."""

from __future__ import annotations

from datetime import datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from api.schemas.base.forms import From
from api.schemas.base.parts import Cents
from api.schemas.base.times import Instant
from broker.catalogue import load_events
from broker.domain.basics.webhook import EVERYTHING, FAMILIES, Delivery, DeliveryState, WebhookFormat

NEAR = 0.4


def _known(pattern: str) -> str:
    """``pattern`` where it names an event or matches one. ValueError with the nearest name."""
    if any(fnmatchcase(event, pattern) for event in load_events()):
        return pattern
    near = get_close_matches(pattern, sorted(load_events()), n=3, cutoff=NEAR)
    families = ", ".join(f"{family}.*" for family in FAMILIES)
    raise ValueError(f"the name of an event (nearest: {', '.join(near)})" if near else f"{families} or *")


EventPattern = Annotated[
    str,
    Field(
        min_length=1,
        max_length=100,
        json_schema_extra={
            "anyOf": [{"enum": sorted(load_events())}, {"pattern": r"\*"}],
            "description": "The name of an event, or a pattern with `*`",
        },
    ),
    AfterValidator(_known),
]


class NewWebhook(BaseModel):
    """``events``: names of events or patterns with ``*``, such as ``plan.*``; all of them unless told.

    ``format`` ``slack``, ``mattermost`` or ``teams``: messages are what the incoming webhooks of that chat
    take (of Teams, its Workflows), in place of this product's JSON.
    """

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, Field(min_length=1, max_length=2000)]
    events: list[EventPattern] = list(EVERYTHING)
    format: WebhookFormat = WebhookFormat.JSON


class WebhookForm(BaseModel):
    """A webhook. Only the answer that creates it has its ``secret``."""

    webhook_id: str
    team: str
    url: str
    events: list[str]
    created_at: Instant
    disabled_at: Instant | None
    format: WebhookFormat = WebhookFormat.JSON


def _tried_again_at(delivery: Delivery) -> datetime | None:
    return delivery.next_at if delivery.state is DeliveryState.PENDING else None


class DeliveryForm(BaseModel):
    """One event for one webhook; ``next_at`` is given only while another attempt is due."""

    message_id: str
    state: str
    attempts: int
    next_at: Annotated[Instant | None, From(_tried_again_at)]
    error: str


class NewWebhookForm(WebhookForm):
    """A new webhook, with the secret that signs its deliveries."""

    secret: str


class ToldWebhookForm(WebhookForm):
    """A webhook with its last deliveries."""

    deliveries: list[DeliveryForm]


class TestDeliveryForm(BaseModel):
    """The message of a test. `GET /v1/webhooks/{id}` tells of its delivery under the same ``message_id``."""

    __test__: ClassVar[bool] = False

    message_id: str
    event: str


class EventObjectForm(BaseModel):
    """The object that changed."""

    kind: str
    id: str


class EventMoneyForm(BaseModel):
    """The expected total cost of the object, before and after the change."""

    before_usd: Cents | None
    after_usd: Cents
    change_usd: Cents
    owed_usd: Cents


class EventDataForm(BaseModel):
    """What happened to which object. ``money`` is null for objects without a cost."""

    team: str
    object: EventObjectForm
    actor: str
    detail: str
    money: EventMoneyForm | None


class EventForm(BaseModel):
    """A message to a webhook: one event, in the form of Standard Webhooks."""

    type: str
    timestamp: Instant
    data: EventDataForm
