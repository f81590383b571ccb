"""A notifier and an event stream that remember, and an executor that runs at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass
class RecordingNotifier:
    """Keeps every event in order."""

    sent: list[tuple[str, str, dict[str, object]]] = field(default_factory=list)

    async def notify(self, event: str, team: str, body: dict[str, object]) -> None:
        """Remembers."""
        self.sent.append((event, team, body))

    def events(self) -> list[str]:
        """Names of what was sent."""
        return [event for event, _, _ in self.sent]


@dataclass
class RecordingEvents:
    """Keeps what was published, by plan."""

    published: dict[str, list[dict[str, object]]] = field(default_factory=dict)

    def publish(self, plan_id: str, event: dict[str, object]) -> None:
        """Remembers."""
        self.published.setdefault(plan_id, []).append(event)

    def last(self, plan_id: str) -> Mapping[str, object]:
        """The last that was published."""
        return self.published.get(plan_id, [{}])[-1]

    async def listen(self, plan_id: str) -> AsyncIterator[dict[str, object]]:
        """What was published."""
        for event in self.published.get(plan_id, []):
            yield event

    def states(self, plan_id: str) -> list[object]:
        """States that a plan went through."""
        return [event["state"] for event in self.published[plan_id]]


class InlineExecutor:
    """Runs in the caller's thread."""

    workers = 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
