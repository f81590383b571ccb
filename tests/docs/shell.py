"""A reader at a shell: types the commands of a page in order, and copies ids from what they print."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.docs.fences import Command

LIMIT_S = 240.0
IDS: Mapping[str, re.Pattern[str]] = {
    "PLAN_ID": re.compile(r"\bplan-[0-9a-z]{26}\b"),
    "COMPARISON_ID": re.compile(r"\bcompare-[0-9a-z]{26}\b"),
    "RESERVATION_ID": re.compile(r"\brsv-[0-9a-z]{26}\b"),
    "KEY_ID": re.compile(r"\bkey ([0-9a-f]{12})\b"),
}
"""The words in capitals that stand for an id, and how an id of that kind looks where a command prints it."""
SERVER = re.compile(r"^broker (serve|sandbox|up)\b(?!.*--once)")


@dataclass
class Shell:
    """One reader: a folder, an environment that ``export`` changes, and the ids that were printed last.

    ``as_here``: what a page writes for everybody, such as a port, and what it is in this test.
    """

    folder: Path
    environment: dict[str, str]
    as_here: Mapping[str, str]
    ids: dict[str, str] = field(default_factory=dict)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, command: Command) -> None:
        """Types ``command``; AssertionError where it does not end as the page says."""
        text = self._filled_in(command.text)
        if SERVER.match(text):
            self._start(text)
            return
        kept = self.folder / ".environment"
        began = time.monotonic()
        script = f"set -o pipefail\n{text}\ncode=$?\nenv -0 > {kept}\nexit $code\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        told = f"{text}\nended with {done.returncode}, the page says {command.exit_code}:\n"
        assert done.returncode == command.exit_code, told + done.stdout[-3000:] + done.stderr[-3000:]
        print(f"{time.monotonic() - began:6.1f} s  {text}")
        pairs = (pair.partition("=") for pair in kept.read_text().split("\0") if pair)
        self.environment = {name: value for name, _, value in pairs}
        self._remember(done.stdout + done.stderr)

    def stop(self) -> None:
        """Ends the servers that the page started, the last first."""
        for server in reversed(self.servers):
            server.terminate()
        for server in self.servers:
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(60)

    def _filled_in(self, text: str) -> str:
        for word, here in self.as_here.items():
            text = text.replace(word, here)
        for name in IDS:
            if re.search(rf"\b{name}\b", text):
                assert name in self.ids, f"{text}: no command before it printed such an id"
                text = re.sub(rf"\b{name}\b", self.ids[name], text)
        return text

    def _remember(self, printed: str) -> None:
        for name, looks in IDS.items():
            found = looks.findall(printed)
            if found:
                self.ids[name] = found[-1]

    def _start(self, text: str) -> None:
        log = self.folder / f"server-{len(self.servers)}.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {text}"],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.servers.append(server)
        port = re.search(r"--port (\d+)", text)
        assert port, f"{text}: a server of a page says its port"
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            assert server.poll() is None, f"{text} ended:\n{log.read_text()[-3000:]}"
            try:
                if httpx.get(f"http://127.0.0.1:{port.group(1)}/readyz", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"{text} was not ready in {LIMIT_S} s:\n{log.read_text()[-3000:]}")
