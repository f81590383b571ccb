"""Webhooks: where a team wants to be told what changed."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from fastapi.responses import JSONResponse, Response

from api.http.dependencies import Cursor, Limit, SpendReader, answer_once, json_answer, listing, product_of
from api.http.form_route import FormRoute
from api.routes.parameters import WebhookId
from api.schemas.accounts.webhooks import (
    DeliveryForm,
    NewWebhook,
    NewWebhookForm,
    TestDeliveryForm,
    ToldWebhookForm,
    WebhookForm,
)
from api.schemas.base.forms import PageForm
from broker.domain.basics.webhook import TEST, Delivery, Webhook
from broker.services.accounts.accounts import Answer

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=FormRoute)


@router.post("", status_code=201, responses={201: {"model": NewWebhookForm}})
async def create_webhook(
    request: Request, caller: SpendReader, wanted: Annotated[NewWebhook, Body()]
) -> Response:
    """Tells ``url`` of the team's events from now on; the secret that signs them is shown once."""

    async def act() -> Answer:
        return _made(
            await product_of(request).webhooks.create(caller, wanted.url, wanted.events, wanted.format)
        )

    async def again(stored: tuple[str, ...]) -> Answer:
        webhook, _ = await product_of(request).webhooks.find(caller, stored[0])
        return _made(webhook)

    return await answer_once(request, caller, act, again)


def _made(webhook: Webhook) -> Answer:
    document = {**_form(webhook), "secret": webhook.secret}
    return json_answer(201, document, {"Location": f"/v1/webhooks/{webhook.webhook_id}"})


@router.get("", responses={200: {"model": PageForm[WebhookForm]}})
async def list_webhooks(
    request: Request, caller: SpendReader, limit: Limit = 50, cursor: Cursor = None
) -> JSONResponse:
    """The team's webhooks, newest first."""
    page = await product_of(request).webhooks.find_webhooks(caller, limit, cursor)
    return listing([_form(webhook) for webhook in page.items], page.next_cursor)


@router.get("/{webhook_id}", responses={200: {"model": ToldWebhookForm}})
async def show_webhook(request: Request, caller: SpendReader, webhook_id: WebhookId) -> JSONResponse:
    """One, with what was last sent to it and is still to be."""
    webhook, deliveries = await product_of(request).webhooks.find(caller, webhook_id)
    return JSONResponse({**_form(webhook), "deliveries": [_delivery(one) for one in deliveries]})


@router.post("/{webhook_id}/test", status_code=202, responses={202: {"model": TestDeliveryForm}})
async def test_webhook(request: Request, caller: SpendReader, webhook_id: WebhookId) -> Response:
    """Sends the event `webhook.test` to one webhook, as any other event is sent, whatever its patterns."""

    async def act() -> Answer:
        message_id = await product_of(request).webhooks.test(caller, webhook_id)
        return json_answer(202, TestDeliveryForm(message_id=message_id, event=TEST).model_dump())

    return await answer_once(request, caller, act)


@router.delete("/{webhook_id}", status_code=204)
async def delete_webhook(request: Request, caller: SpendReader, webhook_id: WebhookId) -> Response:
    """Nothing more is sent to it."""
    await product_of(request).webhooks.remove(caller, webhook_id)
    return Response(status_code=204)


def _form(webhook: Webhook) -> dict[str, Any]:
    return WebhookForm(
        webhook_id=webhook.webhook_id,
        team=webhook.team,
        url=webhook.url,
        events=list(webhook.events),
        created_at=webhook.created_at,
        disabled_at=webhook.disabled_at,
        format=webhook.format,
    ).model_dump(mode="json")


def _delivery(delivery: Delivery) -> dict[str, Any]:
    waiting: datetime | None = delivery.next_at if delivery.state == "pending" else None
    return DeliveryForm(
        message_id=delivery.message_id,
        state=str(delivery.state),
        attempts=delivery.attempts,
        next_at=waiting,
        error=delivery.error,
    ).model_dump(mode="json")
