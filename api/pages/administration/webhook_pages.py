"""Webhooks: addresses to which a team's events are sent, and what became of the last messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from api.http.dependencies import product_of
from api.pages.administration.tabs import act_or_correct, show_tab
from api.pages.parts.forms import SentForm, act_once, read_form
from api.pages.parts.rendering import page_router
from api.pages.parts.session import SpendVisitor
from api.schemas.accounts.webhooks import NewWebhook
from api.schemas.base.document import Document
from api.schemas.base.validation import validate
from broker.domain.basics.account import Caller
from broker.domain.basics.webhook import WebhookFormat
from broker.redaction import origin_of

SHOWN = 100
DONE: Mapping[str, str] = {
    "made": "The webhook was made. Its secret was shown once.",
    "removed": "The webhook is removed. Nothing more is sent to it.",
    "tested": "A test is sent within seconds. This page shows what became of it.",
}

router = page_router()


@router.get("/admin/webhooks")
async def webhooks_page(
    request: Request, caller: SpendVisitor, cursor: str | None = None, done: str = ""
) -> Response:
    """Webhooks of the visitor's team, or of all for an administrator, newest first."""
    return await _page(request, caller, cursor=cursor, notice=DONE.get(done, ""))


@router.post("/admin/webhooks")
async def make_webhook(request: Request, caller: SpendVisitor) -> Response:
    """Makes a webhook, and shows its secret on the page that answers, once."""
    form = await read_form(request)
    secrets: list[str] = []

    async def act(named: Caller) -> str:
        wanted = _wanted(form)
        made = await product_of(request).webhooks.create(named, wanted.url, wanted.events, wanted.format)
        secrets.append(made.secret)
        return "/admin/webhooks?done=made"

    answer = await act_or_correct(request, caller, form, act, "/admin/webhooks?done=made", _page)
    return answer if not secrets else await _page(request, caller, secret=secrets[0])


def _wanted(form: SentForm) -> NewWebhook:
    given = {name: form.text(name) for name in ("url", "format") if form.text(name)}
    events = re.findall(r"[^\s,]+", form.text("events"))
    return validate(NewWebhook, Document("form", {**given, **({"events": events} if events else {})}))


@router.get("/admin/webhooks/{webhook_id}")
async def webhook_page(request: Request, caller: SpendVisitor, webhook_id: str, done: str = "") -> Response:
    """One webhook with its last messages."""
    webhook, deliveries = await product_of(request).webhooks.find(caller, webhook_id)
    return show_tab(
        request,
        caller,
        "webhook.html",
        "Webhook",
        webhook=webhook,
        origin=origin_of(webhook.url),
        deliveries=deliveries,
        notice=DONE.get(done, ""),
    )


@router.post("/admin/webhooks/{webhook_id}/test")
async def test_webhook(request: Request, caller: SpendVisitor, webhook_id: str) -> Response:
    """Sends a test."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        await product_of(request).webhooks.test(named, webhook_id)
        return f"/admin/webhooks/{webhook_id}?done=tested"

    return await act_once(request, caller, form, act)


@router.post("/admin/webhooks/{webhook_id}/remove")
async def remove_webhook(request: Request, caller: SpendVisitor, webhook_id: str) -> Response:
    """Removes a webhook."""
    form = await read_form(request)

    async def act(named: Caller) -> str:
        await product_of(request).webhooks.remove(named, webhook_id)
        return "/admin/webhooks?done=removed"

    return await act_once(request, caller, form, act)


async def _page(request: Request, caller: Caller, cursor: str | None = None, **told: Any) -> Response:
    page = await product_of(request).webhooks.find_webhooks(caller, SHOWN, cursor)
    return show_tab(
        request,
        caller,
        "webhooks.html",
        "Webhooks",
        page=page,
        webhooks=[(webhook, origin_of(webhook.url)) for webhook in page.items],
        formats=list(WebhookFormat),
        **told,
    )
