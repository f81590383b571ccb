"""Keys at the start of real brokers: what is refused, what ends, what is used again."""

from __future__ import annotations

import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from providers.sandbox import SandboxHandle
from tests.cli.running import QUICKSTART, broker
from tests.e2e.processes import BROKER, Running, clean_environment, free_port, start, wait_for

pytestmark = pytest.mark.xdist_group("up")

OLD, NEW = "broker_live_old_0123456789abcdef", "broker_live_new_0123456789abcdef"


def settings(folder: Path, **extra: str) -> dict[str, str]:
    """A broker on a SQLite file in ``folder``."""
    usual = {
        "BROKER_DATABASE_URL": f"sqlite:///{folder / 'broker.db'}",
        "BROKER_POLL_SECONDS": "3600",
        "BROKER_PORT": str(free_port()),
    }
    return clean_environment(**(usual | extra))


NOBODY = {"BROKER_SANDBOX_URL": "http://127.0.0.1:9"}
"""A market that does not answer."""


def refused(folder: Path, **extra: str) -> str:
    """What ``broker serve`` says when it does not start."""
    done = subprocess.run(
        [str(BROKER), "serve"],
        cwd=folder,
        env=settings(folder, **(NOBODY | extra)),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@contextmanager
def serving(folder: Path, *command: str, **extra: str) -> Iterator[Running]:
    """A broker that answers."""
    environment = settings(folder, **extra)
    url = f"http://127.0.0.1:{environment['BROKER_PORT']}"
    running = start(command or ("serve",), url, "/healthz", folder / "log", environment)
    try:
        yield running
    finally:
        running.stop()


def status(server: Running, key: str) -> int:
    """What a key is answered."""
    return httpx.get(f"{server.url}/v1/keys", headers={"Authorization": f"Bearer {key}"}).status_code


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BROKER_ADMIN_KEY", ""),
        ("BROKER_ADMIN_KEY", "short"),
        ("BROKER_SECRETS_KEY", ""),
        ("BROKER_HOST", ""),
        ("BROKER_SANDBOX_URL", ""),
        ("BROKER_VAST_BASE_URL", ""),
        ("BROKER_SECRET_KEY", "x" * 40),
        ("BROKER_TEAM_SECRETS", '{"HF_TOKEN": ["research"]}'),
    ],
)
def test_a_start_is_refused_by_the_name_of_the_setting(tmp_path: Path, name: str, value: str) -> None:
    usual = {"BROKER_DATABASE_URL": f"sqlite:///{tmp_path / 'broker.db'}", "BROKER_PORT": "0"} | NOBODY
    done = broker("serve", env=usual | {name: value})
    assert done.exit_code == 2, done.stderr
    assert name in done.stderr


def test_a_new_admin_key_ends_the_one_before_for_good(tmp_path: Path) -> None:
    with serving(tmp_path, **NOBODY, BROKER_ADMIN_KEY=OLD) as server:
        assert (status(server, OLD), status(server, NEW)) == (200, 401)
        cookies = httpx.post(f"{server.url}/signin", data={"key": OLD}).cookies
        assert httpx.post(f"{server.url}/signin", data={"key": ""}).status_code == 401
    with serving(tmp_path, **NOBODY, BROKER_ADMIN_KEY=NEW) as server:
        assert (status(server, OLD), status(server, NEW)) == (401, 200)
        assert httpx.get(f"{server.url}/v1/keys", cookies=cookies).status_code == 401
    told = refused(tmp_path, BROKER_ADMIN_KEY=OLD)
    assert "BROKER_ADMIN_KEY" in told
    assert "replaced or revoked" in told
    with serving(tmp_path, **NOBODY) as server:
        assert (status(server, OLD), status(server, NEW)) == (401, 200)
        assert re.search(
            r"BROKER_ADMIN_KEY is not set, but .*broker keys --revoke env-", server.log.read_text()
        )


LINK = re.compile(r"open once, within 10 minutes: (http://127\.0\.0\.1:\d+/signin/link\?token=[\w-]+)")


def local_key(server: Running) -> tuple[str, str]:
    """What ``up`` says of its key, and the key that the command it prints takes from the file."""
    line = re.compile(r"admin key (\(shown once\): \S+|in \S+ is valid until 20)[^$]*\$\(cat (\S+)\)")
    found = wait_for("the key", 60, lambda: line.search(server.log.read_text()))
    return found[1].partition(":")[0], Path(found[2]).read_text().strip()


def test_up_uses_its_local_key_again(tmp_path: Path, sandbox_market: SandboxHandle) -> None:
    """One seller is enough for keys; ``test_up.py`` has the market of all of them."""
    command, file = ("up", "--workloads", str(QUICKSTART)), tmp_path / "broker.db.admin-key"
    seller = {"BROKER_VERDA_BASE_URL": f"{sandbox_market.url}/verda"}
    with serving(tmp_path, *command, **seller) as server:
        assert (first := local_key(server))[0] == "(shown once)"
        assert first[1] in server.log.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with serving(tmp_path, *command, **seller) as server:
        told, key = local_key(server)
        link = wait_for("the link", 60, lambda: LINK.search(server.log.read_text()))[1]
        wait_for("what to try next", 120, lambda: "broker plans plan-" in server.log.read_text())
        log = server.log.read_text()
        assert log.index("planning 2 workloads") < log.index(link), "the plan is there once it is served"
        assert "broker_live_" not in log, "it was shown once"
        with httpx.Client() as browser:
            opened = browser.get(link)
            assert (opened.status_code, opened.headers["Location"]) == (303, "/signin/done")
            assert "All teams" in browser.get(f"{server.url}/").text
        assert httpx.get(link).status_code == 401
        assert re.search(r"1 provider: [\d,]+ offers, ", server.log.read_text())
        assert told == f"in {file} is valid until 20"
        assert (key, status(server, key)) == (first[1], 200)
        headers = {"Authorization": f"Bearer {key}"}
        assert httpx.get(f"{server.url}/v1/plans", headers=headers).json()["items"]
        keys = httpx.get(f"{server.url}/v1/keys", headers=headers).json()["items"]
        assert [row["name"] for row in keys] == ["local admin"]
        assert keys[0]["expires_at"] is not None
    file.chmod(0o644)
    with serving(tmp_path, *command, **seller) as server:
        told, key = local_key(server)
        assert (told, key == first[1]) == ("(shown once)", False)
        assert (status(server, key), status(server, first[1])) == (200, 401)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
