"""Large files line by line: what is tried again, what is not, and what a known version saves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import respx

from broker.domain.basics.errors import PayloadUnreadable, ProviderUnavailable, RateLimited
from providers.http import FileVersion, HttpPolicy, NotModified, ProviderHttp, classify_by_status

BASE = "http://provider.test"
FILE = f"{BASE}/prices"

Make = Callable[..., ProviderHttp]


@pytest.fixture
def slept_s() -> list[float]:
    return []


@pytest.fixture
async def make(slept_s: list[float]) -> AsyncIterator[Make]:
    made: list[ProviderHttp] = []

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)

    def build(**policy: Any) -> ProviderHttp:
        limits = HttpPolicy(**policy)
        made.append(
            ProviderHttp("somebody", BASE, classify_by_status, limits, sleep=sleep, jitter=lambda: 0.0)
        )
        return made[-1]

    yield build
    for client in made:
        await client.aclose()


async def read(client: ProviderHttp, version: FileVersion | None = None) -> list[str]:
    return [line async for line in client.read_lines("/prices", version=version)]


class Breaking(httpx.AsyncByteStream):
    """A body that breaks off after ``text``."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._text:
            yield self._text
        raise httpx.ReadError("gone")


@respx.mock
async def test_a_file_is_asked_for_again_with_the_wait_that_the_server_names(
    make: Make, slept_s: list[float]
) -> None:
    respx.get(FILE).mock(
        side_effect=[
            httpx.Response(429, headers={"retry-after": "7"}),
            httpx.ConnectError("refused"),
            httpx.Response(200, text="a\nb"),
        ]
    )
    assert await read(make(backoff_s=0.5)) == ["a", "b"]
    assert slept_s == [7.0, 1.0]


@respx.mock
async def test_a_wait_longer_than_the_patience_is_the_callers_to_keep(
    make: Make, slept_s: list[float]
) -> None:
    route = respx.get(FILE).mock(return_value=httpx.Response(429, headers={"retry-after": "60"}))
    with pytest.raises(RateLimited) as caught:
        await read(make(longest_wait_s=10.0))
    assert caught.value.retry_after_s == 60.0
    assert (route.call_count, slept_s) == (1, [])


@respx.mock
async def test_attempts_end(make: Make, slept_s: list[float]) -> None:
    route = respx.get(FILE).mock(return_value=httpx.Response(503))
    with pytest.raises(ProviderUnavailable, match="HTTP 503"):
        await read(make(attempts=3, backoff_s=1.0))
    assert (route.call_count, slept_s) == (3, [1.0, 2.0])


@respx.mock
async def test_what_breaks_off_before_a_line_is_tried_again_and_after_one_is_not(make: Make) -> None:
    whole = httpx.Response(200, text="a\nb")
    respx.get(FILE).mock(side_effect=[httpx.Response(200, stream=Breaking(b"half a li")), whole])
    assert await read(make()) == ["a", "b"]
    route = respx.get(FILE).mock(side_effect=[httpx.Response(200, stream=Breaking(b"a\nhal")), whole])
    lines = make().read_lines("/prices")
    assert await anext(lines) == "a"
    with pytest.raises(ProviderUnavailable, match="ReadError"):
        await anext(lines)
    assert route.call_count == 3


@respx.mock
async def test_what_cannot_be_read_is_not_tried_again(make: Make) -> None:
    route = respx.get(FILE).mock(return_value=httpx.Response(404, text="no such file"))
    with pytest.raises(PayloadUnreadable, match="no such file"):
        await read(make())
    assert route.call_count == 1


@respx.mock
async def test_a_version_that_is_known_is_not_read_again(make: Make) -> None:
    route = respx.get(FILE).mock(return_value=httpx.Response(200, text="a", headers={"etag": '"1"'}))
    client, version = make(breaker_failures=1), FileVersion()
    assert await read(client, version) == ["a"]
    assert version.etag == '"1"'
    assert "if-none-match" not in route.calls[0].request.headers
    route.mock(return_value=httpx.Response(304))
    for _ in range(2):
        with pytest.raises(NotModified):
            await read(client, version)
    assert route.calls[-1].request.headers["if-none-match"] == '"1"'
    route.mock(return_value=httpx.Response(200, text="b"))
    assert await read(client, version) == ["b"]
    assert version.etag == ""


@respx.mock
async def test_an_unasked_304_is_no_file(make: Make) -> None:
    respx.get(FILE).mock(return_value=httpx.Response(304))
    with pytest.raises(PayloadUnreadable, match="304"):
        await read(make(), FileVersion())
