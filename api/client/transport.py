"""One request and its answer: how calls are sent, lists read page by page, and errors raised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx

from api.client.answers import failure_of, parsed, problem_of

PAGE = 200

T = TypeVar("T")
Item = TypeVar("Item", covariant=True)


class PageOf(Protocol[Item]):
    """A part of a list, as every list answers."""

    @property
    def items(self) -> Sequence[Item]:
        """What is listed."""
        ...

    @property
    def next_cursor(self) -> str | None:
        """Where the next part begins; None at the end."""
        ...

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """The part that plain data says."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One request; a parameter that is None is not sent."""

    method: str
    path: str
    params: Mapping[str, str | Sequence[str] | None] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, object] | None = None
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Documents:
    """A part of a list whose items are handed on as they are."""

    items: Sequence[dict[str, Any]]
    next_cursor: str | None

    @classmethod
    def model_validate(cls, obj: Any) -> Self:
        """The part that plain data says. ValueError for what is no list."""
        match obj:
            case {"items": [*items], "next_cursor": cursor}:
                return cls(items, cursor)
        raise ValueError("no part of a list")


class Requests(ABC):
    """Requests to one server; lists are read page by page. A subclass sends them and waits."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url

    @abstractmethod
    async def _send(self, call: Call, params: Mapping[str, str | Sequence[str]]) -> httpx.Response:
        """The answer. Raises what httpx raises."""

    @abstractmethod
    async def _pause(self, seconds: float) -> None:
        """Waits."""

    async def _do(self, call: Call, read: Callable[[Any], T]) -> T:
        """What ``read`` makes of the JSON of the answer."""
        return parsed(self._base_url, read, await self._ask(call))

    async def _ask(self, call: Call) -> httpx.Response:
        """The answer of a call. An error of the server is raised as the BrokerError that it means."""
        given = {name: value for name, value in call.params.items() if value is not None}
        try:
            answer = await self._send(call, given)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise failure_of(self._base_url, f"{call.method} {call.path}", error) from error
        if not answer.is_success:
            raise problem_of(answer)
        return answer

    async def _each(
        self, path: str, form: type[PageOf[Item]], wanted: Mapping[str, str | None] = MappingProxyType({})
    ) -> AsyncIterator[Item]:
        """The items of a list, page by page."""
        cursor: str | None = None
        while True:
            params = {"limit": str(PAGE), **wanted, "cursor": cursor}
            page = await self._do(Call("GET", path, params), form.model_validate)
            for item in page.items:
                yield item
            cursor = page.next_cursor
            if cursor is None:
                return


def part(name: str) -> str:
    """A path segment. Ids have no slash; one in a name must not lead to another route."""
    return quote(name, safe="")


def once(idempotency_key: str | None) -> dict[str, str]:
    """The header with which a repeated request has the first answer again, and acts only once."""
    return {"Idempotency-Key": idempotency_key or f"client-{uuid4()}"}
