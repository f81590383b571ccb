"""The unit of systemd and the configuration of nginx, by systemd's and nginx's own readers."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from broker.settings import Settings

ROOT = Path(__file__).parents[2]
UNIT, PROXY = ROOT / "config" / "broker.service", ROOT / "config" / "nginx.conf"
NAME = "broker.example.org"
SERVER_GIB = 1.0


def unit() -> dict[str, list[str]]:
    """The values of each key of the unit."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        name, is_key, value = line.partition("=")
        if is_key and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is missing")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text().replace("/opt/broker/bin/broker", shutil.which("true") or "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(here)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    told = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, told) == (0, []), done.stderr
    here.write_text(here.read_text().replace("RestartSec=5", "RestartSek=5"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "RestartSek" in done.stderr, "a misspelt key is noticed"


def test_the_unit_gives_the_planner_its_memory_and_a_stop_its_time() -> None:
    found = unit()
    fields = {word: field.default for word, field in Settings.model_fields.items()}
    needed = fields["planner_processes"] * fields["planner_memory_gib"] + SERVER_GIB
    assert float(found["MemoryMax"][0].removesuffix("G")) >= needed
    assert float(found["TimeoutStopSec"][0]) >= fields["drain_seconds"] + 15
    assert found["User"] == ["broker"]
    assert "127.0.0.1" in found["ExecStart"][0], "nobody but the proxy reaches it"


class _Told(BaseHTTPRequestHandler):
    """Answers with the headers that it got."""

    def do_GET(self) -> None:
        body = "\n".join(f"{name}: {value}" for name, value in self.headers.items()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "fullchain.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "privkey.pem").write_bytes(key.private_bytes(*form))


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Ports of HTTP and HTTPS of an nginx with the configuration, before a server that tells its headers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Told)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    plain, sealed = _free_port(), _free_port()
    _certificate(tmp_path)
    text = PROXY.read_text().replace("/etc/ssl/broker/", f"{tmp_path}/")
    text = re.sub(r"server 127\.0\.0\.1:\d+;", f"server 127.0.0.1:{server.server_port};", text)
    text = text.replace("listen 80;", f"listen 127.0.0.1:{plain};")
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{sealed} ssl")
    folders = "".join(f"  {kind}_temp_path {tmp_path};\n" for kind in ("client_body", "proxy"))
    (tmp_path / "broker.conf").write_text(text)
    (tmp_path / "nginx.conf").write_text(
        "daemon off;\nworker_processes 1;\npid nginx.pid;\nerror_log error.log;\nevents {}\n"
        f"http {{\n  access_log off;\n{folders}  include broker.conf;\n}}\n"
    )
    options = ["-c", str(tmp_path / "nginx.conf"), "-p", str(tmp_path), "-e", "error.log"]
    process = subprocess.Popen(["nginx", *options], env={**os.environ})
    try:
        _wait_for(sealed, process)
        yield plain, sealed
    finally:
        process.terminate()
        process.wait(timeout=30)
        server.shutdown()
        server.server_close()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise AssertionError(f"nginx ended with {process.returncode}")
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("nginx does not listen")


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is missing")
def test_nginx_ends_tls_forwards_who_asks_and_keeps_the_inner_paths_in(
    proxied: tuple[int, int], tmp_path: Path
) -> None:
    plain, sealed = proxied
    host = {"Host": NAME}
    moved = httpx.get(f"http://127.0.0.1:{plain}/plans?x=1", headers=host)
    assert (moved.status_code, moved.headers["Location"]) == (301, f"https://{NAME}/plans?x=1")
    trusted = ssl.create_default_context(cafile=str(tmp_path / "fullchain.pem"))
    with httpx.Client(verify=trusted, base_url=f"https://127.0.0.1:{sealed}", headers=host) as client:
        forged = {"X-Forwarded-For": "198.51.100.1", "X-Forwarded-Proto": "http"}
        extensions = {"sni_hostname": NAME}
        answer = client.get("/plans", headers=forged, extensions=extensions)
        assert answer.status_code == 200
        told = dict(line.lower().split(": ", 1) for line in answer.text.splitlines())
        assert (told["x-forwarded-proto"], told["x-forwarded-for"], told["host"]) == (
            "https",
            "127.0.0.1",
            NAME,
        )
        assert answer.headers["Strict-Transport-Security"].startswith("max-age=")
        for path in ("/metrics", "/healthz", "/readyz"):
            assert client.get(path, extensions=extensions).status_code == 404
