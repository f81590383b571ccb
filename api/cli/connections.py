"""Connections that do not wait for ever for a client: uvicorn limits only the pause between two requests."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class LimitedConnection(H11Protocol):
    """Closes a connection whose request is not there in time, however it trickles in.

    ``head_s`` from connecting, or from a request's first byte, to the end of its headers; ``body_s`` from
    there to the end of its body. How long an answer takes is not limited.
    """

    head_s = 20.0
    body_s = 120.0
    _awaited: tuple[object, object] | None = None
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        self._limit_rest()

    def data_received(self, data: bytes) -> None:
        """A client said something."""
        super().data_received(data)
        self._limit_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """A client is gone."""
        self._stop_limit()
        super().connection_lost(exc)

    def _limit_rest(self) -> None:
        """Begins the time of what is awaited now, unless it is what was awaited before."""
        awaited = (self.conn.their_state, self.cycle)
        if awaited != self._awaited:
            self._awaited = awaited
            self._stop_limit()
            limit_s = {h11.IDLE: self.head_s, h11.SEND_BODY: self.body_s}.get(self.conn.their_state)
            if limit_s is not None:
                self._limit = self.loop.call_later(limit_s, self.transport.close)

    def _stop_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
