"""Formats, names of events and tests of webhooks, held to Slack's own SDK and to what receivers get.

``adaptive_card_1_4.json`` is the schema that https://adaptivecards.io/schemas/1.4.0/adaptive-card.json has
(microsoft/AdaptiveCards at 644d933e, MIT license), without its descriptions.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft6Validator  # type: ignore[import-untyped]

from api.notices.webhook_sender import HttpWebhookSender
from broker.catalogue import load_events
from broker.domain.basics.errors import InputError
from broker.domain.basics.webhook import MoneyChange, OutboxEvent
from broker.services.accounts.chat_messages import (
    LONGEST_TEXT,
    mattermost_message,
    slack_message,
    teams_message,
)
from tests.api.house import Home
from tests.api.test_webhooks import Receiver, clock_of, deliveries, hook, receiver
from tests.fakes.clock import NOON
from tests.peers_env import run

__all__ = ["receiver"]

EVENT = OutboxEvent(7, NOON, "plan.approval_needed", "research", "plan", "plan-1", "key-1", "above $1,000")
MONEY = MoneyChange(Decimal("10"), Decimal("1234.5"), Decimal("0"))


@pytest.mark.xdist_group("peers")
def test_slack_s_own_sdk_takes_every_message(tmp_path: Path) -> None:
    hostile = replace(
        EVENT, detail="<!channel> & <https://evil|here>" * 400, team="t" * 5000, event="a." + "b" * 300
    )
    messages = [
        slack_message(EVENT, MONEY),
        slack_message(replace(EVENT, detail=""), None),
        slack_message(hostile, MONEY),
    ]
    kinds = run("slack", "accept_slack.py", json.dumps(messages), environ={"HOME": str(tmp_path)})
    assert kinds[0] == ["header", "section", "section", "context"]
    assert kinds[1] == ["header", "section", "context"]
    wrong = slack_message(EVENT, None)
    wrong["blocks"][0]["text"]["text"] = "x" * 151
    with pytest.raises(Exception, match="150"):
        run("slack", "accept_slack.py", json.dumps([wrong]), environ={"HOME": str(tmp_path)})


def test_a_text_of_a_seller_is_no_markup_in_slack() -> None:
    message = slack_message(replace(EVENT, detail="<!channel> & more"), None)
    assert message["blocks"][1]["text"]["text"] == "&lt;!channel&gt; &amp; more"
    assert "<" not in json.dumps(message)
    long = slack_message(replace(EVENT, detail="x" * 9000), None)
    assert len(long["blocks"][1]["text"]["text"]) == LONGEST_TEXT


HOSTILE = replace(
    EVENT, detail="`@channel` <!here> [pay](https://evil.example) **now** " * 400, team="t" * 5000, actor="`x"
)


@pytest.mark.parametrize("event", [EVENT, replace(EVENT, detail=""), HOSTILE])
@pytest.mark.parametrize("money", [MONEY, None])
def test_a_card_for_teams_has_the_published_form(event: OutboxEvent, money: MoneyChange | None) -> None:
    schema = json.loads(Path(__file__).with_name("adaptive_card_1_4.json").read_text())
    cards = Draft6Validator(schema)
    message = teams_message(event, money)
    assert message["type"] == "message"
    (attached,) = message["attachments"]
    assert attached["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert [error.message for error in cards.iter_errors(attached["content"])] == []
    assert {block["type"] for block in attached["content"]["body"]} == {"RichTextBlock"}, (
        "no Markdown is read"
    )
    assert len(json.dumps(message)) < 28 * 1024
    assert ("1,234.50" in json.dumps(message) or "1234.50" in json.dumps(message)) is (money is not None)
    broken = json.loads(json.dumps(attached["content"]))
    broken["body"][0]["inlines"][0]["weight"] = "heaviest"
    assert not cards.is_valid(broken)


def test_a_text_for_mattermost_has_no_mention_and_no_markup_of_others() -> None:
    text = mattermost_message(HOSTILE, MONEY)["text"]
    assert len(text) < 16_383
    outside = [part for line in text.split("\n") for part in line.split("`")[::2]]
    assert [line.count("`") % 2 for line in text.split("\n")] == [0] * len(text.split("\n"))
    assert not [part for part in outside if re.search(r"@|<|\[|\*\*|https:", part)]
    assert mattermost_message(EVENT, None)["text"].splitlines() == [
        "#### plan: approval needed",
        "`above $1,000`",
        "- Team: `research`",
        "- Object: `plan plan-1`",
        "- `by key-1 at 2026-11-23 12:00 UTC`",
    ]


async def test_each_webhook_gets_its_own_format(home: Home, receiver: Receiver) -> None:
    client = await home.team("research")
    await hook(client, receiver.url, "plan.done")
    body = {"url": receiver.url, "events": ["plan.done"], "format": "slack"}
    made = (await client.post("/v1/webhooks", json=body)).json()
    assert made["format"] == "slack"
    plan = await home.plan(client)
    await home.product.webhooks.deliver()
    bodies: list[dict[str, Any]] = [json.loads(text) for _, text in receiver.seen]
    (slack,) = [one for one in bodies if "blocks" in one]
    (own,) = [one for one in bodies if "type" in one]
    assert own["type"] == "plan.done"
    assert plan["plan_id"] in slack["text"]
    assert any(own["data"]["money"]["after_usd"] in json.dumps(block) for block in slack["blocks"])
    listed = (await client.get("/v1/webhooks")).json()["items"]
    assert {one["format"] for one in listed} == {"json", "slack"}
    refused = await client.post("/v1/webhooks", json={**body, "format": "irc"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/format"


async def test_a_test_goes_to_its_webhook_alone_like_any_other_event(home: Home, receiver: Receiver) -> None:
    client = await home.team("research")
    tested = await hook(client, receiver.url, "budget.threshold")
    other = await hook(client, receiver.url, "budget.*", "webhook.test")
    answer = await client.post(f"/v1/webhooks/{tested['webhook_id']}/test")
    assert answer.status_code == 202, answer.text
    receiver.statuses = [500, 200]
    await home.product.webhooks.deliver()
    assert (await deliveries(client, tested))[0]["state"] == "pending"  # the first answer was 500
    clock_of(home).advance(hours=1)
    await home.product.webhooks.deliver()
    (done,) = await deliveries(client, tested)
    assert (done["message_id"], done["state"]) == (answer.json()["message_id"], "delivered")
    assert all(row["message_id"] != answer.json()["message_id"] for row in await deliveries(client, other))
    sent = [
        json.loads(text) for headers, text in receiver.seen if headers["webhook-id"] == done["message_id"]
    ]
    assert [one["type"] for one in sent] == ["webhook.test"] * 2
    assert sent[0]["data"]["object"]["id"] == tested["webhook_id"]


async def test_a_test_is_asked_once_under_its_key_and_not_of_what_has_ended(
    home: Home, receiver: Receiver
) -> None:
    client, stranger = await home.team("research"), await home.team("vision")
    made = await hook(client, receiver.url, "budget.set")
    path = f"/v1/webhooks/{made['webhook_id']}/test"
    first = await client.post(path, headers={"Idempotency-Key": "once"})
    again = await client.post(path, headers={"Idempotency-Key": "once"})
    assert again.json() == first.json()
    assert (await stranger.post(path)).status_code == 404
    receiver.statuses = [410]
    await home.product.webhooks.deliver()
    assert len(receiver.seen) == 1
    ended = await client.post(path)
    assert ended.status_code == 409
    assert "answered 410" in ended.json()["detail"]


async def test_an_administrator_s_webhook_is_tested_too(home: Home, receiver: Receiver) -> None:
    client = home.client()
    made = await hook(client, receiver.url, "budget.set")
    assert (await client.post(f"/v1/webhooks/{made['webhook_id']}/test")).status_code == 202
    await home.product.webhooks.deliver()
    assert receiver.events() == ["webhook.test"]
    of_team = await hook(await home.team("research"), receiver.url, "budget.set")
    assert (await client.post(f"/v1/webhooks/{of_team['webhook_id']}/test")).status_code == 202
    await home.product.webhooks.deliver()
    bodies = [json.loads(text) for _, text in receiver.seen]
    assert [one["data"]["team"] for one in bodies] == ["admin", "research"], "whose webhook it is"


@pytest.mark.parametrize(
    ("pattern", "near"),
    [("budget.exceeded", "nearest: budget."), ("plan.dones", "nearest: plan.done"), ("zzz", "plan.*")],
)
async def test_an_event_that_does_not_exist_is_refused_with_the_nearest(
    home: Home, pattern: str, near: str
) -> None:
    client = await home.team("research")
    body = {"url": "https://1.1.1.1", "events": ["plan.done", pattern]}
    answer = await client.post("/v1/webhooks", json=body)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert (error["pointer"], error["found"]) == ("/events/1", pattern)
    assert near in error["expected"]


async def test_the_openapi_document_lists_the_events(home: Home) -> None:
    document = (await home.client().get("/openapi.json")).json()
    items = document["components"]["schemas"]["NewWebhook"]["properties"]["events"]["items"]
    (names,) = [one["enum"] for one in items["anyOf"] if "enum" in one]
    assert names == sorted(load_events())
    assert {"budget.threshold", "webhook.test"} <= set(names)


async def test_plain_http_is_refused_for_what_it_is() -> None:
    with pytest.raises(InputError, match=r"'http://no-such-host\.invalid'.*anybody on the way could read"):
        await HttpWebhookSender().require_allowed("http://no-such-host.invalid/hook")
