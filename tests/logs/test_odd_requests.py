"""What anybody without a key may send: every request has an answer below 500, and no record is made of it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.bench.aborted_clients import ADMIN_KEY
from tests.e2e.processes import Running, clean_environment, free_port, start

FORM = b"Content-Type: application/x-www-form-urlencoded"
JSON = b"Content-Type: application/json"
LIMIT_S = 240


def asked(method: bytes, path: bytes, *fields: bytes, body: bytes = b"") -> bytes:
    """A request, with a host."""
    return b"\r\n".join((method + b" " + path + b" HTTP/1.1", *fields, b"Host: x", b"", body))


ODD: dict[str, bytes] = {
    "header without a name": asked(b"GET", b"/healthz", b": x"),
    "header with bytes": asked(b"GET", b"/plans", b"X-A: \xff\xfe"),
    "bearer with bytes": asked(b"GET", b"/v1/plans", b"Authorization: Bearer \xff\xe9"),
    "bearer of nothing": asked(b"GET", b"/v1/plans", b"Authorization: Bearer"),
    "other scheme": asked(b"GET", b"/v1/plans", b"Authorization: Basic \xe2\x82="),
    "two authorizations": asked(b"GET", b"/v1/plans", b"Authorization: a", b"Authorization: b"),
    "cookie of bytes": asked(b"GET", b"/", b'Cookie: broker_session=\xff\x80; =; ;;a="\\777"'),
    "cookie of nothing": asked(b"GET", b"/", b"Cookie: ="),
    "habit cookie": asked(b"GET", b"/signin", b"Cookie: habit=%FF%00\xff; broker_session=%00"),
    "half a percent": asked(b"GET", b"/plans/%E0%A4%A"),
    "no UTF-8 in the path": asked(b"GET", b"/plans/%FF%FE"),
    "no UTF-8 in an API path": asked(b"GET", b"/v1/plans/%FF%FE"),
    "surrogates": asked(b"GET", b"/v1/plans/%ED%A0%80?limit=%ED%A0%80"),
    "line ends in the path": asked(b"GET", b"/plans/%0D%0ASet-Cookie:x=1"),
    "line ends in next": asked(b"GET", b"/signin?next=%0D%0AX:1"),
    "static climbs": asked(b"GET", b"/static/..%2f..%2f..%2fetc/passwd"),
    "static of a zero byte": asked(b"GET", b"/static/%00"),
    "static of a long name": asked(b"GET", b"/static/" + b"a" * 5000),
    "static folder": asked(b"GET", b"/static/"),
    "bad range": asked(b"GET", b"/static/style.css", b"Range: bytes=9-1,--,x"),
    "range beyond": asked(b"GET", b"/static/style.css", b"Range: bytes=99999999999999999999-"),
    "many ranges": asked(b"GET", b"/static/style.css", b"Range: bytes=" + b"0-0," * 2000 + b"1-1"),
    "bad date": asked(b"GET", b"/static/style.css", b"If-Modified-Since: \xff 99 Foo 99999"),
    "year beyond": asked(b"GET", b"/static/style.css", b"If-Modified-Since: Mon, 01 Jan 99999 00:00:00 GMT"),
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "host of bytes": b"GET /signin HTTP/1.1\r\nHost: \xff:abc\r\n\r\n",
    "host with a path": b"GET / HTTP/1.1\r\nHost: a/../b?c#d@e:99999999\r\n\r\n",
    "host in brackets": b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
    "page with brackets": b"GET /plans HTTP/1.1\r\nAccept: text/html\r\nHost: [x]:y]\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "whole address": asked(b"GET", b"http://[::1:x/plans"),
    "asterisk": asked(b"OPTIONS", b"*"),
    "no slash": asked(b"GET", b"plans"),
    "two slashes": asked(b"GET", b"//[/plans"),
    "unknown method": asked(b"BREW", b"/v1/plans"),
    "connect": asked(b"CONNECT", b"x:1"),
    "trace": asked(b"TRACE", b"/"),
    "old version": b"GET /healthz HTTP/0.9\r\n\r\n",
    "next version": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "websocket": asked(
        b"GET",
        b"/v1/plans",
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ),
    "upgrade to h2c": asked(b"GET", b"/", b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings"),
    "negative length": asked(b"POST", b"/signin", b"Content-Length: -5", FORM),
    "length of digits of others": asked(b"POST", b"/signin", b"Content-Length: \xb2", FORM),
    "two lengths": asked(
        b"POST", b"/signin", b"Content-Length: 5", b"Content-Length: 6", FORM, body=b"key=a"
    ),
    "two framings": asked(
        b"POST",
        b"/signin",
        b"Content-Length: 5",
        b"Transfer-Encoding: chunked",
        FORM,
        body=b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    ),
    "huge length": asked(b"POST", b"/signin", b"Content-Length: " + b"9" * 5000, FORM),
    "bad chunk": asked(b"POST", b"/signin", b"Transfer-Encoding: chunked", FORM, body=b"zz\r\nabc\r\n"),
    "other encoding": asked(b"POST", b"/signin", b"Transfer-Encoding: gzip", FORM),
    "form of bytes": asked(b"POST", b"/signin", b"Content-Length: 6", FORM, body=b"key=\xff\xfe"),
    "form of many fields": asked(b"POST", b"/signin", b"Content-Length: 8000", FORM, body=b"a=1&" * 2000),
    "multipart of nothing": asked(
        b"POST", b"/signin", b"Content-Type: multipart/form-data", b"Content-Length: 3", body=b"abc"
    ),
    "origin of bytes": asked(
        b"POST", b"/signin", b"Origin: \xff://[", b"Content-Length: 5", FORM, body=b"key=a"
    ),
    "JSON of bytes": asked(b"POST", b"/v1/webhooks", b"Content-Length: 3", JSON, body=b"{\xff}"),
    "deep JSON": asked(b"POST", b"/v1/webhooks", b"Content-Length: 100000", JSON, body=b"[" * 100000),
    "number beyond": asked(b"POST", b"/v1/webhooks", b"Content-Length: 5000", JSON, body=b"9" * 5000),
    "encoding of a body": asked(
        b"POST", b"/v1/plans", b"Content-Encoding: br", b"Content-Length: 2", JSON, body=b"{}"
    ),
    "media type of bytes": asked(
        b"POST", b"/v1/plans", b"Content-Type: \xff/\x80;charset=\xff", b"Content-Length: 2", body=b"{}"
    ),
    "unknown charset": asked(
        b"POST",
        b"/v1/webhooks",
        b"Content-Type: application/json; charset=x-y",
        b"Content-Length: 2",
        body=b"{}",
    ),
    "name of bytes": asked(
        b"POST", b"/v1/plans", b"Idempotency-Key: \xff\xff", b"Content-Length: 2", JSON, body=b"{}"
    ),
    "forwarded nonsense": asked(
        b"GET", b"/signin", b"X-Forwarded-For: \xff,[::1", b"X-Forwarded-Proto: \xff"
    ),
    "forwarded sign-in": asked(
        b"POST", b"/signin", b"X-Forwarded-For: [x]:y:z", b"Content-Length: 5", FORM, body=b"key=a"
    ),
    "huge header": asked(b"GET", b"/", b"X-A: " + b"a" * 200000),
    "many headers": asked(b"GET", b"/", *[b"X-A: 1"] * 3000),
    "long address": asked(b"GET", b"/" + b"a" * 60000),
    "many parameters": asked(b"GET", b"/v1/plans?" + b"&".join(b"a%d=1" % n for n in range(3000))),
    "event stream": asked(b"GET", b"/v1/plans/x/events", b"Last-Event-ID: \xff"),
    "languages": asked(
        b"GET", b"/signin", b"Accept: ;;;q=x,\xff", b"Accept-Language: \xff", b"HX-Request: \xff"
    ),
    "waits for 100": asked(
        b"POST", b"/signin", b"Expect: 100-continue", b"Content-Length: 5", FORM, body=b"key=a"
    ),
    "other expectation": asked(
        b"POST", b"/signin", b"Expect: \xff", b"Content-Length: 5", FORM, body=b"key=a"
    ),
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(80),
    "nothing": b"\r\n\r\n\r\n\r\n",
    "bytes": bytes(range(256)) + b"\r\n\r\n",
}
"""By what is odd about it."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("odd")
    port = free_port()
    environment = clean_environment(
        BROKER_DATABASE_URL=f"sqlite:///{folder / 'broker.db'}",
        BROKER_ADMIN_KEY=ADMIN_KEY,
        BROKER_PORT=str(port),
    )
    running = start(["serve"], f"http://127.0.0.1:{port}", "/healthz", folder / "server.log", environment)
    yield running
    running.stop()


def statuses(server: Running, said: bytes) -> list[int]:
    """Sends ``said`` and nothing more; the statuses of what comes back."""
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=LIMIT_S) as link:
        answer = b""
        try:
            link.sendall(said)
            with contextlib.suppress(OSError):  # a server that has closed already is no peer any more
                link.shutdown(socket.SHUT_WR)
            while block := link.recv(65536):
                answer += block
        except ConnectionError:
            pass  # it has heard enough
    heads = [line for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    return [int(line.split()[1]) for line in heads]


@pytest.mark.parametrize("name", ODD)
def test_no_odd_request_is_an_exception(server: Running, name: str) -> None:
    before = server.log.read_text()
    assert [status for status in statuses(server, ODD[name]) if status >= 500] == []
    assert httpx.get(server.url + "/healthz", timeout=LIMIT_S).status_code == 200
    assert server.log.read_text() == before


def test_a_body_of_two_framings_is_refused_with_what_follows_it(server: Running) -> None:
    assert statuses(server, ODD["two framings"]) == [400]
