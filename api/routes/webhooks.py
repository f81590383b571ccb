"""Webhooks: addresses to which a team's events are sent."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Body, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from api.http.dependencies import Cursor, Limit, SpendReader, answer_once, json_answer, listing, product_of
from api.http.strict_requests import FormRoute
from api.routes.parameters import WebhookId
from api.schemas.base.forms import From, PageForm, write
from api.schemas.base.times import Instant
from broker.domain.basics.webhook import EVERYTHING, Delivery, DeliveryState, Webhook
from broker.services.accounts.accounts import Answer

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=FormRoute)

Pattern = Annotated[str, Field(min_length=1, max_length=100)]


class NewWebhook(BaseModel):
    """``events`` has names with ``*``, such as ``plan.*``; by default all."""

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, Field(min_length=1, max_length=2000)]
    events: list[Pattern] = list(EVERYTHING)


class WebhookForm(BaseModel):
    """A webhook. Only the answer that creates it has its ``secret``."""

    webhook_id: str
    team: str
    url: str
    events: list[str]
    created_at: Instant
    disabled_at: Instant | None


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


@router.post("", status_code=201, responses={201: {"model": NewWebhookForm}})
async def create_webhook(
    request: Request, caller: SpendReader, wanted: Annotated[NewWebhook, Body()]
) -> Response:
    """Sends the team's events to ``url`` from now on; the secret that signs them is shown once."""

    async def act() -> Answer:
        return _made(await product_of(request).webhooks.create(caller, wanted.url, wanted.events))

    async def again(stored: tuple[str, ...]) -> Answer:
        webhook, _ = await product_of(request).webhooks.find(caller, stored[0])
        return _made(webhook)

    return await answer_once(request, caller, act, again)


def _made(webhook: Webhook) -> Answer:
    document = {**write(WebhookForm, webhook), "secret": webhook.secret}
    return json_answer(201, document, {"Location": f"/v1/webhooks/{webhook.webhook_id}"})


@router.get("", responses={200: {"model": PageForm[WebhookForm]}})
async def list_webhooks(
    request: Request, caller: SpendReader, limit: Limit = 50, cursor: Cursor = None
) -> JSONResponse:
    """The team's webhooks, newest first."""
    page = await product_of(request).webhooks.find_webhooks(caller, limit, cursor)
    return listing([write(WebhookForm, webhook) for webhook in page.items], page.next_cursor)


@router.get("/{webhook_id}", responses={200: {"model": ToldWebhookForm}})
async def show_webhook(request: Request, caller: SpendReader, webhook_id: WebhookId) -> JSONResponse:
    """One webhook, with its last deliveries and those that are still due."""
    webhook, deliveries = await product_of(request).webhooks.find(caller, webhook_id)
    return JSONResponse(
        {**write(WebhookForm, webhook), "deliveries": [write(DeliveryForm, one) for one in deliveries]}
    )


@router.delete("/{webhook_id}", status_code=204)
async def delete_webhook(request: Request, caller: SpendReader, webhook_id: WebhookId) -> Response:
    """Deletes a webhook; no more events are sent to it."""
    await product_of(request).webhooks.remove(caller, webhook_id)
    return Response(status_code=204)
