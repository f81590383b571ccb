"""Connections with time limits, and a limit on their number.

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
    """Closes a connection whose request does not arrive in time, however slowly it is sent.

    ``head_s`` limits the time from connecting, or from the first byte of a request, to the end of its
    headers, and ``body_s`` the time from there to the end of its body. The time of an answer has no limit.
    With more than ``most`` connections, the one that has waited longest for its headers is closed.
    """

    head_s = 20.0
    body_s = 120.0
    most = 1000
    _awaited: tuple[object, object] | None = None
    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._limit_rest()
        if len(self.connections) > self.most:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """A client has sent data."""
        super().data_received(data)
        self._limit_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """A client has disconnected."""
        self._stop_limit()
        super().connection_lost(exc)

    def _limit_rest(self) -> None:
        """Starts the timer of the part that is awaited now, unless it is running already."""
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
        """Closes the connection that has waited longest for its headers: this one, if no other waits."""
        ends = {
            end: each
            for each in self.connections
            if isinstance(each, LimitedConnection) and (end := each.head_ends_at()) is not None
        }
        CUT_OFF.inc()
        ends[min(ends)].cut_off()

    def head_ends_at(self) -> float | None:
        """The loop's time at which the wait for headers ends; None if none are awaited."""
        if self._limit is None or self.conn.their_state is not h11.IDLE:
            return None
        return self._limit.when()

    def cut_off(self) -> None:
        """Ends the connection at once."""
        self._stop_limit()
        self.transport.abort()


def connection_of_this_process() -> type[LimitedConnection]:
    """The protocol of a server. It raises the limit of open files to what the system allows, and leaves half
    of them to the database, sellers and planners."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return type("Connection", (LimitedConnection,), {"most": files // 2})
