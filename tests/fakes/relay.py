"""A sandbox market whose answers a test has in its hands on their way."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import respx

Alter = Callable[[httpx.Request, httpx.Response], httpx.Response]


@contextmanager
def relayed(alter: Alter) -> Iterator[None]:
    """While every call goes to its market, ``alter`` makes what the caller is answered."""

    def relay(request: httpx.Request) -> httpx.Response:
        headers = {key: value for key, value in request.headers.items() if key != "accept-encoding"}
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
