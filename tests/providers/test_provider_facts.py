"""The tables of ``config/providers`` are read whole."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from broker.catalogue import CONFIG
from broker.provider_facts import load_provider_facts, load_provider_names


def paths(part: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every name in a document, with those around it."""
    if isinstance(part, dict):
        for name, inner in part.items():
            yield (*above, name)
            yield from paths(inner, (*above, name))


@pytest.mark.parametrize("provider", sorted(load_provider_names()))
def test_a_table_has_no_name_that_is_not_read(provider: str) -> None:
    told = tomllib.loads((CONFIG / "providers" / f"{provider}.toml").read_text())
    assert set(paths(told)) <= set(paths(msgspec.to_builtins(load_provider_facts(provider))))
