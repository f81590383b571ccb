"""What tests share: databases of both kinds, and quick, repeatable property tests."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from broker.store import Store, create_store
from providers.sandbox import SandboxHandle, start_in_background
from tests.depth import examples
from tests.postgres import PostgresServer

# Where nobody sets logs up, structlog draws every local of a traceback, which takes a minute of a product.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """What a test sets up of logs ends with it: a level that it wants hides what the next one looks for."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("repeatable")

# What is imported and collected is no garbage; to look through it again and again costs a tenth of the time.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a module prepares for all of its tests is prepared by one process, not by each."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and _shares_what_its_module_makes(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def _shares_what_its_module_makes(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function):
        return False
    found = [fixture for fixtures in item._fixtureinfo.name2fixturedefs.values() for fixture in fixtures]
    return any(one.scope == "module" and one.baseid.endswith(".py") for one in found)


def pytest_collection_finish() -> None:
    """From here on garbage is collected, but for what is there by now, and less often."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


DATABASES = ("sqlite", "postgresql")


async def migrate(url: str) -> None:
    """Brings the database at ``url`` to the newest revision."""
    store = create_store(url)
    await store.migrate()
    await store.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running PostgreSQL server, this process's own."""
    server = PostgresServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_url_factory(postgres_server: PostgresServer) -> Callable[[], str]:
    """Makes a new, empty PostgreSQL database and gives its URL, good for other processes too."""
    return postgres_server.create_database


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the newest schema, to be copied."""
    path = tmp_path_factory.mktemp("template") / "broker.db"
    asyncio.run(migrate(f"sqlite:///{path}"))
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: PostgresServer) -> str:
    """URL of a PostgreSQL database with the newest schema, to be copied."""
    url = postgres_server.create_database()
    asyncio.run(migrate(url))
    return url


@pytest.fixture(params=DATABASES)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty database of the test's own, of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'broker.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database()
    yield url
    server.drop_database(url)


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a migrated database of the test's own, of each kind."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "broker.db")
        yield f"sqlite:///{tmp_path / 'broker.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database(request.getfixturevalue("migrated_postgres"))
    yield url
    server.drop_database(url)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """An open, migrated store, on SQLite and on PostgreSQL."""
    opened = create_store(database_url)
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def sandbox_market(request: pytest.FixtureRequest) -> Iterator[SandboxHandle]:
    """A sandbox market of a module's own, drawn by its ``SANDBOX_SEED`` where it has one."""
    handle = start_in_background(0, getattr(request.module, "SANDBOX_SEED", 11))
    yield handle
    handle.stop()
