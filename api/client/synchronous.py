"""The synchronous client of a running broker, which the command line uses too."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from api.client.answers import failure_of, problem_of
from api.client.calls import TIMEOUT_S, PublishedCalls
from api.client.transport import Call
from api.schemas.finance.spend import AS_OF_HEADER
from broker.domain.basics.errors import FieldProblem, InputError
from broker.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")
_NO_KEY = re.compile(r"[^!-~]")


class _BlockingCalls(PublishedCalls):
    """The calls over a synchronous HTTP client: none of them ever waits for an event loop."""

    def __init__(self, base_url: str, http: httpx.Client) -> None:
        super().__init__(base_url)
        self._http = http

    async def _send(self, call: Call, params: Mapping[str, str | Sequence[str]]) -> httpx.Response:
        return self._http.request(
            call.method,
            call.path,
            params=params,
            headers=call.headers,
            json=call.body,
            content=call.content,
        )

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  no event loop runs it


def _result(answer: Awaitable[T]) -> T:
    """What a call gives that never waits."""
    steps = answer.__await__()
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a call of the synchronous client waits for an event loop")


def _items(listing: AsyncIterator[T]) -> Iterator[T]:
    while True:
        try:
            item = _result(anext(listing))
        except StopAsyncIteration:
            return
        yield item


def waited(
    call: Callable[Concatenate[PublishedCalls, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BrokerClient, P], T]:
    """The synchronous method of a call."""

    @wraps(call)
    def ask(self: BrokerClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _result(call(self._calls, *args, **kwargs))

    return ask


def listed(
    call: Callable[Concatenate[PublishedCalls, P], AsyncIterator[T]],
) -> Callable[Concatenate[BrokerClient, P], Iterator[T]]:
    """The synchronous method of a list."""

    @wraps(call)
    def ask(self: BrokerClient, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _items(call(self._calls, *args, **kwargs))

    told = inspect.signature(call)
    told = told.replace(return_annotation=told.return_annotation.removeprefix("Async"))
    ask.__dict__["__signature__"] = told
    return ask


class BrokerClient:
    """Calls one server with one key, and closes its connections at the end of a ``with`` block.

    An error of the server is raised as the BrokerError that it means. ``timeout_s`` limits one request.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._base_url = base_url
        self._http = httpx.Client(
            base_url=base_url,
            headers=authorization(key),
            timeout=timeout_s,
            transport=transport,
        )
        self._calls = _BlockingCalls(base_url, self._http)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    list_offers = listed(PublishedCalls.list_offers)
    find_offer = waited(PublishedCalls.find_offer)
    list_providers = listed(PublishedCalls.list_providers)
    list_offer_days = listed(PublishedCalls.list_offer_days)
    list_gpu_days = listed(PublishedCalls.list_gpu_days)
    forecast_offer = waited(PublishedCalls.forecast_offer)
    find_market = waited(PublishedCalls.find_market)
    plan = waited(PublishedCalls.plan)
    estimate = waited(PublishedCalls.estimate)
    check_plan = waited(PublishedCalls.check_plan)
    simulate_plan = waited(PublishedCalls.simulate_plan)
    find_confidence_prices = waited(PublishedCalls.find_confidence_prices)
    read_source = waited(PublishedCalls.read_source)
    ask_for_plan = waited(PublishedCalls.ask_for_plan)
    continue_plan = waited(PublishedCalls.continue_plan)
    wait_for_plan = waited(PublishedCalls.wait_for_plan)
    find_plan = waited(PublishedCalls.find_plan)
    list_plans = listed(PublishedCalls.list_plans)
    cancel_plan = waited(PublishedCalls.cancel_plan)
    ask_what_if = waited(PublishedCalls.ask_what_if)
    find_comparison = waited(PublishedCalls.find_comparison)
    compare_plans = waited(PublishedCalls.compare_plans)
    set_intended = waited(PublishedCalls.set_intended)
    reserve_plan = waited(PublishedCalls.reserve_plan)
    reserve_offer = waited(PublishedCalls.reserve_offer)
    quote_offer = waited(PublishedCalls.quote_offer)
    quote_plan = waited(PublishedCalls.quote_plan)
    find_reservation = waited(PublishedCalls.find_reservation)
    list_reservations = listed(PublishedCalls.list_reservations)
    list_fleets = listed(PublishedCalls.list_fleets)
    quote_hold = waited(PublishedCalls.quote_hold)
    hold = waited(PublishedCalls.hold)
    release = waited(PublishedCalls.release)
    list_shortfalls = waited(PublishedCalls.list_shortfalls)
    estimate_release = waited(PublishedCalls.estimate_release)
    estimate_plan_release = waited(PublishedCalls.estimate_plan_release)
    extend = waited(PublishedCalls.extend)
    list_reoptimizations = listed(PublishedCalls.list_reoptimizations)
    find_reoptimization = waited(PublishedCalls.find_reoptimization)
    decide_proposal = waited(PublishedCalls.decide_proposal)
    list_audit = listed(PublishedCalls.list_audit)
    list_keys = listed(PublishedCalls.list_keys)
    list_ssh_keys = listed(PublishedCalls.list_ssh_keys)
    add_ssh_key = waited(PublishedCalls.add_ssh_key)
    remove_ssh_key = waited(PublishedCalls.remove_ssh_key)
    finish = waited(PublishedCalls.finish)
    release_plan = waited(PublishedCalls.release_plan)
    quote_extension = waited(PublishedCalls.quote_extension)
    find_calendar = waited(PublishedCalls.find_calendar)
    find_endpoints = waited(PublishedCalls.find_endpoints)
    create_key = waited(PublishedCalls.create_key)
    revoke_key = waited(PublishedCalls.revoke_key)
    list_quarantine = listed(PublishedCalls.list_quarantine)
    believe_price = waited(PublishedCalls.believe_price)
    set_up_provider = waited(PublishedCalls.set_up_provider)
    list_budgets = waited(PublishedCalls.list_budgets)
    put_budget = waited(PublishedCalls.put_budget)
    delete_budget = waited(PublishedCalls.delete_budget)
    list_approvals = listed(PublishedCalls.list_approvals)
    decide = waited(PublishedCalls.decide)
    find_changes = waited(PublishedCalls.find_changes)
    find_interval = waited(PublishedCalls.find_interval)
    close_month = waited(PublishedCalls.close_month)
    find_units = waited(PublishedCalls.find_units)
    find_savings = waited(PublishedCalls.find_savings)
    find_spend = waited(PublishedCalls.find_spend)
    create_webhook = waited(PublishedCalls.create_webhook)
    list_webhooks = listed(PublishedCalls.list_webhooks)
    find_webhook = waited(PublishedCalls.find_webhook)
    test_webhook = waited(PublishedCalls.test_webhook)
    delete_webhook = waited(PublishedCalls.delete_webhook)

    def download(self, path: str, file: Path, params: Mapping[str, str | None]) -> str:
        """Streams an answer into ``file`` and returns its ``Broker-As-Of`` header."""
        given = {name: value for name, value in params.items() if value is not None}
        try:
            with self._http.stream("GET", path, params=given) as answer, file.open("wb") as out:
                if not answer.is_success:
                    answer.read()
                    raise problem_of(answer)
                for block in answer.iter_bytes():
                    out.write(block)
                return str(answer.headers.get(AS_OF_HEADER, ""))
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise failure_of(self._base_url, f"GET {path}", error) from error


def connect(settings: Settings | None = None) -> BrokerClient:
    """A client of the server that BROKER_URL names, with BROKER_KEY; InputError for what is no key."""
    return BrokerClient(*address_and_key(settings or Settings()))


def address_and_key(settings: Settings) -> tuple[str, str]:
    """The server's address and the key that the settings name."""
    key = settings.key.get_secret_value().strip() if settings.key is not None else ""
    if _NO_KEY.search(key):
        expected = "a key as `broker keys --new` prints it"
        problem = FieldProblem("BROKER_KEY", "characters that are not allowed in a key", expected)
        raise InputError("environment", (problem,))
    return settings.url, key


def authorization(key: str) -> dict[str, str]:
    """The header that carries a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}
