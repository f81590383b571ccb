"""Sockets that our servers listen on."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from api.cli import listening
from providers.sandbox import server


@pytest.mark.parametrize(
    "listen", [lambda: listening.listen("127.0.0.1", 0), lambda: server.listen(0)], ids=["broker", "sandbox"]
)
def test_an_answer_never_waits_for_the_caller_s_acknowledgement(listen: Callable[[], socket.socket]) -> None:
    with listen() as bound:
        bound.listen()
        with socket.create_connection(bound.getsockname()), bound.accept()[0] as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
