"""The port through which webhooks are sent."""

from __future__ import annotations

from typing import Protocol

from broker.domain.basics.webhook import SendOutcome


class WebhookSender(Protocol):
    """Sends HTTP requests to webhooks."""

    async def require_allowed(self, url: str) -> None:
        """Raises InputError unless ``url`` is an address of a public HTTPS server."""
        ...

    async def send(self, url: str, headers: dict[str, str], body: str) -> SendOutcome:
        """Posts ``body``, if the address is still allowed. Failures of the receiver are in the result."""
        ...
