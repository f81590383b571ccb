"""What completes a value in a shell: names from the packaged data, ids from the server."""

from __future__ import annotations

import csv
import json
import os
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from broker.data_folder import data_folder

LIMIT_S = 0.5
"""How long a Tab may wait for the server."""
DEFAULT_URL = "http://127.0.0.1:8080"
CONFIG = data_folder("config")
TIERS = ("on_demand", "spot", "committed", "window")
"""Those of ``Tier``, whose module takes as long to import as all of this."""

Values = Callable[[str], Iterable[str]]


def values_of(words: Sequence[str]) -> Values | None:
    """What completes the word after ``words``; None where nothing of it is known."""
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
    return list(TIERS)


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
