"""``broker providers probe``: a table of 80 columns or JSON, and an exit code that tells a difference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest

from providers.sandbox import SandboxHandle
from tests.cli.running import broker

KEY = "hush-hush-hush"


@contextmanager
def in_front_of(sandbox: str) -> Iterator[str]:
    """A server that passes calls on to a sandbox, without the price of any type that is on sale."""

    class Relay(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {"Authorization": self.headers["Authorization"]}
            answer = httpx.get(f"{sandbox}{self.path}", headers=headers, trust_env=False)
            document = answer.json()
            if self.path.endswith("/instance-types"):
                for row in document["data"].values():
                    del row["instance_type"]["price_cents_per_hour"]
            body = json.dumps(document).encode()
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Sunset", "Thu, 31 Dec 2026 23:59:59 GMT")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Relay)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_nothing_differs_on_the_sandbox(sandbox_market: SandboxHandle) -> None:
    done = broker("providers", "probe", "lambda", env={"BROKER_SANDBOX_URL": sandbox_market.url}, width=80)
    assert done.exit_code == 0, done.output
    assert "lambda: nothing differs" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_what_differs_is_told_with_exit_code_1(sandbox_market: SandboxHandle, form: tuple[str, ...]) -> None:
    with in_front_of(sandbox_market.url) as url:
        env = {"BROKER_LAMBDA_API_KEY": KEY, "BROKER_LAMBDA_BASE_URL": f"{url}/lambda"}
        done = broker("providers", "probe", "lambda", *form, env=env, width=80)
    assert done.exit_code == 1, done.output
    assert KEY not in done.output
    if not form:
        assert "vanished" in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80
        return
    report = json.loads(done.stdout)
    found = {(one["kind"], one["call"], one["field"]) for one in report["findings"]}
    assert found == {
        ("vanished", "GET /api/v1/instance-types", "instance_type.price_cents_per_hour"),
        ("retires", "GET /lambda/api/v1/instance-types", ""),
        ("retires", "GET /lambda/api/v1/instances", ""),
    }


def test_a_seller_without_credentials_is_bad_input() -> None:
    done = broker("providers", "probe", "lambda")
    assert done.exit_code == 2
    assert "BROKER_LAMBDA_API_KEY" in done.stderr
