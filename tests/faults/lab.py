"""Lives and deaths of brokers: each case is a database, a process that dies, and one that recovers."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

from broker.domain.market.offer import Offer
from tests.faults.broker_life import PATIENT_S, Place
from tests.faults.nursery import Nursery
from tests.faults.profile import USUAL
from tests.faults.stories import live, recover
from tests.postgres import PostgresServer

LIMIT_S = 240.0


@dataclass
class Figures:
    """What a matrix adds up to."""

    cases: int = 0
    orphans: list[str] = field(default_factory=list)
    doubles: list[str] = field(default_factory=list)
    ghosts: list[str] = field(default_factory=list)
    in_doubt: list[str] = field(default_factory=list)
    unheard: list[str] = field(default_factory=list)
    nameless: list[str] = field(default_factory=list)
    money: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    unknowable: list[str] = field(default_factory=list)

    def add(self, case: str, found: dict[str, Any]) -> None:
        """Counts one case."""
        self.cases += 1
        for moment, look in found.items():
            for name in ("orphans", "doubles", "ghosts", "in_doubt", "nameless"):
                getattr(self, name).extend(f"{case}, {moment}: {what}" for what in look[name])
        for name in ("money", "assumed", "unknowable"):
            getattr(self, name).extend(f"{case}: {what}" for what in found["given back"][name])
        self.in_doubt.extend(
            f"{case}: {left} held in the end" for left in [found["given back"]["held"]] if left
        )

    def wrong(self) -> list[str]:
        """Everything that is not as it must be."""
        return [*self.orphans, *self.doubles, *self.ghosts, *self.in_doubt, *self.unheard, *self.money]

    def __str__(self) -> str:
        words = f"{self.cases}, orphans {len(self.orphans)}, doubles {len(self.doubles)}"
        words += f", booked otherwise than billed {len(self.money)}"
        left = f"; left for a person where orders carry no name: {len(self.nameless)}"
        if self.assumed:
            words += f" (and {len(self.assumed)} by an hour that nobody documents)"
        if self.unknowable:
            words += f", of unknowable price {len(self.unknowable)}"
        return words + (left if self.nameless else "")


NewDatabase = Callable[[str], str]
"""Makes a migrated database for the installation of an id, and gives its URL."""


def sqlite_files(folder: Path, template: Path) -> NewDatabase:
    """Copies of the migrated SQLite file ``template``."""

    def made(install_id: str) -> str:
        path = folder / f"{install_id}.db"
        shutil.copy(template, path)
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE meta SET value = ? WHERE name = 'install_id'", (install_id,))
        return f"sqlite:///{path}"

    return made


def postgres_databases(server: PostgresServer, template: str) -> NewDatabase:
    """Copies of the migrated PostgreSQL database ``template``."""

    def made(install_id: str) -> str:
        url = server.create_database(template)
        with psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string(False)) as database:
            database.execute("UPDATE meta SET value = %s WHERE name = 'install_id'", (install_id,))
        return url

    return made


class Lab:
    """Runs cases on a market, each on a database of its own; notes go into ``folder``."""

    def __init__(self, folder: Path, new_database: NewDatabase, market_url: str) -> None:
        self._folder = folder
        self._new_database = new_database
        self._market_url = market_url
        self._nursery: Nursery | None = None
        self._cases = 0

    def close(self) -> None:
        """Ends the process that the others come from."""
        if self._nursery is not None:
            self._nursery.stop()

    def place(self, provider: str, timeout_s: float = PATIENT_S) -> Place:
        """A new database for a broker on ``provider``."""
        self._cases += 1
        url = self._new_database(f"{self._cases:08x}")
        return Place(self._market_url, provider, url, timeout_s, self._cases)

    def points_of(self, provider: str, story: str, offer: Offer | None) -> list[str]:
        """The crash points that ``story`` passes when nobody dies."""
        place, path = self.place(provider), self._folder / "points.json"
        assert self.run(live, place, story, offer, None, path) == 0
        self.recovered(place, offer)
        found: list[str] = json.loads(path.read_text())
        return found

    def dies(self, place: Place, story: str, offer: Offer | None, point: str) -> bool:
        """Whether a process that plays ``story`` came to ``point`` and died there."""
        return self.run(live, place, story, offer, point, None) == -signal.SIGKILL

    def recovered(self, place: Place, offer: Offer | None) -> dict[str, Any]:
        """What the next process found."""
        return self.reported(recover, place, offer)

    def reported(self, target: Callable[..., None], *arguments: Any) -> dict[str, Any]:
        """What a process writes to the file that is its last argument."""
        path = self._folder / "report.json"
        path.unlink(missing_ok=True)
        assert self.run(target, *arguments, path) == 0, f"{target.__name__} failed"
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def run(self, target: Callable[..., None], *arguments: Any) -> int:
        """A process of its own; its exit code."""
        if self._nursery is None:
            self._nursery = Nursery(live, self.place(USUAL[0]), "held_and_released", None, None, None)
        return self._nursery.run(target, *arguments, limit_s=LIMIT_S)
