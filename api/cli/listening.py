"""A server of ours: its port taken first, its failures told."""

from __future__ import annotations

import gc
import socket

import uvicorn
from fastapi import FastAPI

from broker import logs
from broker.domain.errors import BrokerError, Conflict

GRACE_S = 5
ALLOCATIONS_BETWEEN = 20_000


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes any free one. Conflict names the address that cannot be had.

    Its connections send at once: asyncio sees to that only for sockets that it made itself, and else an
    answer in two parts waits 40 ms for the caller's delayed acknowledgement.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=2048)
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
    """Leaves what is loaded by now out of garbage collections, and has them less often: a full one over all
    modules takes longer than an answer may, and in the middle of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_BETWEEN)


async def serve_until_stopped(app: FastAPI, bound: socket.socket) -> None:
    """Serves until SIGINT or SIGTERM; BrokerError when the application does not start."""
    config = uvicorn.Config(
        app,
        log_config=None,  # uvicorn's records go the way of ours
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=GRACE_S,  # an open progress stream must not hold up the end
    )
    server = uvicorn.Server(config)
    spare_collections()
    with logs.on_a_thread():
        await server.serve(sockets=[bound])
    if not server.started:
        raise BrokerError("the server did not start; the log above says why")
