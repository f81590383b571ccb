"""Feeds that never end, burst or stall: a typed error within bounds, over real sockets where it matters."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import respx

from broker.domain.basics.errors import PayloadUnreadable, ProviderUnavailable
from broker.services.market.offers import OffersService
from providers.body import MOST_LINE_BYTES, BodyRefused, lines, unpacked, whole
from providers.http import HttpPolicy, Operation, ProviderHttp, Reply, classify_by_status
from providers.registry import SPECS, build_adapters, configured
from providers.sandbox.server import start_in_background
from tests.contract.exchanges import BASE_URL, OBSERVED_AT, build, exchanges, mount
from tests.fakes.bad_server import BadServer
from tests.fakes.clock import FakeClock
from tests.fakes.store import Tables

MOST_BYTES = 1_000_000
MOST_HELD_BYTES = 6_000_000
"""A bounded body twice over, and the chunks in both sockets (the server lives in this process too)."""
MOST_CALLS = 1_000


@pytest.fixture
async def server() -> AsyncIterator[tuple[BadServer, str]]:
    bad = BadServer(huge_bytes=60_000_000, bomb_bytes=60_000_000, drip_s=0.01)
    async with bad.serving() as url:
        yield bad, url


Make = Callable[..., ProviderHttp]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[ProviderHttp] = []

    def client(url: str, **policy: Any) -> ProviderHttp:
        limits = HttpPolicy(**{"attempts": 1, "max_bytes": MOST_BYTES, **policy})
        made.append(ProviderHttp("somebody", url, classify_by_status, limits))
        return made[-1]

    yield client
    for each in made:
        await each.aclose()


@contextmanager
def held_below(most_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()


def read(client: ProviderHttp, path: str) -> Awaitable[Reply]:
    return client.request("GET", path, operation=Operation.OFFERS)


async def count_lines(client: ProviderHttp, path: str, **bounds: Any) -> int:
    return len([line async for line in client.read_lines(path, **bounds)])


@pytest.mark.parametrize("path", ["/huge/x", "/huge-length/x", "/bomb/x"])
async def test_a_body_without_measure_is_cut(server: tuple[BadServer, str], make: Make, path: str) -> None:
    bad, url = server
    client = make(url)
    await count_lines(client, "/pages/x")  # imports and caches out of the way
    with held_below(MOST_HELD_BYTES), pytest.raises(PayloadUnreadable, match="larger than 1000000 bytes"):
        await read(client, path)
    assert bad.sent["huge"] + bad.sent["huge-length"] < 20_000_000


@pytest.mark.parametrize("path", ["/line/x", "/bomb/x"])
async def test_a_line_without_end_is_cut(server: tuple[BadServer, str], make: Make, path: str) -> None:
    client = make(server[1])
    wish = f"longer than {MOST_LINE_BYTES}"
    with held_below(MOST_HELD_BYTES), pytest.raises(PayloadUnreadable, match=wish):
        await count_lines(client, path, max_bytes=10**12)


async def test_a_drip_is_cut_by_the_time_of_the_whole_call(server: tuple[BadServer, str], make: Make) -> None:
    began = time.monotonic()
    with pytest.raises(ProviderUnavailable, match="TimeoutError"):
        await read(make(server[1], total_s=0.2), "/drip/x")
    with pytest.raises(ProviderUnavailable, match="TimeoutError"):
        await count_lines(make(server[1]), "/drip/x", total_s=0.2)
    assert time.monotonic() - began < 60, "a drip never ends by itself"


@respx.mock
@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"a\r\nb\n", mtime=0)),
        ("x-gzip", gzip.compress(b"a\r\nb\n", mtime=0)),
        ("deflate", zlib.compress(b"a\r\nb\n")),
        ("deflate", zlib.compress(b"a\r\nb\n", wbits=-15)),
        ("identity", b"a\r\nb\n"),
        ("gzip", b""),
    ],
)
async def test_packed_bodies_are_read(make: Make, encoding: str, body: bytes) -> None:
    headers = {"Content-Encoding": encoding}
    respx.get(f"{BASE_URL}/x").mock(return_value=httpx.Response(200, content=body, headers=headers))
    client = make(BASE_URL)
    assert (await read(client, "/x")).body == (b"a\r\nb\n" if body else b"")
    assert [line async for line in client.read_lines("/x")] == (["a", "b"] if body else [])


async def chunks(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@pytest.mark.parametrize("size", [1, 10, 1000])
@pytest.mark.parametrize(
    ("encoding", "body", "says"),
    [
        ("gzip", b"plain text", "is broken"),
        ("deflate", b"\xff\xff\xff", "is broken"),
        ("gzip", gzip.compress(b"x" * 1000, mtime=0)[:-9], "ends too early"),
        ("br", b"x", "unknown Content-Encoding"),
        ("gzip, gzip", b"x", "unknown Content-Encoding"),
        ("", b"x" * 2001, "larger than 2000 bytes"),
        ("gzip", gzip.compress(b"x" * 2001, mtime=0), "larger than 2000 bytes"),
    ],
)
async def test_what_cannot_be_unpacked_is_refused(encoding: str, body: bytes, says: str, size: int) -> None:
    with pytest.raises(BodyRefused, match=says):
        await whole(unpacked(chunks(body, size), encoding), 2000)


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_lines_do_not_depend_on_the_pieces(size: int) -> None:
    body = "a\r\n\nä€\nlast".encode()
    assert [line async for line in lines(chunks(body, size), 100)] == ["a", "", "ä€", "last"]


async def test_only_what_can_be_unpacked_is_asked_for(make: Make) -> None:
    request = make(BASE_URL)._client.build_request("GET", BASE_URL)
    assert request.headers["accept-encoding"] == "gzip, deflate"


Page = Callable[[httpx.Response, int], httpx.Response]


def in_body(change: Callable[[int], Mapping[str, Any]]) -> Page:
    """The page with fields that promise a next one."""
    return lambda page, number: httpx.Response(200, json={**json.loads(page.content), **change(number)})


def in_header(name: str) -> Page:
    """The page with a header that promises a next one."""
    return lambda page, number: httpx.Response(200, content=page.content, headers={name: f"{10**9 + number}"})


def _azure(number: int) -> Mapping[str, Any]:
    return {"NextPageLink": f"https://prices.azure.com/api/retail/prices?$skip={number}"}


def _digitalocean(number: int) -> Mapping[str, Any]:
    return {"links": {"pages": {"next": f"https://api.digitalocean.com/v2/sizes?page={number}"}}}


ENDLESS: Mapping[str, tuple[str, Page]] = {
    "azure": ("/api/retail/prices", in_body(_azure)),
    "digitalocean": ("/v2/sizes", in_body(_digitalocean)),
    "gcp": ("/skus", in_body(lambda number: {"nextPageToken": f"token{number}"})),
    "oci": ("/regionSubscriptions", in_header("opc-next-page")),
    "prime_intellect": ("/availability/gpus", in_body(lambda _: {"totalCount": 10**9})),
    "scaleway": ("fr-par-2/products/servers", in_header("x-total-count")),
    "vultr": ("/v2/plans", in_body(lambda number: {"meta": {"links": {"next": f"cursor{number}"}}})),
}
"""Where a list with pages begins, and a page of it that has a next one whatever its number."""


@pytest.mark.parametrize("name", ENDLESS)
async def test_pages_without_end_are_given_up(name: str) -> None:
    path, page = ENDLESS[name]
    exchange = next(e for e in exchanges(name) if e["call"] == "list_offers" and not e.get("raises"))
    answers = {(answer["method"], answer["path"]): answer for answer in reversed(exchange["answers"])}
    calls = 0

    adapter = build(SPECS[name], keyless=exchange.get("keyless", False))
    with respx.mock(assert_all_called=False) as router:
        mount(router, name, list(answers.values()))
        number = next(n for n, (_, known) in enumerate(answers) if known.endswith(path))
        route = router.routes[number]
        first = route.return_value
        assert first is not None

        def reply(request: httpx.Request) -> httpx.Response:
            nonlocal calls
            calls += 1
            return page(first, calls)

        route.mock(side_effect=reply)
        with pytest.raises(PayloadUnreadable):
            await adapter.list_offers(OBSERVED_AT)
    await adapter.aclose()
    assert 10 <= calls <= MOST_CALLS


async def test_bad_feeds_leave_the_rest_unharmed(server: tuple[BadServer, str]) -> None:
    sandbox = start_in_background(0, seed=11)
    paths = {"verda": "drip", "hyperstack": "huge", "prime_intellect": "pages"}
    environ = {f"BROKER_{name.upper()}_BASE_URL": f"{server[1]}/{kind}" for name, kind in paths.items()}
    environ |= {"BROKER_DIGITALOCEAN_BASE_URL": "http://127.0.0.1:9", "BROKER_VERDA_TIMEOUT_S": "0.2"}
    wanted = {"digitalocean", "lambda", "shadeform", "vast", *paths}
    settings = {name: each for name, each in configured(environ, sandbox.url).items() if name in wanted}
    feeds = build_adapters(settings)
    try:
        rounds = await OffersService(Tables().unit_of_work, feeds, FakeClock()).refresh()
    finally:
        for feed in feeds.values():
            await feed.aclose()
        sandbox.stop()
    errors = {each.provider: each.error or "" for each in rounds}
    healthy = {each.provider for each in rounds if each.offers}
    assert healthy == {"lambda", "shadeform", "vast"}
    assert "TimeoutError" in errors["verda"]
    assert "ConnectError" in errors["digitalocean"]
    assert "larger than" in errors["hyperstack"]
    assert "does not end" in errors["prime_intellect"]
