"""No secret stands in what a broker writes, whatever fails; and a search that would find one."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, quote_plus

import httpx
import pytest

from tests.e2e.processes import ROOT, Running, clean_environment, free_port, start, wait_for

SECRETS = {
    "admin key": "broker_live_planted_Adm1nK3y0123456789abcdefAdm1nK3y",
    "foreign bearer": "broker_live_f0re1gn_An0therTeamsKey0123456789abcdef",
    "secrets key": "Sea1ing/Key+0123456789abcdef0123456789abcde=",
    "provider credential": "lambdaCredential-9f8e7d6c5b4a",
    "password of a URL": "dbPassw0rd/with%odd",
    "path of a webhook": "T0PATHTOKEN/B0/xyzzyxyzzyxyzzy",
    "query of a webhook": "queryTokenOfAWebhook123456",
    "idempotency key": "idemp0tency-key-of-somebody",
    "session cookie": "s3ssionC00kie_0123456789abcdefghijklm",
}
"""What is planted; the last seven come with requests or settings, so that the log cannot know them all."""

PASSWORD = quote(SECRETS["password of a URL"], safe="")


def forms_of(text: str) -> set[str]:
    """A text as it is, in a URL, in base64 at each of three places, and in JSON."""
    raw = text.encode()
    coded = {
        base64.b64encode(b"\0" * before + raw)[(before * 8 + 5) // 6 : (before + len(raw)) * 8 // 6].decode()
        for before in range(3)
    }
    return {text, quote(text, safe=""), quote_plus(text), json.dumps(text)[1:-1], *coded}


def found_in(output: str) -> set[str]:
    """Names of secrets that stand in ``output``, in whatever form."""
    return {name for name, text in SECRETS.items() if any(form in output for form in forms_of(text))}


class _Echo(BaseHTTPRequestHandler):
    """A provider that answers every second time with 500, else with garbage: both repeat the credential."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        body = json.dumps(
            {"error": {"message": f"no: {dict(self.headers)} {SECRETS['provider credential']}"}}
        )
        broken = type(self).asked % 2
        self.send_response(500 if broken else 200)
        self.end_headers()
        self.wfile.write(body.encode() if broken else body.encode()[:-5])

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def echoing_provider() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Broken:
    """A broker with planted secrets."""

    running: Running
    client: httpx.Client
    database: Path

    def output(self) -> str:
        return self.running.log.read_text()


def environment(folder: Path, log_format: str, provider: str) -> dict[str, str]:
    return clean_environment(
        BROKER_DATABASE_URL=f"sqlite:///{folder / 'broker.db'}",
        BROKER_ADMIN_KEY=SECRETS["admin key"],
        BROKER_SECRETS_KEY=SECRETS["secrets key"],
        BROKER_LAMBDA_API_KEY=SECRETS["provider credential"],
        BROKER_LAMBDA_BASE_URL=provider,
        BROKER_WEBHOOK_ALLOW_LOOPBACK="true",
        BROKER_WEBHOOK_SECONDS="0.5",
        BROKER_POLL_SECONDS="1",
        BROKER_LOG_FORMAT=log_format,
        PYTHONPATH=str(ROOT),
    )


FORMATS = ["json", pytest.param("console", marks=pytest.mark.slow)]


@pytest.fixture(params=FORMATS)
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broken]:
    with echoing_provider() as provider:
        port = free_port()
        given = environment(tmp_path, request.param, provider) | {"BROKER_PORT": str(port)}
        url = f"http://127.0.0.1:{port}"
        program = [sys.executable, "-m", "tests.logs.broken_broker"]
        running = start([], url, "/healthz", tmp_path / "server.log", given, program=program)
        try:
            with httpx.Client(base_url=url, timeout=240) as client:
                yield Broken(running, client, tmp_path / "broker.db")
        finally:
            running.stop()


def headers(key: str) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {key}",
        "Idempotency-Key": SECRETS["idempotency key"],
        "Cookie": f"broker_session={SECRETS['session cookie']}",
    }


def webhook_url(port: int) -> str:
    path, query = SECRETS["path of a webhook"], SECRETS["query of a webhook"]
    return f"http://127.0.0.1:{port}/services/{path}?token={query}"


