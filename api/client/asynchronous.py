"""The asynchronous client of a running broker: the published calls, for programs with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import httpx

from api.client.calls import TIMEOUT_S, PublishedCalls
from api.client.synchronous import address_and_key, authorization
from api.client.transport import Call
from broker.settings import Settings


class AsyncBrokerClient(PublishedCalls):
    """Calls one server with one key, as ``BrokerClient`` does; lists are asynchronous iterators."""

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(base_url)
        self._http = httpx.AsyncClient(
            base_url=base_url, headers=authorization(key), timeout=timeout_s, transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def _send(self, call: Call, params: Mapping[str, str | Sequence[str]]) -> httpx.Response:
        return await self._http.request(
            call.method,
            call.path,
            params=params,
            headers=call.headers,
            json=call.body,
            content=call.content,
        )

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def connect_async(settings: Settings | None = None) -> AsyncBrokerClient:
    """A client of the server that BROKER_URL names, with BROKER_KEY; InputError for what is no key."""
    return AsyncBrokerClient(*address_and_key(settings or Settings()))
