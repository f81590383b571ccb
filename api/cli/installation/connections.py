"""Connections that wait for no client for ever, and are not too many.

uvicorn limits only the pause between two requests, and what asyncio cannot accept for want of files it logs
thousands of times a second.
"""

from __future__ import annotations

import asyncio
import resource

import h11
from prometheus_client import Counter
from uvicorn.protocols.http.h11_impl import H11Protocol

ACCEPTED_AT_ONCE = 16
"""asyncio accepts so many in each of the few turns of the loop that pass before the first is looked at."""
MOST_FILES = 8192
CUT_OFF = Counter(
    "broker_http_connections_cut_off", "Connections that waited with half a request as others came"
)


class LimitedConnection(H11Protocol):
    """Closes a connection whose request is not there in time, however it trickles in.

    ``head_s`` from connecting, or from a request's first byte, to the end of its headers; ``body_s`` from
    there to the end of its body. How long an answer takes is not limited. Where there are more connections
    than ``most``, the one goes that has waited longest for its headers.
    """

    head_s = 20.0
    body_s = 120.0
    most = 1000
    _awaited: tuple[object, object] | None = None
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        self._limit_rest()
        if len(self.connections) > self.most:
            self._make_room()

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
            self._limit = None

    def _make_room(self) -> None:
        """Cuts the connection off that has waited longest for headers: this one, if no other does."""
        ends = {
            end: each
            for each in self.connections
            if isinstance(each, LimitedConnection) and (end := each.head_ends_at()) is not None
        }
        CUT_OFF.inc()
        ends[min(ends)].cut_off()

    def head_ends_at(self) -> float | None:
        """Until when headers are waited for, by the loop's clock; None where none are."""
        if self._limit is None or self.conn.their_state is not h11.IDLE:
            return None
        return self._limit.when()

    def cut_off(self) -> None:
        """Ends the connection at once."""
        self._stop_limit()
        self.transport.abort()


def connection_of_this_process() -> type[LimitedConnection]:
    """The protocol of a server that leaves half of the files that it may open, as many as the system lets it
    have, to the database, sellers and planners."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return type("Connection", (LimitedConnection,), {"most": files // 2})
