"""The client that all adapters share: what is retried, what is not, and what is said about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx
import pytest
import respx
from pydantic import BaseModel

from broker.domain.basics.errors import (
    CredentialsRejected,
    InsufficientCapacity,
    LeaseNotFound,
    OrderRejected,
    OutcomeUnknown,
    PayloadUnreadable,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
)
from providers.http import HttpPolicy, Operation, ProviderHttp, Reply, classify_by_status, is_loopback
from providers.pacing import Breaker

BASE = "http://provider.test"


@dataclass
class Time:
    """A clock that sleeping moves."""

    now_s: float = 100.0
    slept_s: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def time() -> Time:
    return Time()


Make = Callable[..., ProviderHttp]


@pytest.fixture
async def make(time: Time) -> AsyncIterator[Make]:
    made: list[ProviderHttp] = []

    def build(policy: HttpPolicy | None = None, secrets: tuple[str, ...] = ()) -> ProviderHttp:
        client = ProviderHttp(
            "somebody",
            BASE,
            classify_by_status,
            policy,
            secrets=secrets,
            sleep=time.sleep,
            monotonic=time.monotonic,
            jitter=lambda: 0.0,
            wall=lambda: datetime(2026, 11, 21, 12, tzinfo=UTC),
        )
        made.append(client)
        return client

    yield build
    for client in made:
        await client.aclose()


def read(client: ProviderHttp, path: str = "/offers", **more: object) -> Awaitable[Reply]:
    return client.request("GET", path, operation=Operation.OFFERS, **more)  # type: ignore[arg-type]


def order(client: ProviderHttp) -> Awaitable[Reply]:
    return client.request("POST", "/orders", operation=Operation.ORDER, json={})


@respx.mock
async def test_a_read_is_tried_again_with_growing_waits(make: Make, time: Time) -> None:
    route = respx.get(f"{BASE}/offers").mock(
        side_effect=[httpx.Response(500), httpx.ConnectError("x"), httpx.Response(200, json=[])]
    )
    assert (await read(make())).json() == []
    assert route.call_count == 3
    assert time.slept_s == [0.25, 0.5]


@respx.mock
async def test_a_read_gives_up_after_its_attempts(make: Make) -> None:
    route = respx.get(f"{BASE}/offers").mock(return_value=httpx.Response(503))
    with pytest.raises(ProviderUnavailable):
        await read(make())
    assert route.call_count == 3


@respx.mock
@pytest.mark.parametrize(
    ("headers", "waits"),
    [
        ({"Retry-After": "3"}, [3.0]),
        ({"Retry-After": "Sat, 21 Nov 2026 12:00:05 GMT", "Date": "Sat, 21 Nov 2026 12:00:00 GMT"}, [5.0]),
        ({}, [0.25]),
        ({"Retry-After": "soon"}, [0.25]),
    ],
)
async def test_the_provider_may_name_the_wait(
    make: Make, time: Time, headers: dict[str, str], waits: list[float]
) -> None:
    respx.get(f"{BASE}/offers").mock(side_effect=[httpx.Response(429, headers=headers), httpx.Response(200)])
    await read(make())
    assert time.slept_s == waits


@respx.mock
async def test_a_wait_that_is_too_long_is_left_to_the_caller(make: Make, time: Time) -> None:
    respx.get(f"{BASE}/offers").mock(return_value=httpx.Response(429, headers={"Retry-After": "600"}))
    with pytest.raises(RateLimited) as caught:
        await read(make())
    assert caught.value.retry_after_s == 600
    assert time.slept_s == []


@respx.mock
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.ReadTimeout("x"), OutcomeUnknown),
        (httpx.WriteError("x"), OutcomeUnknown),
        (httpx.RemoteProtocolError("x"), OutcomeUnknown),
        (httpx.Response(500), OutcomeUnknown),
        (httpx.Response(302), OrderRejected),
        (httpx.ConnectError("x"), ProviderUnavailable),
        (httpx.ConnectTimeout("x"), ProviderUnavailable),
        (httpx.PoolTimeout("x"), ProviderUnavailable),
        (httpx.Response(429), RateLimited),
        (httpx.Response(401), CredentialsRejected),
        (httpx.Response(402), QuotaExceeded),
        (httpx.Response(404), OrderRejected),
        (httpx.Response(400), OrderRejected),
    ],
)
async def test_an_order_is_sent_once(
    make: Make, answer: httpx.Response | Exception, error: type[ProviderError]
) -> None:
    route = respx.post(f"{BASE}/orders").mock(side_effect=[answer])
    with pytest.raises(error):
        await order(make())
    assert route.call_count == 1


@respx.mock
async def test_what_is_declared_repeatable_is_repeated(make: Make) -> None:
    route = respx.delete(f"{BASE}/leases/1").mock(side_effect=[httpx.ReadTimeout("x"), httpx.Response(204)])
    client = make()
    await client.request("DELETE", "/leases/1", operation=Operation.RELEASE, repeatable=True)
    assert route.call_count == 2


@respx.mock
async def test_a_lost_lease_is_told_from_a_lost_feed(make: Make) -> None:
    respx.get(f"{BASE}/leases/1").mock(return_value=httpx.Response(404))
    respx.get(f"{BASE}/offers").mock(return_value=httpx.Response(404))
    client = make()
    with pytest.raises(LeaseNotFound):
        await client.request("GET", "/leases/1", operation=Operation.LEASES)
    with pytest.raises(PayloadUnreadable):
        await read(client)


@respx.mock
async def test_a_body_is_bounded(make: Make) -> None:
    respx.get(f"{BASE}/offers").mock(return_value=httpx.Response(200, content=b"x" * 1001))
    respx.post(f"{BASE}/orders").mock(return_value=httpx.Response(200, content=b"x" * 1001))
    client = make(HttpPolicy(max_bytes=1000))
    with pytest.raises(PayloadUnreadable):
        await read(client)
    with pytest.raises(OutcomeUnknown):
        await order(client)
    assert len((await read(client, max_bytes=2000)).body) == 1001


@respx.mock
async def test_lines_are_bounded_too(make: Make) -> None:
    respx.get(f"{BASE}/prices").mock(return_value=httpx.Response(200, text="a\nb\nc"))
    respx.get(f"{BASE}/broken").mock(return_value=httpx.Response(500))
    client = make()
    assert [line async for line in client.read_lines("/prices")] == ["a", "b", "c"]
    with pytest.raises(PayloadUnreadable):
        _ = [line async for line in client.read_lines("/prices", max_bytes=2)]
    with pytest.raises(ProviderUnavailable):
        _ = [line async for line in client.read_lines("/broken")]


async def test_the_whole_call_has_an_end(make: Make) -> None:
    async def never(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(30)
        return httpx.Response(200)

    with respx.mock:
        respx.get(f"{BASE}/offers").mock(side_effect=never)
        respx.post(f"{BASE}/orders").mock(side_effect=never)
        client = make(HttpPolicy(total_s=0.02, attempts=1))
        with pytest.raises(ProviderUnavailable):
            await read(client)
        with pytest.raises(OutcomeUnknown):
            await order(client)


@respx.mock
async def test_calls_keep_their_distance(make: Make, time: Time) -> None:
    respx.post(f"{BASE}/orders").mock(return_value=httpx.Response(200))
    respx.get(f"{BASE}/offers").mock(return_value=httpx.Response(200))
    client = make(HttpPolicy(interval_s={Operation.ORDER: 12.0}, any_interval_s=1.0))
    await order(client)
    await order(client)
    await read(client)
    assert time.slept_s == [12.0, 1.0]


@respx.mock
async def test_the_breaker_opens_for_one_operation_and_lets_one_call_try(make: Make, time: Time) -> None:
    offers = respx.get(f"{BASE}/offers").mock(return_value=httpx.Response(500))
    respx.get(f"{BASE}/leases").mock(return_value=httpx.Response(200, json=[]))
    client = make(HttpPolicy(attempts=1, breaker_failures=3, breaker_open_s=20.0))
    for _ in range(5):
        with pytest.raises(ProviderUnavailable):
            await read(client)
    assert offers.call_count == 3
    await client.request("GET", "/leases", operation=Operation.LEASES)
    time.now_s += 21
    offers.mock(return_value=httpx.Response(200))
    await read(client)
    await read(client)
    assert offers.call_count == 5


@respx.mock
async def test_an_open_breaker_says_until_when(make: Make, time: Time) -> None:
    route = respx.get(f"{BASE}/offers").mock(side_effect=httpx.ConnectError("x"))
    client = make(HttpPolicy(attempts=1, breaker_failures=2, breaker_open_s=20.0))
    for _ in range(2):
        with pytest.raises(ProviderUnavailable, match="no answer"):
            await read(client)
    time.now_s += 5
    for call in (read(client), anext(client.read_lines("/offers"))):
        with pytest.raises(ProviderUnavailable, match=r"until 2026-11-21 12:00:15 UTC") as caught:
            await call
        assert caught.value.until == datetime(2026, 11, 21, 12, 0, 15, tzinfo=UTC)
    assert client.paused_until() == {"offers": datetime(2026, 11, 21, 12, 0, 15, tzinfo=UTC)}
    assert route.call_count == 2


@respx.mock
async def test_a_try_that_fails_keeps_the_breaker_open(make: Make, time: Time) -> None:
    route = respx.get(f"{BASE}/offers").mock(return_value=httpx.Response(500))
    client = make(HttpPolicy(attempts=1, breaker_failures=2, breaker_open_s=20.0))
    for seconds, sent in ((0, 1), (0, 2), (19, 2), (1, 3), (19, 3), (1, 4)):
        time.now_s += seconds
        with pytest.raises(ProviderUnavailable):
            await read(client)
        assert route.call_count == sent


def test_while_one_call_tries_the_others_wait() -> None:
    breaker = Breaker(failures=1, open_s=20)
    breaker.note(True, now=0)
    assert [breaker.wait_s(now) for now in (5, 20, 20, 21)] == [15, 0, 20, 19]
    breaker.note(False, now=22)
    assert breaker.wait_s(22) == breaker.wait_s(23) == 0


@respx.mock
async def test_lines_count_for_the_breaker_and_keep_the_pace(make: Make, time: Time) -> None:
    respx.get(f"{BASE}/prices").mock(return_value=httpx.Response(500))
    client = make(HttpPolicy(attempts=1, breaker_failures=2, any_interval_s=3.0))
    for _ in range(2):
        with pytest.raises(ProviderUnavailable, match="HTTP 500"):
            await anext(client.read_lines("/prices"))
    with pytest.raises(ProviderUnavailable, match="until"):
        await read(client)
    assert time.slept_s == [3.0]


@respx.mock
async def test_refusals_do_not_open_the_breaker(make: Make) -> None:
    route = respx.post(f"{BASE}/orders").mock(return_value=httpx.Response(400))
    client = make(HttpPolicy(breaker_failures=2))
    for _ in range(4):
        with pytest.raises(OrderRejected):
            await order(client)
    assert route.call_count == 4


@respx.mock
async def test_secrets_are_struck_out_of_errors(make: Make) -> None:
    respx.get(f"{BASE}/offers").mock(return_value=httpx.Response(401, text="key k3y and token t0ken"))
    client = make(secrets=("k3y",))
    client.add_secret("t0ken")
    with pytest.raises(CredentialsRejected) as caught:
        await read(client)
    assert "k3y" not in str(caught.value)
    assert "t0ken" not in str(caught.value)


@respx.mock
async def test_a_query_does_not_come_out_in_transport_errors(make: Make) -> None:
    respx.get(f"{BASE}/offers").mock(side_effect=httpx.ReadTimeout("GET /offers?api_key=k3y"))
    with pytest.raises(ProviderUnavailable) as caught:
        await read(make(HttpPolicy(attempts=1)), params={"api_key": "k3y"})
    assert "k3y" not in str(caught.value)
    assert caught.value.__cause__ is None


@respx.mock
async def test_the_request_id_is_kept_for_the_audit(make: Make) -> None:
    respx.get(f"{BASE}/offers").mock(return_value=httpx.Response(200, headers={"X-Request-Id": "r-1"}))
    respx.post(f"{BASE}/orders").mock(return_value=httpx.Response(400, headers={"x-amzn-RequestId": "r-2"}))
    client = make()
    assert (await read(client)).request_id == "r-1"
    with pytest.raises(OrderRejected) as caught:
        await order(client)
    assert caught.value.request_id == "r-2"


class _Answer(BaseModel):
    count: int


@respx.mock
async def test_nonsense_after_an_order_leaves_its_outcome_open(make: Make) -> None:
    respx.get(f"{BASE}/offers").mock(return_value=httpx.Response(200, json={"count": "many"}))
    respx.post(f"{BASE}/orders").mock(return_value=httpx.Response(200, text="<html>"))
    client = make()
    with pytest.raises(PayloadUnreadable, match="count"):
        (await read(client)).read(_Answer)
    with pytest.raises(OutcomeUnknown):
        (await order(client)).read(_Answer)


@respx.mock
async def test_the_adapter_says_what_an_error_means() -> None:
    def classify(reply: Reply) -> ProviderError:
        return InsufficientCapacity("somebody", reply.text)

    respx.post(f"{BASE}/orders").mock(return_value=httpx.Response(400, text="none left"))
    client = ProviderHttp("somebody", BASE, classify)
    with pytest.raises(InsufficientCapacity, match="none left"):
        await order(client)
    await client.aclose()


@respx.mock
async def test_at_most_so_many_calls_at_once(make: Make) -> None:
    running, most = 0, 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return httpx.Response(200)

    respx.get(f"{BASE}/offers").mock(side_effect=answer)
    client = make(HttpPolicy(concurrency=2))
    await asyncio.gather(*(read(client) for _ in range(6)))
    assert most == 2


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8090/vast", True),
        ("http://localhost:8090", True),
        ("http://[::1]:8090", True),
        ("https://console.vast.ai", False),
        ("https://127.evil.example", False),
    ],
)
def test_loopback_is_this_machine(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected
