"""Python environments of peers' tools, one each, apart from ours: their packages would clash with ours.

``tests/peers/<name>.txt`` pins all that a peer needs; ``python -m tests.peers_env [NAME ...]`` makes those
environments (all without a name) under ``.peers/``, where one is kept until its file changes. Scripts
beside the files run in them as processes of their own and print JSON.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PINS = Path(__file__).with_name("peers")
HOME = Path(__file__).resolve().parents[1] / ".peers"
INSTALL = ("install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps", "--requirement")
INSTALL_LIMIT_S = 600
RUN_LIMIT_S = 240
NEEDS_PYTHON = {"focus-validator": "3.12"}
"""Peers that our own version of Python is too old for."""


class PeerFailed(Exception):
    """An environment could not be made, or a script in it ended badly."""


class NoPython(PeerFailed):
    """The version of Python that a peer needs is not on this machine."""


def interpreter(peer: str) -> Path:
    """A Python that ``peer`` runs on: ours, or one on the path or of pyenv. NoPython."""
    version = NEEDS_PYTHON.get(peer)
    if version is None:
        return Path(sys.executable)
    found = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for candidate in (*([Path(found)] if found else []), *sorted(pyenv.glob(f"{version}*/bin/python"))):
        asked = subprocess.run([str(candidate), "--version"], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and asked.stdout.startswith(f"Python {version}."):
            return candidate
    raise NoPython(f"{peer} needs Python {version}, which is not on this machine")


def python_of(peer: str) -> Path:
    """The interpreter of ``peer``, in an environment that is made when there is none. PeerFailed."""
    pins = PINS / f"{peer}.txt"
    place = HOME / peer
    HOME.mkdir(exist_ok=True)
    with (HOME / f"{peer}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = place / "pins.txt"
        if not stamp.is_file() or stamp.read_bytes() != pins.read_bytes():
            shutil.rmtree(place, ignore_errors=True)
            _install(interpreter(peer), place, pins)
            shutil.copyfile(pins, stamp)
    return place / "bin" / "python"


def run(
    peer: str, script: str, *arguments: str, environ: Mapping[str, str], limit_s: float = RUN_LIMIT_S
) -> Any:
    """The JSON that ``tests/peers/<script>`` prints last. It sees ``environ`` and the path. PeerFailed."""
    command = [str(python_of(peer)), "-I", str(PINS / script), *arguments]
    clean = {"PATH": os.environ.get("PATH", os.defpath), **environ}
    try:
        done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=limit_s, check=True)
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.CalledProcessError as error:
        raise PeerFailed(
            f"{script} of {peer} ended with {error.returncode}: {error.stderr[-2000:]}"
        ) from None
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise PeerFailed(f"{script} of {peer} gave no answer: {error}") from error


def _install(base: Path, place: Path, pins: Path) -> None:
    if base == Path(sys.executable):
        venv.create(place, with_pip=False, symlinks=True)
    else:
        subprocess.run([str(base), "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), *INSTALL, str(pins)]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=True)
    except subprocess.CalledProcessError as error:
        raise PeerFailed(f"{pins.name} cannot be installed: {error.stderr[-2000:]}") from None
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"{pins.name} was not installed within {INSTALL_LIMIT_S} s") from None


def main(names: list[str]) -> int:
    """0 when every named environment stands."""
    for name in names or sorted(path.stem for path in PINS.glob("*.txt")):
        try:
            print(python_of(name))
        except NoPython as error:
            print(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
