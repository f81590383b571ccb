"""An event as a message for a chat: Slack, Mattermost or Microsoft Teams. Pure.

No text of a seller or a person becomes markup, a link or a mention:

- Slack's incoming webhooks take a text for notifications, and blocks: 150 characters in a header, 3,000 in a
  text of a section, 2,000 in each of at most ten fields. ``&``, ``<`` and ``>`` are written as entities;
  nothing else of a text is markup there.
- Mattermost's take a text in Markdown of at most 16,383 characters, in which every ``@name`` is a mention.
  Foreign text stands in code, where neither is read.
- The Workflows of Teams take a message with an Adaptive Card (version 1.4) of at most 28 KB. Foreign text
  stands in text runs, which know no Markdown.
"""

from __future__ import annotations

from typing import Any

from broker.domain.basics.money import format_usd, to_cents
from broker.domain.basics.webhook import MoneyChange, OutboxEvent

LONGEST_HEADER = 150
LONGEST_TEXT = 3000
LONGEST_FIELD = 2000
LONGEST_TOLD = 500
"""Of what is shown of a detail in a notification."""
CARD = "application/vnd.microsoft.card.adaptive"
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def slack_message(event: OutboxEvent, money: MoneyChange | None) -> dict[str, Any]:
    """The body that Slack takes."""
    words = _headline(event)
    told = _cut(event.detail.translate(_ENTITIES), LONGEST_TEXT)
    fields = [_slack_field(name, value) for name, value in _facts(event, money)]
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": _cut(words, LONGEST_HEADER)}},
        *([_section(text={"type": "mrkdwn", "text": told})] if told.strip() else []),
        _section(fields=fields),
        {"type": "context", "elements": [_slack_text(_by(event))]},
    ]
    fallback = f"{words} ({_about(event)})" + (
        f": {_cut(event.detail, LONGEST_TOLD)}" if event.detail else ""
    )
    return {"text": fallback.translate(_ENTITIES), "blocks": blocks}


def mattermost_message(event: OutboxEvent, money: MoneyChange | None) -> dict[str, Any]:
    """The body that Mattermost takes."""
    lines = [f"#### {_headline(event)}"]
    if event.detail.strip():
        lines.append(_code(event.detail, LONGEST_TEXT))
    lines += [f"- {name}: {_code(value, LONGEST_FIELD)}" for name, value in _facts(event, money)]
    return {"text": "\n".join([*lines, f"- {_code(_by(event), LONGEST_FIELD)}"])}


def teams_message(event: OutboxEvent, money: MoneyChange | None) -> dict[str, Any]:
    """The body that the trigger *When a Teams webhook request is received* takes."""
    headline = {"type": "TextRun", "text": _cut(_headline(event), LONGEST_HEADER), "weight": "bolder"}
    detail = [_runs(_cut(event.detail, LONGEST_TEXT))] if event.detail.strip() else []
    facts = [
        _runs({"type": "TextRun", "text": f"{name}: ", "weight": "bolder"}, _cut(value, LONGEST_FIELD))
        for name, value in _facts(event, money)
    ]
    by = {"type": "TextRun", "text": _cut(_by(event), LONGEST_FIELD), "isSubtle": True}
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "fallbackText": _cut(f"{_headline(event)} ({_about(event)})", LONGEST_TOLD),
        "body": [_runs({**headline, "size": "large"}), *detail, *facts, _runs(by)],
    }
    return {"type": "message", "attachments": [{"contentType": CARD, "contentUrl": None, "content": card}]}


def _headline(event: OutboxEvent) -> str:
    return event.event.replace(".", ": ", 1).replace("_", " ")


def _about(event: OutboxEvent) -> str:
    return f"{event.object_kind} {event.object_id}"


def _by(event: OutboxEvent) -> str:
    return f"by {event.actor} at {event.at:%Y-%m-%d %H:%M} UTC"


def _facts(event: OutboxEvent, money: MoneyChange | None) -> list[tuple[str, str]]:
    found = [("Team", event.team), ("Object", _about(event))]
    if money is not None:
        change, now = (format_usd(to_cents(usd)) for usd in (money.change_usd, money.after_usd))
        found += [("Change, USD", change), ("Expected now, USD", now)]
    return found


def _section(**parts: Any) -> dict[str, Any]:
    return {"type": "section", **parts}


def _slack_field(name: str, value: str) -> dict[str, str]:
    return {"type": "mrkdwn", "text": f"*{name}*\n{_cut(value.translate(_ENTITIES), LONGEST_FIELD - 50)}"}


def _slack_text(words: str) -> dict[str, str]:
    return {"type": "mrkdwn", "text": _cut(words.translate(_ENTITIES), LONGEST_TEXT)}


def _code(text: str, longest: int) -> str:
    """``text`` as code on one line; a backtick, which would end it, becomes an apostrophe."""
    return f"`{_cut(' '.join(text.split()).replace('`', chr(39)), longest)}`"


def _runs(*inlines: str | dict[str, Any]) -> dict[str, Any]:
    return {"type": "RichTextBlock", "inlines": list(inlines)}


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
