"""Sockets that our servers listen on, and how long they wait for a client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from api.cli.installation import listening
from api.cli.installation.connections import LimitedConnection
from providers.sandbox import server


@pytest.mark.parametrize(
    "listen", [lambda: listening.listen("127.0.0.1", 0), lambda: server.listen(0)], ids=["broker", "sandbox"]
)
def test_an_answer_never_waits_for_the_caller_s_acknowledgement(listen: Callable[[], socket.socket]) -> None:
    with listen() as bound:
        bound.listen()
        with socket.create_connection(bound.getsockname()), bound.accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class Hasty(LimitedConnection):
    head_s = 0.2
    body_s = 0.2


HEAD = b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n"
CLIENTS: dict[str, tuple[bytes, bytes]] = {
    "says nothing": (b"", b""),
    "half a head": (b"GET / HT", b""),
    "a head that trickles": (b"GET / HTTP/1.1\r\n", b"X-A: b\r\n"),
    "half a second head": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n", b"X-A: b\r\n"),
    "no body": (HEAD % b"read" + b"\r\n", b""),
    "a body that trickles": (HEAD % b"read" + b"\r\n", b"a"),
    "a body that trickles after the answer": (HEAD % b"" + b"\r\n", b"a"),
}
"""What is sent at once, and what again and again."""


async def answering(scope: Any, receive: Any, send: Any) -> None:
    """Answers once it has the body, where it is asked to read."""
    if scope["path"] == "/read":
        while (await receive()).get("more_body"):
            pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def opened(protocol: type[LimitedConnection], app: Any) -> tuple[asyncio.Server, int]:
    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", timeout_keep_alive=3600)
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("client", CLIENTS)
async def test_nobody_keeps_a_connection_without_a_request(client: str) -> None:
    first, again = CLIENTS[client]
    server, port = await opened(Hasty, answering)
    async with server, asyncio.timeout(120):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(first)
        ended = asyncio.create_task(_ended(reader))
        while not ended.done():
            writer.write(again)
            await asyncio.sleep(0.01)
        writer.close()


async def _ended(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):  # ended with something of ours unread
        await reader.read()


async def test_who_waits_with_half_a_request_makes_room_for_others() -> None:
    class Few(LimitedConnection):
        most = 2

    async def asked(link: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        link[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await link[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")

    server, port = await opened(Few, answering)
    async with server, asyncio.timeout(120):
        first, second = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asked(second)
        third = await asyncio.open_connection("127.0.0.1", port)
        await _ended(first[0])  # it has said nothing
        await asked(third)
        fourth = await asyncio.open_connection("127.0.0.1", port)
        await _ended(fourth[0])  # nobody else waits
        await asked(second)
        for _, writer in (first, second, third, fourth):
            writer.close()


async def test_a_whole_request_may_be_answered_late() -> None:
    connections: list[LimitedConnection] = []

    class Seen(LimitedConnection):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            connections.append(self)

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        (connection,) = connections
        assert connection._limit is None
        await answering(scope, receive, send)

    server, port = await opened(Seen, late)
    async with server, asyncio.timeout(120):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
        writer.close()
