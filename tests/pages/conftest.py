from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser

from api.app import create_app
from api.bootstrap import Product
from api.cli.listening import listen
from broker.domain.account import Scope
from tests.api.house import House
from tests.chromium import launched
from tests.pages.seeding import OFFERS, seed


@dataclass
class Site:
    """A living broker on a port of the loopback interface."""

    url: str
    keys: dict[str, str]


class _Server(threading.Thread):
    """uvicorn in a thread, on a loop of its own."""

    def __init__(self, house: House) -> None:
        super().__init__(name="site", daemon=True)
        self.socket = listen("127.0.0.1", 0)
        self.house = house
        self.ready = threading.Event()
        self.keys: dict[str, str] = {}

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        product = self.house.build()
        app = create_app(product, scheduled=False)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
        self.server = uvicorn.Server(config)
        serving = asyncio.create_task(self.server.serve(sockets=[self.socket]))
        while not self.server.started and not serving.done():
            await asyncio.sleep(0.02)
        await seed(product)
        for name, team in (("finance", "admin"), ("empty", "newcomers")):
            self.keys[name] = await self._key(product, name, team)
        self.ready.set()
        await serving

    async def _key(self, product: Product, name: str, team: str) -> str:
        scopes = frozenset(Scope) if team == "admin" else frozenset(Scope) - {Scope.ADMIN}
        return (await product.accounts.create_key(name, team, scopes))[1]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[Site]:
    """A seeded broker, served for real."""
    database = tmp_path_factory.mktemp("site") / "broker.db"
    shutil.copy(migrated_sqlite, database)
    server = _Server(House(database, offers=OFFERS))
    server.start()
    assert server.ready.wait(20), "the site did not start"
    yield Site(f"http://127.0.0.1:{server.socket.getsockname()[1]}", server.keys)
    server.server.should_exit = True
    server.join(10)
    assert not server.is_alive()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; one for the module, as Playwright's loop must not run beside async tests."""
    with launched() as chromium:
        yield chromium
