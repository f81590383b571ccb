"""The sandbox market's clock, for a broker that runs on the sandbox's time.

``POST /_sandbox/clock`` moves that time, so that days pass in seconds. ``refresh`` reads the offset to this
machine's clock and keeps it; ``now()`` never waits.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from broker.domain.basics.errors import PayloadUnreadable
from providers.http import HttpFactory, HttpPolicy, Operation, classify_by_status

CLOCK_PATH = "/_sandbox/clock"


class MarketClock:
    """A ``broker.ports.unit_of_work.Clock`` that follows a sandbox market."""

    def __init__(self, sandbox_url: str, http_factory: HttpFactory) -> None:
        policy = HttpPolicy(total_s=5.0, attempts=2)
        self._http = http_factory("sandbox", sandbox_url, classify_by_status, policy)
        self._offset = timedelta(0)

    def now(self) -> datetime:
        """This machine's UTC time plus the offset last seen."""
        return datetime.now(UTC) + self._offset

    async def refresh(self) -> None:
        """Asks the market for its time. Raises ProviderError when it does not answer."""
        reply = await self._http.request("GET", CLOCK_PATH, operation=Operation.OFFERS)
        try:
            market_now = datetime.fromisoformat(str(reply.json()["now"]))
        except (KeyError, TypeError, ValueError) as error:
            raise PayloadUnreadable("sandbox", f"{CLOCK_PATH} gives no time: {error}") from error
        self._offset = market_now.astimezone(UTC) - datetime.now(UTC)

    async def aclose(self) -> None:
        """Closes the connection."""
        await self._http.aclose()
