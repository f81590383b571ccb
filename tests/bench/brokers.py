"""Several brokers, Dask workers and a sandbox market, each a process of its own, on one PostgreSQL server."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.e2e.processes import Running, clean_environment, free_port, start, start_sandbox, start_server
from tests.postgres import PostgresServer

ADMIN_KEY = "broker_live_bench_0123456789abcdef0123456789abcdef"
HEADERS = {"Authorization": f"Bearer {ADMIN_KEY}"}
BROKERS, WORKERS = 3, 2
READY_LIMIT_S = 90.0
STOCKED = {"provider": "crusoe", "sku": "a100-80gb.1x", "region": "us-east1-a", "stock": 500}


@dataclass
class Ground:
    """What runs, and how to start what ended again."""

    folder: Path
    postgres: PostgresServer
    database_url: str
    sandbox: Running
    scheduler_port: int
    running: list[Running] = field(default_factory=list)
    brokers: list[Running] = field(default_factory=list)
    workers: list[Running] = field(default_factory=list)

    def start_broker(self) -> Running:
        """One more broker, ready."""
        settings = {
            "BROKER_SOLVER_EXECUTOR": f"dask://127.0.0.1:{self.scheduler_port}",
            "BROKER_REOPTIMIZE_SECONDS": "3600",
            "BROKER_DRAIN_SECONDS": "5",
            "BROKER_LOG_FORMAT": "json",
        }
        own = self._own("broker")
        urls = self.sandbox.url, self.database_url
        return self._kept(start_server(own, *urls, ADMIN_KEY, READY_LIMIT_S, **settings))

    def start_scheduler(self) -> None:
        """The scheduler of the Dask cluster."""
        self._start_dask("scheduler", "--host", "127.0.0.1", "--port", str(self.scheduler_port))

    def start_worker(self) -> Running:
        """One more worker of one thread."""
        return self._start_dask(
            "worker", f"tcp://127.0.0.1:{self.scheduler_port}", "--no-nanny", "--nthreads", "1"
        )

    def stop(self) -> None:
        """Ends all brokers, workers and the scheduler."""
        for one in reversed(self.running):
            one.stop()

    def logs(self) -> Iterator[Path]:
        """The logs of all brokers that ever ran."""
        return self.folder.glob("broker-*/*.log")

    def query(self, statement: str, *given: Any) -> list[tuple[Any, ...]]:
        """Rows of the database."""
        with psycopg.connect(self.database_url, connect_timeout=10) as connection:
            return connection.execute(statement.encode(), given).fetchall()

    def leader(self) -> tuple[int, int]:
        """The epoch, and the number of the broker that leads."""
        ((epoch, worker),) = self.query("SELECT epoch, worker_id FROM leaders")
        pid = int(worker.rsplit("-", 2)[1])
        return epoch, next(n for n, broker in enumerate(self.brokers) if broker.process.pid == pid)

    def _start_dask(self, what: str, *arguments: str) -> Running:
        own, port = self._own(what), free_port()
        said = [what, *arguments, "--dashboard-address", f"127.0.0.1:{port}"]
        program = (sys.executable, "-m", "dask")
        environment = clean_environment(DASK_TEMPORARY_DIRECTORY=str(own))
        url = f"http://127.0.0.1:{port}"
        return self._kept(start(said, url, "/health", own / "dask.log", environment, program=program))

    def _own(self, what: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{what}-", dir=self.folder))

    def _kept(self, one: Running) -> Running:
        self.running.append(one)
        return one


@contextmanager
def started() -> Iterator[Ground]:
    """All processes; they end, and their folders go, whatever happens."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-mixed-load-")))
        postgres = PostgresServer()
        stack.callback(postgres.stop)
        sandbox = start_sandbox(folder)
        stack.callback(sandbox.stop)
        httpx.post(sandbox.url + "/_sandbox/market", json=STOCKED).raise_for_status()
        ground = Ground(folder, postgres, postgres.create_database(), sandbox, free_port())
        stack.callback(ground.stop)
        ground.start_scheduler()
        ground.workers += [ground.start_worker() for _ in range(WORKERS)]
        ground.brokers += [ground.start_broker() for _ in range(BROKERS)]
        yield ground
