"""What is known of other tools' words (``config/imports.toml``), and why the rest is not used."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from broker.data_folder import data_folder

NO_FIELD = "a document has no field for it"


@dataclass(frozen=True, slots=True)
class OptionTable:
    """Options of programs. ``flags`` take no value; ``short`` has full names; ``reasons`` says why others are
    not used; ``harmless`` ones change nothing that is planned.
    """

    flags: frozenset[str]
    short: Mapping[str, str]
    reasons: Sequence[tuple[re.Pattern[str], str]]
    harmless: re.Pattern[str]

    def why(self, name: str) -> str | None:
        """Why an option is not used; None for one that has no reason of its own."""
        return _first(self.reasons, name)


@dataclass(frozen=True, slots=True)
class Word:
    """What a document says, or does not say yet: the path of its field, empty where it has none."""

    why: str
    field: str = ""


@cache
def import_words() -> Mapping[str, Any]:
    """The file as it stands."""
    text = data_folder("config", "imports.toml").read_text(encoding="utf-8")
    return MappingProxyType(tomllib.loads(text))


@cache
def option_table(name: str) -> OptionTable:
    """The options of ``servers`` or of training ``runs``."""
    told = import_words()[name]
    return OptionTable(
        frozenset(told["flags"]),
        MappingProxyType(told.get("short", {})),
        _reasons(told["options"]),
        re.compile("|".join(told["harmless"])),
    )


@cache
def word(name: str) -> Word:
    """A word that documents have, or are to have."""
    return Word(**import_words()["words"][name])


def why_of_field(tool: str, name: str) -> str:
    """Why a field of a tool's file, with dots in its name, is not used."""
    return _first(_fields(tool), name) or NO_FIELD


@cache
def clouds(tool: str) -> Mapping[str, str]:
    """Sellers by the names that a tool has for them, where those differ from ours."""
    return MappingProxyType(import_words()[tool]["clouds"])


@cache
def _fields(tool: str) -> Sequence[tuple[re.Pattern[str], str]]:
    return _reasons({name: told for name, told in import_words()[tool].items() if isinstance(told, list)})


def _reasons(told: Mapping[str, Iterable[str]]) -> Sequence[tuple[re.Pattern[str], str]]:
    known = import_words()["reasons"] | {name: one["why"] for name, one in import_words()["words"].items()}
    return tuple((re.compile("|".join(patterns)), known[name]) for name, patterns in told.items())


def _first(reasons: Iterable[tuple[re.Pattern[str], str]], name: str) -> str | None:
    return next((why for pattern, why in reasons if pattern.fullmatch(name)), None)
