"""Real processes for end-to-end tests: started, waited for, and ended by their own pid."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx

ROOT = Path(__file__).resolve().parents[2]
BROKER = Path(sys.executable).parent / "broker"
START_LIMIT_S = 240.0
STOP_LIMIT_S = 60.0
BUSY = 3.0
"""How much slower a machine may be that does other things too."""


def free_port() -> int:
    """A port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without any setting of the broker, plus ``extra``. No end waits for a load
    balancer, unless told otherwise."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("BROKER_")}
    return {**kept, "NO_COLOR": "1", "BROKER_DRAIN_SECONDS": "0", **extra}


@dataclass
class Running:
    """A process of ours that answers HTTP on ``url``."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def stop(self) -> None:
        """Asks it to end, and ends it when it does not."""
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL: nothing is cleaned up, as in a crash."""
        self.process.kill()
        self.process.wait(STOP_LIMIT_S)


def start(
    arguments: Sequence[str],
    url: str,
    ready_path: str,
    log: Path,
    environment: Mapping[str, str],
    *,
    program: Sequence[str] = (str(BROKER),),
    limit_s: float = START_LIMIT_S,
) -> Running:
    """Starts ``broker`` (or ``program``) with ``arguments`` and waits until ``ready_path`` answers 200."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*program, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=log.parent,
        )
    running = Running(process, url, log)
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(
                f"broker {' '.join(arguments)} ended with {process.returncode}:\n{log.read_text()[-4000:]}"
            )
        try:
            if httpx.get(url + ready_path, timeout=5).status_code == 200:
                return running
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    running.kill()
    raise AssertionError(
        f"broker {' '.join(arguments)} was not ready in {limit_s} s:\n{log.read_text()[-4000:]}"
    )


def start_sandbox(folder: Path, seed: int = 7) -> Running:
    """A sandbox market of its own with its state in ``folder``."""
    port = free_port()
    arguments = ["sandbox", "--port", str(port), "--seed", str(seed), "--state", str(folder / "market")]
    url = f"http://127.0.0.1:{port}"
    return start(arguments, url, "/_sandbox/ledger", folder / "sandbox.log", clean_environment())


def start_server(
    folder: Path,
    sandbox_url: str,
    database_url: str,
    admin_key: str,
    limit_s: float = START_LIMIT_S,
    /,
    **extra: str,
) -> Running:
    """A broker server on a sandbox market, ready when its first poll and reconcile pass ended.

    ``extra``: settings beside the usual ones, or in their place.
    """
    port = free_port()
    usual = {
        "BROKER_SANDBOX_URL": sandbox_url,
        "BROKER_DATABASE_URL": database_url,
        "BROKER_ADMIN_KEY": admin_key,
        "BROKER_HOST": "127.0.0.1",
        "BROKER_PORT": str(port),
        "BROKER_POLL_SECONDS": "20",
        "BROKER_RECONCILE_SECONDS": "1",
    }
    environment = clean_environment(**(usual | extra))
    url, log = f"http://127.0.0.1:{port}", folder / "server.log"
    return start(["serve"], url, "/readyz", log, environment, limit_s=limit_s)


T = TypeVar("T")


def wait_for(what: str, limit_s: float, look: Callable[[], T | None]) -> T:
    """The first answer of ``look`` that is not None, within ``limit_s`` on a machine of its own."""
    deadline = time.monotonic() + BUSY * limit_s
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(0.25)
    raise AssertionError(f"{what}: not seen in {BUSY * limit_s} s")
