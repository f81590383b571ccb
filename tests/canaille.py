"""Canaille, a real OpenID Connect provider, as a process of its own; and a browser that signs in there."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urljoin

import httpx

from tests.peers_env import PINS, PeerFailed, python_of

Jwk = dict[str, str | list[str]]
CLIENT = "broker"
PASSWORD = "a password of the test"
BROKER = "http://broker"


class Canaille:
    """A running provider: its ``issuer``, and the private keys that it signs with."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        first = self._answer()
        self.issuer: str = first["issuer"]
        self.keys: list[Jwk] = first["keys"]

    def rotate(self) -> None:
        """Replaces its signing key."""
        self.keys = self._happen(what="rotate")["keys"]

    def lock(self, who: str) -> None:
        """Takes somebody's account away."""
        self._happen(what="lock", who=who)

    def leave(self, who: str) -> None:
        """Takes somebody out of all groups."""
        self._happen(what="leave", who=who)

    def _happen(self, **event: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(event) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed("canaille ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def canaille(people: Mapping[str, Sequence[str]], client_secret: str | None = None) -> Iterator[Canaille]:
    """The provider with ``people`` and the groups of each; the broker is a public client without a secret."""
    with tempfile.TemporaryDirectory(prefix="broker-canaille-") as folder:
        given = {
            "folder": folder,
            "client_secret": client_secret,
            "people": people,
            "redirect_uris": [f"{BROKER}/signin/callback"],
            "post_logout_redirect_uris": [f"{BROKER}/signin"],
        }
        command = [str(python_of("canaille")), "-I", str(PINS / "serve_canaille.py"), json.dumps(given)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            yield Canaille(process)
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


async def sign_in(broker: httpx.AsyncClient, issuer: str, who: str, wanted: str = "/") -> httpx.Response:
    """What ``broker`` answers to a browser that signed in as ``who``."""
    return await broker.get(await callback(broker, issuer, who, wanted))


async def callback(broker: httpx.AsyncClient, issuer: str, who: str, wanted: str = "/") -> str:
    """Where the provider sends a browser back to that signed in as ``who``."""
    begun = await broker.get("/signin/provider", params={"next": wanted})
    assert begun.status_code == 303, begun.text
    async with httpx.AsyncClient() as browser:
        answer = await _follow(browser, issuer, await browser.get(begun.headers["Location"]))
        answer = await _follow(browser, issuer, await browser.post(answer.url, data={"login": who}))
        answer = await _follow(browser, issuer, await browser.post(answer.url, data={"password": PASSWORD}))
        assert answer.has_redirect_location, answer.text
        return answer.headers["Location"]


async def _follow(browser: httpx.AsyncClient, issuer: str, answer: httpx.Response) -> httpx.Response:
    """Follows redirects as long as they stay at the provider."""
    while answer.has_redirect_location:
        target = urljoin(str(answer.url), answer.headers["Location"])
        if not target.startswith(issuer):
            return answer
        answer = await browser.get(target)
    return answer
