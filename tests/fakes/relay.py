"""A sandbox market whose answers a test has in its hands on their way."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import respx

_OWN = frozenset({"accept-encoding", "content-length"})
Alter = Callable[[httpx.Request, httpx.Response], httpx.Response]


def _as_it_is(request: httpx.Request) -> httpx.Request:
    return request


@contextmanager
def relayed(alter: Alter, sent: Callable[[httpx.Request], httpx.Request] = _as_it_is) -> Iterator[None]:
    """While every call goes to its market as ``sent`` makes it, ``alter`` makes the answer to it."""

    def relay(made: httpx.Request) -> httpx.Response:
        request = sent(made)
        headers = {key: value for key, value in request.headers.items() if key not in _OWN}
        asked = urllib.request.Request(
            str(request.url), request.content or None, headers, method=request.method
        )
        try:
            with urllib.request.urlopen(asked) as answer:
                found = httpx.Response(answer.status, content=answer.read())
        except urllib.error.HTTPError as error:
            found = httpx.Response(error.code, content=error.read())
        return alter(request, found)

    with respx.mock(assert_all_called=False) as market:
        market.route().mock(side_effect=relay)
        yield
