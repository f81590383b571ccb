"""What tests of commands share: the real command in this process, and a small market."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from typer.testing import CliRunner, Result

from api.cli.application import app

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "fixtures" / "examples" / "quickstart.yaml"


FREE = {"start": "2026-11-24T00:00:00Z", "end": "2026-12-03T00:00:00Z", "nodes": 4}


def broker(*arguments: str | Path, env: Mapping[str, str] | None = None, width: int = 100) -> Result:
    """Runs ``broker`` with ``arguments``; its stdout, stderr and exit code."""
    given = {"COLUMNS": str(width), "NO_COLOR": "1", **(env or {})}
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=given)


def offer(offer_id: str, **fields: Any) -> dict[str, Any]:
    """An H100 node on a fabric, on demand, with ``fields`` changed."""
    return {
        "offer_id": offer_id,
        "provider": "lambda",
        "sku": "8xH100",
        "region": "us-east-1",
        "zone": "us-east-1a",
        "country": "US",
        "gpu": "H100-SXM-80GB",
        "gpus_per_node": 8,
        "gpu_memory_gb": 80,
        "form": "bare_metal",
        "intra_node": {"kind": "nvlink", "gbyte_s": 900},
        "fabric": {"kind": "infiniband", "gbit_s_per_node": 3200, "max_nodes": 16, "domain": "d"},
        "tier": "on_demand",
        "price_usd_per_node_hour": "24.00",
        "billing_increment_s": 60,
        "stock": {"level": "medium", "nodes": 8},
        **fields,
    }


def market_document() -> dict[str, Any]:
    """Four offers: dense, dense in blocks, and two cheap cards."""
    card = {"gpu": "L40S", "gpu_memory_gb": 48, "gpus_per_node": 2, "fabric": None, "form": "vm"}
    pcie = {"kind": "pcie", "gbyte_s": 64}
    return {
        "as_of": "2026-11-23T08:00:00Z",
        "offers": [
            offer("dense"),
            offer(
                "block",
                provider="aws",
                tier="window",
                price_usd_per_node_hour="16.00",
                window={
                    "kind": "slots",
                    "segments": [
                        {"start": "2026-11-24T00:00:00Z", "end": "2026-12-03T00:00:00Z", "nodes": 4}
                    ],
                    "step_hours": 24,
                },
            ),
            offer("card-a", **card, intra_node=pcie, price_usd_per_node_hour="1.90"),
            offer("card-b", **card, intra_node=pcie, zone="us-east-1b", price_usd_per_node_hour="2.10"),
        ],
    }


def write_market(folder: Path) -> Path:
    """The small market as a file."""
    path = folder / "market.json"
    path.write_text(json.dumps(market_document()))
    return path


class FakeServer(ThreadingHTTPServer):
    """A broker server that answers from a table: (method, path) → answers in order, the last for ever."""

    def __init__(self, answers: Mapping[tuple[str, str], list[tuple[int, Any]]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = {key: list(rows) for key, rows in answers.items()}
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[str] = []

    @property
    def env(self) -> dict[str, str]:
        """Where the command line finds it."""
        return {"BROKER_URL": f"http://127.0.0.1:{self.server_port}", "BROKER_KEY": "secret"}


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        self.server.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
        rows = self.server.answers.get((self.command, path), [(404, {"title": "no such route"})])
        status, body = rows.pop(0) if len(rows) > 1 else rows[0]
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def fake_server(answers: Mapping[tuple[str, str], list[tuple[int, Any]]]) -> Iterator[FakeServer]:
    """A running FakeServer, at which nothing is short, and no fleet costs anything, unless ``answers`` say
    so."""
    nothing_short: dict[tuple[str, str], list[tuple[int, Any]]] = {
        ("GET", "/v1/reservations/shortfalls"): [(200, {"items": []})],
        ("GET", "/v1/reservations/fleets"): [(200, {"items": [], "next_cursor": None})] * 2,
    }
    with FakeServer({**nothing_short, **answers}) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
