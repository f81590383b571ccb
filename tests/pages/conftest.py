from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect
from pydantic import SecretStr

from api.app import create_app
from api.bootstrap import Product
from api.cli.installation.listening import listen
from broker.domain.basics.account import Scope
from broker.domain.market.offer import Offer
from broker.domain.planning.plan import Baseline, Plan
from broker.domain.planning.workload import PlanRequest
from broker.ports.planning import PlanOptions
from broker.settings import Settings
from tests.api.house import ADMIN_KEY, House, limit
from tests.chromium import launched
from tests.fakes.clock import FakeClock
from tests.fakes.examples import plan_on_cheapest
from tests.pages.seeding import OFFERS, seed

T = TypeVar("T")
DESK, PHONE = (1280, 900), (390, 844)
ABORTED_BY_NAVIGATION = "net::ERR_ABORTED"
REFUSED_INPUT = "status of 422"
"""What the browser itself notes of a form that comes back with its problems."""
PATIENCE_MS = 60_000
LIMIT_USD = 100
GATE = threading.Event()
"""Set: the shop's planner answers at once; cleared: it waits for it."""

Open = Callable[..., Page]


@dataclass
class Site:
    """A living broker on a port of the loopback interface; ``run`` does something inside it."""

    url: str
    keys: Mapping[str, str]
    house: House
    product: Product
    loop: asyncio.AbstractEventLoop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)


class _Server(threading.Thread):
    """uvicorn in a thread, on a loop of its own."""

    def __init__(
        self, house: House, prepare: Callable[[Product], Awaitable[object]], keys: Mapping[str, str]
    ) -> None:
        super().__init__(name="site", daemon=True)
        self.socket = listen("127.0.0.1", 0)
        self.house, self.prepare, self.teams = house, prepare, keys
        self.ready = threading.Event()
        self.keys: dict[str, str] = {}

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.product = self.house.build()
        app = create_app(self.product, scheduled=False)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
        self.server = uvicorn.Server(config)
        serving = asyncio.create_task(self.server.serve(sockets=[self.socket]))
        while not self.server.started and not serving.done():
            await asyncio.sleep(0.02)
        await self.prepare(self.product)
        for name, team in self.teams.items():
            scopes = frozenset(Scope) if team == "admin" else frozenset(Scope) - {Scope.ADMIN}
            scopes -= {Scope.SPEND_APPROVE} if name == "team" else frozenset()
            self.keys[name] = (await self.product.keys.create_key(name, team, scopes))[1]
        self.ready.set()
        await serving


@contextmanager
def served(
    house: House, prepare: Callable[[Product], Awaitable[object]], keys: Mapping[str, str]
) -> Iterator[Site]:
    """A broker, prepared and served for real; ``keys``: name and team."""
    server = _Server(house, prepare, keys)
    server.start()
    assert server.ready.wait(120), "the site did not start"
    url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
    yield Site(url, server.keys, house, server.product, server.loop)
    server.server.should_exit = True
    server.join(10)
    assert not server.is_alive()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Site]:
    """A broker with much to read in it."""
    database = tmp_path_factory.mktemp("site") / "broker.db"
    shutil.copy(migrated_sqlite, database)
    keys = {"finance": "admin", "empty": "newcomers"}
    with served(House(database, offers=OFFERS), seed, keys) as living:
        yield living


def plan_when_allowed(
    request: PlanRequest, offers: tuple[Offer, ...], as_of: Any, options: PlanOptions
) -> Plan:
    """The fake planner, with a strategy to compare with; it waits for GATE."""
    assert GATE.wait(20)
    plan = plan_on_cheapest(request, offers, as_of, options)
    strategies = (Baseline("single_shape", plan.cost_usd * 2, "one kind of node for everything"),)
    return replace(plan, baselines=strategies, bound_usd=plan.cost_usd, gap=0.0)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Site]:
    """A broker to act in: one provider that sells, a team, and finance, whose word dear plans need."""
    database = tmp_path_factory.mktemp("shop") / "broker.db"
    shutil.copy(migrated_sqlite, database)
    house = House(
        database,
        clock=FakeClock(),
        plan_call=plan_when_allowed,
        rules=limit(str(LIMIT_USD)),
        settings=Settings(
            admin_key=SecretStr(ADMIN_KEY), poll_seconds=3600, approval_limit_usd=float(LIMIT_USD)
        ),
    )
    GATE.set()
    keys = {"team": "research", "finance": "admin"}
    with served(house, lambda product: product.offers.refresh(), keys) as living:
        yield living


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; one for the module, as Playwright's loop must not run beside async tests."""
    with launched() as chromium:
        yield chromium


@pytest.fixture
def opened(site: Site, browser: Browser) -> Iterator[Open]:
    """Opens pages of the site to read."""
    with watched(site, browser) as open_page:
        yield open_page


@pytest.fixture
def shopping(shop: Site, browser: Browser) -> Iterator[Open]:
    """Opens pages of the site to act in."""
    with watched(shop, browser) as open_page:
        yield open_page


@contextmanager
def watched(site: Site, browser: Browser) -> Iterator[Open]:
    """Opens pages that tell of every console message, failed request and request off the host."""
    complaints: list[str] = []
    host = urlsplit(site.url).netloc

    def watch(page: Page) -> None:
        def seen(url: str) -> None:
            if urlsplit(url).scheme != "data" and urlsplit(url).netloc != host:
                complaints.append(f"request off the host: {url}")

        def failed(request: Request) -> None:
            if request.failure != ABORTED_BY_NAVIGATION:
                complaints.append(f"failed: {request.url} {request.failure}")

        def noted(message: ConsoleMessage) -> None:
            if REFUSED_INPUT not in message.text:
                complaints.append(f"{message.type}: {message.text}")

        page.on("console", noted)
        page.on("pageerror", lambda error: complaints.append(f"page error: {error}"))
        page.on("request", lambda request: seen(request.url))
        page.on("requestfailed", failed)
        page.on("response", lambda r: complaints.append(f"{r.status} {r.url}") if r.status >= 500 else None)

    expect.set_options(timeout=PATIENCE_MS)
    with ExitStack() as stack:

        def open_page(
            size: tuple[int, int] = DESK,
            who: str | None = "finance",
            scheme: str = "light",
            scripts: bool = True,
        ) -> Page:
            context = browser.new_context(
                viewport={"width": size[0], "height": size[1]},
                color_scheme="dark" if scheme == "dark" else "light",
                base_url=site.url,
                java_script_enabled=scripts,
            )
            stack.callback(context.close)
            if who is not None:
                cookie = {"name": "broker_session", "value": site.keys[who], "url": site.url}
                context.add_cookies([cookie])  # type: ignore[list-item]
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            watch(page)
            return page

        yield open_page
    assert complaints == []
