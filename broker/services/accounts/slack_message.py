"""An event as a message for Slack's incoming webhooks: text for notifications, and blocks. Pure.

Limits of Slack's reference of blocks: 150 characters in a header, 3,000 in a text of a section, 2,000 in each
of at most ten fields. ``&``, ``<`` and ``>`` are written as entities; nothing else of a text is markup there.
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
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def slack_message(event: OutboxEvent, money: MoneyChange | None) -> dict[str, Any]:
    """The body that Slack takes."""
    words = event.event.replace(".", ": ", 1).replace("_", " ")
    about = f"{event.object_kind} {event.object_id}"
    fields = [_field("Team", event.team), _field("Object", about), *_money_fields(money)]
    told = _cut(event.detail.translate(_ENTITIES), LONGEST_TEXT)
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": _cut(words, LONGEST_HEADER)}},
        *([_section(text={"type": "mrkdwn", "text": told})] if told.strip() else []),
        _section(fields=fields),
        {"type": "context", "elements": [_text(f"by {event.actor} at {event.at:%Y-%m-%d %H:%M} UTC")]},
    ]
    fallback = f"{words} ({about})" + (f": {_cut(event.detail, LONGEST_TOLD)}" if event.detail else "")
    return {"text": fallback.translate(_ENTITIES), "blocks": blocks}


def _money_fields(money: MoneyChange | None) -> list[dict[str, str]]:
    if money is None:
        return []
    change, now = (format_usd(to_cents(usd)) for usd in (money.change_usd, money.after_usd))
    return [_field("Change, USD", change), _field("Expected now, USD", now)]


def _section(**parts: Any) -> dict[str, Any]:
    return {"type": "section", **parts}


def _field(name: str, value: str) -> dict[str, str]:
    return {"type": "mrkdwn", "text": f"*{name}*\n{_cut(value.translate(_ENTITIES), LONGEST_FIELD - 50)}"}


def _text(words: str) -> dict[str, str]:
    return {"type": "mrkdwn", "text": _cut(words.translate(_ENTITIES), LONGEST_TEXT)}


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
