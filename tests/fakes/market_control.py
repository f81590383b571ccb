"""A sandbox market's own endpoints, as tests use them: its clock, faults, prices and ledger."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import httpx

from providers.http import ProviderHttp


def control(url: str, name: str, **body: Any) -> Any:
    """What ``/_sandbox/{name}`` answers: to ``body``, or to a question where there is none."""
    path = f"/_sandbox/{name.removeprefix('/_sandbox/')}"
    with httpx.Client(base_url=url, trust_env=False) as client:
        answer = client.post(path, json=body) if body else client.get(path)
    assert answer.is_success, answer.text
    return answer.json()


def fault(url: str, **wish: Any) -> None:
    """Orders a fault."""
    control(url, "faults", **wish)


def market_now(url: str) -> datetime:
    """The market's time."""
    return datetime.fromisoformat(control(url, "clock")["now"])


def ledger(url: str, tag: str) -> list[dict[str, Any]]:
    """What the market sold under a tag."""
    rows: list[dict[str, Any]] = control(url, "ledger")["instances"]
    return [row for row in rows if row["tag"] == tag]


async def _at_once(seconds: float) -> None:
    """No pause."""


def hasty(*args: Any, **more: Any) -> ProviderHttp:
    """A client that tries again at once; how long it should wait is ``test_http.py``'s."""
    return ProviderHttp(*args, **more, sleep=_at_once)
