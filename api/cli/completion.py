"""Completion of values in a shell, without importing any command: names come from the packaged data, ids
from the server.

It answers in the formats of the scripts that ``broker --install-completion`` writes for bash, zsh and fish.
What it does not know, such as options and commands, is left to Typer.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import broker
from broker.domain.market.offer import Tier

ASKED_BY = "_BROKER_COMPLETE"
LIMIT_S = 0.5
"""How long a Tab may wait for the server."""
DEFAULT_URL = "http://127.0.0.1:8080"
CONFIG = Path(broker.__file__).resolve().parents[1] / "config"

Values = Callable[[str], Iterable[str]]


def complete_value(environment: Mapping[str, str] = os.environ) -> str | None:
    """The answer to a shell that completes a known value; None if another part of the line is completed."""
    shell, _, _ = environment.get(ASKED_BY, "").removeprefix("complete_").partition(" ")
    if shell not in FORMATS:
        return None
    words, begun = _line(environment, shell)
    find = _values_of(words)
    if find is None or begun.startswith("-"):
        return None
    *before, last = begun.split(",")
    head = "".join(f"{word}," for word in before)
    return FORMATS[shell](f"{head}{value}" for value in find(last) if value.startswith(last))


def _line(environment: Mapping[str, str], shell: str) -> tuple[list[str], str]:
    """The words before the one that is completed, and what is typed of it."""
    if shell == "bash":
        words, at = _split(environment.get("COMP_WORDS", "")), int(environment.get("COMP_CWORD", "0"))
        begun = words[at] if at < len(words) else ""
        return words[:at], "" if begun == "=" else begun
    text = environment.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(text)
    if not words or text.endswith(" "):
        return words, ""
    option, is_assigned, begun = words[-1].partition("=")
    return (words[:-1], words[-1]) if not is_assigned else ([*words[:-1], option], begun)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote
        return text.split()


def _values_of(words: list[str]) -> Values | None:
    """What completes the word after ``words``."""
    if len(words) < 2:
        return None
    last = words[-2] if words[-1] == "=" else words[-1]
    command = next((word for word in words[1:] if not word.startswith("-")), "")
    if last.startswith("-"):
        return OPTIONS_OF.get((command, last)) or OPTIONS.get(last)
    is_positional = not words[-2].startswith("-") or words[-2] == command
    return ARGUMENTS.get(command) if is_positional and words[1] == command else None


def _gpus(_: str) -> Iterator[str]:
    with (CONFIG / "gpus.csv").open(newline="", encoding="utf-8") as file:
        names = [row["gpu"] for row in csv.DictReader(file)]
    sizes = Counter(name.partition("-")[0] for name in names)
    yield from names
    yield from (family for family, size in sizes.items() if size > 1)


def _providers(_: str) -> list[str]:
    return sorted(file.stem for file in (CONFIG / "providers").glob("*.toml"))


def _tiers(_: str) -> list[str]:
    return [str(tier) for tier in Tier]


def _regions(begun: str) -> list[str]:
    offers = _items(f"/v1/offers?region={quote(begun)}*&limit=200")
    return sorted({offer["region"] for offer in offers})


def _teams(_: str) -> list[str]:
    return sorted({plan["team"] for plan in _items("/v1/plans?limit=200")})


def _plans(_: str) -> list[str]:
    return [plan["plan_id"] for plan in _items("/v1/plans?limit=200")]


def _reservations(_: str) -> list[str]:
    fleets = _items("/v1/reservations/fleets?open=true&limit=200")
    return [name for fleet in fleets for name in fleet["reservation_ids"]]


def _items(path: str) -> list[Any]:
    """The items of a list of the server; none if it does not answer within LIMIT_S."""
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.extend(_asked(path)), daemon=True)
    asking.start()
    asking.join(LIMIT_S)
    return list(found)


def _asked(path: str) -> list[Any]:
    said = dict(os.environ)
    with suppress(OSError, ValueError):
        file = tomllib.loads(Path("broker.toml").read_text(encoding="utf-8"))
        said = {f"BROKER_{name.upper()}": str(value) for name, value in file.items()} | said
    parts = urlsplit(said.get("BROKER_URL", DEFAULT_URL))
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    authorization = {"Authorization": f"Bearer {said.get('BROKER_KEY', '')}"}
    with suppress(HTTPException, OSError, ValueError, KeyError, TypeError):  # a Tab tells nothing of errors
        connection = kind(parts.hostname or "", parts.port, timeout=LIMIT_S)
        connection.request("GET", f"{parts.path.rstrip('/')}{path}", headers=authorization)
        return list(json.load(connection.getresponse())["items"])
    return []


OPTIONS: Mapping[str, Values] = {
    "--gpu": _gpus,
    "--provider": _providers,
    "--region": _regions,
    "--tier": _tiers,
    "--team": _teams,
    "--plan": _plans,
}
OPTIONS_OF: Mapping[tuple[str, str], Values] = {
    ("reservations", "--history"): _reservations,
    ("approvals", "--approve"): _plans,
    ("approvals", "--reject"): _plans,
}
ARGUMENTS: Mapping[str, Values] = {
    "plans": _plans,
    "reserve": _plans,
    "what-if": _plans,
    "compare": _plans,
    "release": _reservations,
    "extend": _reservations,
    "poll": _providers,
}
FORMATS: Mapping[str, Callable[[Iterable[str]], str]] = {
    "bash": "\n".join,
    "fish": "\n".join,
    "zsh": lambda values: f"_arguments '*: :(({' '.join(map(_quoted, values))}))'",
}


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace(":", "\\:").replace("'", "''")
    return f'"{escaped}"'