def walk(client: httpx.Client) -> list[int]:
    """Every route of the document, as administrator and as a stranger, with malformed bodies."""
    admin, stranger = headers(SECRETS["admin key"]), headers(SECRETS["foreign bearer"])
    document = client.get("/openapi.json").json()
    everything = " ".join(SECRETS.values())
    bodies = (
        ("application/json", json.dumps({"url": webhook_url(1), "team": SECRETS, "key": everything})),
        ("application/json", f'{{"a": "{everything}'),
        ("application/yaml", f"team: [{everything}\n  - {{"),
    )
    statuses = []
    for path, operations in document["paths"].items():
        filled = re.sub(r"\{[^}]*\}", quote(SECRETS["query of a webhook"]), path)
        for method in operations:
            for number, (kind, body) in enumerate(
                bodies if method in {"post", "put", "patch"} else bodies[:1]
            ):
                for who in (admin, stranger):
                    asked = {**who, "Content-Type": kind, "Idempotency-Key": f"{SECRETS['idempotency key']}"}
                    content = body if method in {"post", "put", "patch"} else None
                    params = {"token": SECRETS["query of a webhook"], "limit": everything} if number else {}
                    answer = client.request(method, filled, headers=asked, content=content, params=params)
                    statuses.append(answer.status_code)
    return statuses


def test_whatever_fails_no_secret_is_written(broken: Broken) -> None:
    client, admin = broken.client, headers(SECRETS["admin key"])
    texts = {
        **{f"{name} as Bearer": f"Authorization: Bearer {text}" for name, text in SECRETS.items()},
        "database": f"postgresql://broker:{quote(SECRETS['password of a URL'], safe='')}@db/broker",
        "webhook": webhook_url(9),
        "headers": json.dumps(admin),
        "basic": f"Basic {base64.b64encode(('u:' + SECRETS['admin key']).encode()).decode()}",
    }
    assert client.post("/_fault/raise", json=texts).status_code == 500
    with pytest.raises(httpx.RemoteProtocolError):
        client.post("/_fault/half", json=texts)
    assert client.post("/_fault/around", json=texts).status_code == 200
    answer = client.post("/_fault/worker", json=texts)
    assert answer.status_code == 200
    wait_for("records of the worker", 30, lambda: "at work" in broken.output() or None)
    if (
        '"at work"' in broken.output()
    ):  # JSON: the id of the request stands in the record of the other process
        record = next(json.loads(line) for line in broken.output().splitlines() if '"at work"' in line)
        assert record["trace_id"] == answer.headers["X-Request-Id"]

    made = client.post("/v1/webhooks", headers=admin, json={"url": webhook_url(free_port()), "events": ["*"]})
    assert made.status_code == 201, made.text
    client.post("/v1/keys", headers=admin | {"Idempotency-Key": "k"}, json={"name": "n", "team": "t"})
    assert 500 not in walk(client)
    audit = client.get("/v1/audit", headers=admin).text
    assert not found_in(audit) - {"idempotency key"}

    wait_for("failed polls", 30, lambda: "feed failed" in broken.output() or None)
    with closing(sqlite3.connect(broken.database, timeout=60)) as database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            with suppress(sqlite3.OperationalError):  # SQLite's own
                database.execute(f'DROP TABLE "{table}"')
        database.commit()
    assert client.get("/v1/keys", headers=admin).status_code >= 500
    assert client.get("/healthz").status_code == 200
    broken.running.stop()
    output = broken.output()
    assert not found_in(output), [line for line in output.splitlines() if found_in(line)][:5]
    if '"at work"' in output:
        for line in output.splitlines():
            json.loads(line)
    half = [line for line in output.splitlines() if "/_fault/half" in line]
    assert len(half) == 1  # neither the framework nor the server tells it again
    assert "Exception in ASGI" not in output


def test_the_search_can_find(broken: Broken) -> None:
    broken.client.post("/_fault/past", json=SECRETS)
    assert found_in(broken.output()) == set(SECRETS)


@pytest.mark.parametrize("log_format", FORMATS)
@pytest.mark.parametrize(
    "fault",
    [
        {"BROKER_DATABASE_URL": f"postgresql://u:{PASSWORD}@127.0.0.1:1/db"},
        {"BROKER_DATABASE_URL": f"odd://u:{PASSWORD}@h:port/db"},
        {"BROKER_POLL_SECONDS": SECRETS["admin key"]},
        {"BROKER_SOLVER_EXECUTOR": f"dask://{SECRETS['provider credential']}"},
    ],
)
def test_a_start_that_fails_tells_no_secret(tmp_path: Path, log_format: str, fault: dict[str, str]) -> None:
    given = environment(tmp_path, log_format, "http://127.0.0.1:9") | fault
    ran = subprocess.run(
        [str(Path(sys.executable).parent / "broker"), "serve"],
        env=given, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode not in (0, -9)
    assert ran.stderr
    assert not found_in(ran.stdout + ran.stderr), ran.stderr
    if log_format == "json":
        assert all(json.loads(line) for line in ran.stderr.splitlines())
