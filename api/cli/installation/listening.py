"""Running a server: the port is bound first, and failures are reported."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI
from prometheus_client import Counter

from api.bootstrap import Product
from api.cli.installation.connections import ACCEPTED_AT_ONCE, connection_of_this_process
from broker import logs
from broker.domain.basics.errors import BrokerError, Conflict

GRACE_S = 5
ENDING = (signal.SIGINT, signal.SIGTERM)
BACKLOG = 2048
ALLOCATIONS_BETWEEN = 20_000
SWITCH_S = 0.0005
"""How long a thread may keep the interpreter from the event loop, which asks for it several times a request.
Beside a thread that computes, requests waited up to 150 ms with Python's 5 ms, and 90 ms with this."""
NO_REQUESTS = ("Invalid HTTP request", "Unsupported upgrade request", "No supported WebSocket library")
"""How uvicorn tells of what it does not hand to the application."""
MALFORMED = Counter("broker_http_malformed_requests", "What came to the port and was no request to serve")


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Port 0 takes any free port. Raises Conflict with the address if it cannot be bound.

    Its connections have TCP_NODELAY. asyncio sets that only for sockets that it made itself, and without it
    an answer in two parts waits 40 ms for the caller's delayed acknowledgement.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        wish = f"cannot listen on {host}:{port} ({error.strerror or error})"
        raise Conflict(f"{wish}; choose another with --port or --host") from error
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def url_of(bound: socket.socket) -> str:
    """The base URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def spare_collections() -> None:
    """Exempts loaded objects from garbage collection, and makes collections rarer. A full collection over all
    modules would stop an answer for longer than it may take."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_BETWEEN)


class _OfStrangers(logging.Filter):
    """Counts requests that are no valid HTTP instead of logging each. Anybody can send them without a key,
    and they would fill the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log ``record``."""
        if not str(record.msg).startswith(NO_REQUESTS):
            return True
        MALFORMED.inc()
        return False


_of_strangers = _OfStrangers()


class _Server(uvicorn.Server):
    """Exits normally instead of by the signal that asked it to stop.

    uvicorn raises the signal again once it has served. That would end the process before it could release
    what it shares with its workers. A first SIGTERM makes ``/readyz`` answer 503, and connections are
    accepted for another ``drain_s``, so that a load balancer notices. SIGINT and a second signal stop at
    once.
    """

    def __init__(self, config: uvicorn.Config, product: Product, drain_s: float) -> None:
        super().__init__(config)
        self._product = product
        self._drain_s = drain_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Starts the shutdown."""
        readiness = self._product.readiness
        if sig == signal.SIGTERM and self.started and readiness.serving and self._drain_s:
            asyncio.get_running_loop().call_later(self._drain_s, super().handle_exit, sig, frame)
        else:
            super().handle_exit(sig, frame)
        readiness.serving = False

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles SIGINT and SIGTERM while it serves."""
        loop = asyncio.get_running_loop()
        for wish in ENDING:
            loop.add_signal_handler(wish, self.handle_exit, wish, None)
        try:
            yield
        finally:
            for wish in ENDING:
                loop.remove_signal_handler(wish)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to serve."""
        await super().startup(sockets)
        for bound in sockets or ():
            bound.listen(BACKLOG)  # asyncio has asked for a queue as short as what it accepts at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for answers to end, then stops the application. Streams are closed first, as they would not
        end."""
        self._product.readiness.serving = False
        self._product.events.close()
        await super().shutdown(sockets)


async def serve_until_stopped(app: FastAPI, bound: socket.socket) -> None:
    """Serves until SIGINT or SIGTERM; BrokerError when the application does not start."""
    config = uvicorn.Config(
        app,
        http=connection_of_this_process(),
        backlog=ACCEPTED_AT_ONCE,
        log_config=None,  # uvicorn's records go the way of ours
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=GRACE_S,  # an open progress stream must not hold up the end
    )
    product: Product = app.state.product
    server = _Server(config, product, product.settings.drain_seconds)
    logging.getLogger("uvicorn.error").addFilter(_of_strangers)
    spare_collections()
    sys.setswitchinterval(SWITCH_S)
    # The first call derives the document, which takes a second: no client should wait for it. The end of the
    # process waits for the thread, as cutting it off within native code hangs or aborts the process.
    threading.Thread(target=app.openapi, name="openapi").start()
    with logs.on_a_thread():
        await server.serve(sockets=[bound])
    if not server.started:
        raise BrokerError("the server did not start; the log above says why")
