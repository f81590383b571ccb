"""The system clock, and how a sandbox market's clock is followed."""

from __future__ import annotations

from datetime import UTC, datetime

import structlog

from broker.domain.basics.errors import BrokerError
from broker.ports.unit_of_work import Clock
from providers.market_clock import MarketClock

log = structlog.get_logger()


class SystemClock:
    """This machine's time in UTC."""

    def now(self) -> datetime:
        """The current time in UTC."""
        return datetime.now(UTC)


async def follow_market(clock: Clock) -> None:
    """Sets a sandbox clock by the sandbox market. A failure is logged, and the clock goes on."""
    if not isinstance(clock, MarketClock):
        return
    try:
        await clock.refresh()
    except BrokerError as error:
        log.warning("the market's clock was not read", error=str(error))
