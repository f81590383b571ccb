"""Webhooks: addresses to which a team's events are sent."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Request
from fastapi.responses import JSONResponse, Response

from api.http.dependencies import Cursor, Limit, SpendReader, answer_once, json_answer, listing, product_of
from api.http.operation_details import may_fail
from api.http.strict_requests import FormRoute
from api.routes.parameters import WebhookId
from api.schemas.accounts.webhooks import (
    DeliveryForm,
    NewWebhook,
    NewWebhookForm,
    TestDeliveryForm,
    ToldWebhookForm,
    WebhookForm,
)
from api.schemas.base.forms import PageForm, write
from broker.domain.basics.errors import Conflict
from broker.domain.basics.webhook import TEST, Webhook
from broker.services.accounts.accounts import Answer

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=FormRoute)


@router.post("", status_code=201, responses={201: {"model": NewWebhookForm}})
async def create_webhook(
    request: Request, caller: SpendReader, wanted: Annotated[NewWebhook, Body()]
) -> Response:
    """Sends the team's events to ``url`` from now on; the secret that signs them is shown once."""

    async def act() -> Answer:
        return _made(
            await product_of(request).webhooks.create(caller, wanted.url, wanted.events, wanted.format)
        )

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
    """Lists the team's webhooks, newest first."""
    page = await product_of(request).webhooks.find_webhooks(caller, limit, cursor)
    return listing([write(WebhookForm, webhook) for webhook in page.items], page.next_cursor)


@router.get("/{webhook_id}", responses={200: {"model": ToldWebhookForm}})
async def show_webhook(request: Request, caller: SpendReader, webhook_id: WebhookId) -> JSONResponse:
    """Shows one webhook, with its last deliveries and those that are still due."""
    webhook, deliveries = await product_of(request).webhooks.find(caller, webhook_id)
    return JSONResponse(
        {**write(WebhookForm, webhook), "deliveries": [write(DeliveryForm, one) for one in deliveries]}
    )


@router.post(
    "/{webhook_id}/test",
    status_code=202,
    responses={202: {"model": TestDeliveryForm}},
    openapi_extra=may_fail(Conflict),
)
async def test_webhook(request: Request, caller: SpendReader, webhook_id: WebhookId) -> Response:
    """Sends the event `webhook.test` to one webhook, as any other event is sent, whatever its patterns."""

    async def act() -> Answer:
        message_id = await product_of(request).webhooks.test(caller, webhook_id)
        return json_answer(202, TestDeliveryForm(message_id=message_id, event=TEST).model_dump())

    return await answer_once(request, caller, act)


@router.delete("/{webhook_id}", status_code=204)
async def delete_webhook(request: Request, caller: SpendReader, webhook_id: WebhookId) -> Response:
    """Deletes a webhook; no more events are sent to it."""
    await product_of(request).webhooks.remove(caller, webhook_id)
    return Response(status_code=204)
