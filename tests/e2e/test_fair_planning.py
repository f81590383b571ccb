"""Fair planning through real processes: one service of a team does not wait for another's documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e import processes
from tests.e2e.asking import services
from tests.e2e.conftest import ADMIN_KEY
from tests.e2e.processes import wait_for

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("e2e")]

SERVICES = 150
DOCUMENTS = 4
LARGE_LIMIT_S = 900.0
"""Longer than the test may take, so that a large document is done only when it is cancelled."""
ON_ITS_WAY = {"queued", "running"}


@dataclass
class Teams:
    """One server, and a client of each team."""

    large: httpx.Client
    small: httpx.Client
    anybody: httpx.Client


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    folder: Path = tmp_path_factory.mktemp("fair")
    sandbox = processes.start_sandbox(folder)
    try:
        url = f"sqlite:///{folder / 'broker.db'}"
        server = processes.start_server(folder, sandbox.url, url, ADMIN_KEY)
        try:
            with client(server.url, ADMIN_KEY) as admin:
                keys = {name: key_of(admin, name) for name in ("research", "product")}
                with (
                    client(server.url, keys["research"]) as large,
                    client(server.url, keys["product"]) as small,
                ):
                    yield Teams(large, small, admin)
        finally:
            server.stop()
    finally:
        sandbox.stop()


def client(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=120)


def key_of(admin: httpx.Client, team: str) -> str:
    answer = admin.post(
        "/v1/keys", json={"name": team, "team": team, "scopes": ["plans:read", "plans:write"]}
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["secret"])


def ask(team: httpx.Client, body: dict[str, Any], time_limit_s: float) -> str:
    answer = team.post("/v1/plans", json=body, params={"time_limit_s": time_limit_s, "gap": 0})
    assert answer.status_code == 202, answer.text
    return str(answer.headers["Location"])


def status(team: httpx.Client, path: str) -> str:
    answer = team.get(path).json()
    assert answer["status"] != "failed", answer
    return str(answer["status"])


def test_one_service_is_planned_before_a_line_of_large_documents(teams: Teams) -> None:
    large = [ask(teams.large, services("research", SERVICES), LARGE_LIMIT_S) for _ in range(DOCUMENTS)]
    first = wait_for("a large document at work", 120, lambda: first_in(teams.large, large, "running"))
    waiting = [path for path in large if path != first]
    assert sorted(teams.large.get(path).json()["position"] for path in waiting) == [1, 2, 3]

    small = ask(teams.small, services("product", 1), 2.0)
    assert teams.small.delete(first).status_code == 404

    def made() -> str | None:
        now = status(teams.small, small)
        return now if now not in ON_ITS_WAY else None

    assert wait_for("the one service", 180, made) in {"optimal", "feasible"}
    assert status(teams.large, first) == "running"
    assert {status(teams.large, path) for path in waiting} == {"queued"}

    assert teams.large.delete(first).status_code == 204
    wait_for("the turn of the next large document", 180, lambda: first_in(teams.large, waiting, "running"))
    for path in waiting:
        assert teams.large.delete(path).status_code == 204
        assert status(teams.large, path) == "cancelled"
    wait_for("nothing that waits", 60, lambda: none_waits(teams.anybody))


def first_in(team: httpx.Client, paths: list[str], state: str) -> str | None:
    return next((path for path in paths if status(team, path) == state), None)


def none_waits(anybody: httpx.Client) -> bool | None:
    return True if 'broker_plans_waiting{class="large"} 0.0' in anybody.get("/metrics").text else None
