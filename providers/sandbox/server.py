"""Runs the sandbox: in the foreground for ``broker sandbox``, in a thread for ``broker up``."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from broker.domain.basics.errors import Conflict
from providers.sandbox.app import RESET_EXTENSION, ASGIApp, Receive, Sandbox, Scope, Send, create_sandbox

HOST = "127.0.0.1"
_START_LIMIT_S = 20.0


class ResettableProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol that lets the application break its connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Gives every request of this connection the means to end it."""
        super().connection_made(transport)
        self.app = _with_reset(self.app, transport)


def _with_reset(app: ASGIApp, transport: asyncio.Transport) -> ASGIApp:
    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"] = {**(scope.get("extensions") or {}), RESET_EXTENSION: lambda: _reset(transport)}
        await app(scope, receive, send)

    return wrapped


def _reset(transport: asyncio.Transport) -> None:
    """Closes with RST instead of FIN: lingering is switched on with zero seconds.

    A client that hung up first has left nothing to close.
    """
    raw = transport.get_extra_info("socket")
    if raw is not None and raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _config(app: Any) -> uvicorn.Config:
    """The application writes the ``Date`` of its answers itself: the market's time."""
    return uvicorn.Config(
        app,
        http=ResettableProtocol,
        ws="none",
        access_log=False,
        log_config=None,  # uvicorn's records go the way of ours
        log_level="warning",
        timeout_keep_alive=30,
        date_header=False,
    )


def listen(port: int, host: str = HOST) -> socket.socket:
    """A bound socket; Conflict when the port is taken. Port 0 takes any free one.

    Its connections send at once (asyncio only sees to that for sockets that it made itself): else an answer
    in two parts waits 40 ms for the caller's delayed acknowledgement.
    """
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise Conflict(f"the sandbox cannot listen on {host}:{port}: {error.strerror}") from error
    return bound


def run(port: int, seed: int, state_dir: Path | None, host: str = HOST) -> None:
    """Serves the sandbox until interrupted. Raises Conflict for a taken port or a state of another seed."""
    app = create_sandbox(seed, state_dir)
    try:
        with listen(port, host) as bound:
            app.state.port = bound.getsockname()[1]
            uvicorn.Server(_config(app)).run(sockets=[bound])
    finally:
        app.close()


class SandboxHandle:
    """A sandbox in a thread of this process: ``url`` is its base address."""

    def __init__(self, url: str, server: uvicorn.Server, thread: threading.Thread) -> None:
        self.url = url
        self._server = server
        self._thread = thread

    def stop(self) -> None:
        """Ends the server and waits for its thread; a second call does nothing."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(timeout=10)


def start_in_background(port: int, seed: int, state_dir: Path | None = None) -> SandboxHandle:
    """Starts the sandbox in a daemon thread and returns once it answers. Raises Conflict as ``run`` does."""
    return serve_in_background(create_sandbox(seed, state_dir), port)


def serve_in_background(app: Sandbox, port: int) -> SandboxHandle:
    """Serves ``app``, and closes it in the end. Raises Conflict for a taken port."""
    try:
        bound = listen(port)
    except Conflict:
        app.close()
        raise
    app.state.port = bound.getsockname()[1]
    server = uvicorn.Server(_config(app))
    started = threading.Event()
    thread = threading.Thread(target=_serve, args=(server, app, bound, started), name="sandbox", daemon=True)
    thread.start()
    if not started.wait(_START_LIMIT_S):
        raise Conflict(f"the sandbox did not start within {_START_LIMIT_S:.0f} s")
    return SandboxHandle(f"http://{HOST}:{bound.getsockname()[1]}", server, thread)


def _serve(server: uvicorn.Server, app: Sandbox, bound: socket.socket, started: threading.Event) -> None:
    async def main() -> None:
        serving = asyncio.ensure_future(server.serve(sockets=[bound]))
        while not server.started and not serving.done():  # noqa: ASYNC110  uvicorn gives no event
            await asyncio.sleep(0.01)
        started.set()
        await serving

    try:
        with bound:
            asyncio.run(main())
    finally:
        app.close()
