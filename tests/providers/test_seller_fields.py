"""Every field that a seller publishes of what it sells is read, or stands in the table with the reason."""

from __future__ import annotations

import csv
import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import providers
from api.cli.market.providers import field_table
from providers.payload import PayloadModel
from providers.registry import SPECS
from providers.schema import Fate, Rows, model_in, names_of
from providers.spec import ProviderSpec
from tests.contract.exchanges import NOT_PAYLOADS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "seller-fields.md"
FIXTURES = ROOT / "fixtures" / "providers"
PARSERS = ("offers", "prices", "sizes", "machines", "calendar", "plans")
"""Modules of an adapter's package that read what is sold."""
OF_ANSWERS = {"AvailabilityPage", "_Report", "QuoteAnswer", "_Slots", "_Locale"}
"""Models of whole answers: their rows are read one by one."""
SPECIFIED = [pytest.param(spec, id=name) for name, spec in SPECS.items()]


def test_the_document_is_what_the_command_prints() -> None:
    table = "\n".join(field_table(spec) for _, spec in sorted(SPECS.items()))
    assert DOCUMENT.read_text().endswith(f"\n\n{table}"), "broker providers fields prints it"


def test_the_document_is_linked() -> None:
    assert DOCUMENT.name in (ROOT / "docs" / "offers.md").read_text()


@pytest.mark.parametrize("spec", SPECIFIED)
def test_a_field_has_one_fate_and_a_reason_where_it_is_not_read(spec: ProviderSpec) -> None:
    assert spec.schema.held_against
    for rows in spec.schema.every:
        told = rows.fields()
        read = {field.name for field in told if field.fate is Fate.READ}
        others = {field.name: field.reason for field in told if field.fate is not Fate.READ}
        assert read
        assert len(told) == len(read) + len(others)
        assert not [name for name in others if any(_is_within(field, name) for field in read)]
        assert all(others.values())


@pytest.mark.parametrize("spec", SPECIFIED)
def test_every_field_of_the_bundled_answers_is_told(spec: ProviderSpec) -> None:
    missing: dict[str, set[str]] = {}
    for kind in {rows.at for rows in spec.schema.rows if rows.at}:
        told = [field.name for rows in spec.schema.rows if rows.at == kind for field in rows.fields()]
        for row in _bundled(spec.name, kind):
            untold = {path for path in _paths(row) if not any(_is_within(path, name) for name in told)}
            if untold:
                missing.setdefault(kind, set()).update(untold)
    assert not missing


@pytest.mark.parametrize("spec", SPECIFIED)
def test_every_column_of_the_bundled_lists_is_told(spec: ProviderSpec) -> None:
    told = {field.name for rows in spec.schema.rows if not rows.at for field in rows.fields()}
    for file in sorted((FIXTURES / spec.name).rglob("*.csv")):
        with file.open(newline="") as lines:
            header = next((row for row in csv.reader(lines) if len(row) > 5), [])
        assert not set(header) - told, file.name


def _models_of_parsers() -> Iterator[type[BaseModel]]:
    for package in pkgutil.iter_modules(providers.__path__, "providers."):
        if package.ispkg and package.name != "providers.sandbox":
            for name in PARSERS:
                if (ROOT / package.name.replace(".", "/") / f"{name}.py").exists():
                    module = importlib.import_module(f"{package.name}.{name}")
                    yield from (
                        kind
                        for _, kind in inspect.getmembers(module, inspect.isclass)
                        if issubclass(kind, PayloadModel) and kind.__module__ == module.__name__
                    )


def _with_parts(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    yield from (base for base in model.__mro__[1:] if issubclass(base, PayloadModel))
    for info in model.model_fields.values():
        inner = model_in(info)
        if inner is not None:
            yield from _with_parts(inner)


def test_no_model_of_what_is_sold_is_left_out_of_the_table() -> None:
    every = [rows for spec in SPECS.values() for rows in spec.schema.rows]
    told = {part for rows in every if not isinstance(rows.read, tuple) for part in _with_parts(rows.read)}
    left_out = {kind for kind in _models_of_parsers() if kind not in told and kind.__name__ not in OF_ANSWERS}
    assert not {f"{kind.__module__}.{kind.__name__}" for kind in left_out}


def test_a_new_field_of_a_model_appears_by_itself() -> None:
    class Part(PayloadModel):
        size: int

    class Row(PayloadModel):
        name: str
        parts: tuple[Part, ...] = ()
        by_place: dict[str, Part] | None = None

    assert list(names_of(Row)) == ["name", "parts.size", "by_place.*.size"]
    assert [field.fate for field in Rows("GET /", "[]", Row, unread={"id": "x"}).fields()] == [
        Fate.READ,
        Fate.READ,
        Fate.READ,
        Fate.UNREAD,
    ]


def _bundled(seller: str, at: str) -> Iterator[dict[str, Any]]:
    for file in sorted((FIXTURES / seller).glob("*.json")):
        if file.name not in NOT_PAYLOADS:
            yield from (row for row in _rows(json.loads(file.read_text()), at) if isinstance(row, dict))


def _rows(value: Any, at: str) -> Iterator[Any]:
    if not at:
        yield value
        return
    head, _, rest = at.partition(".")
    name = head.removesuffix("[]")
    found: list[Any] = [value]
    if name == "*":
        found = list(value.values()) if isinstance(value, dict) else []
    elif name:
        found = [value[name]] if isinstance(value, dict) and name in value else []
    if head.endswith("[]"):
        found = [item for items in found if isinstance(items, list) for item in items]
    for each in found:
        yield from _rows(each, rest)


def _paths(value: Any, before: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(inner, f"{before}.{key}" if before else key)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for item in value:
            if isinstance(item, dict):
                yield from _paths(item, before)
    elif value not in (None, [], {}):
        yield before


def _is_within(path: str, name: str) -> bool:
    """Whether ``path`` is ``name`` or below it; ``*`` in a name is any key."""
    parts, wanted = path.split("."), name.split(".")
    return len(parts) >= len(wanted) and all(w in {"*", p} for p, w in zip(parts, wanted, strict=False))
