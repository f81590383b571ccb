"""Every model of what is sold is compared by the probe of its seller."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

import providers
from providers.payload import PayloadModel
from providers.registry import SPECS
from providers.schema import model_in

ROOT = Path(__file__).resolve().parents[2]
PARSERS = ("offers", "prices", "sizes", "machines", "calendar", "plans")
"""Modules of an adapter's package that read what is sold."""
OF_ANSWERS = {"AvailabilityPage", "_Report", "QuoteAnswer", "_Slots", "_Locale"}
"""Models of whole answers: their rows are read one by one."""


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


def test_every_model_of_what_is_sold_is_declared() -> None:
    every = [rows for spec in SPECS.values() for rows in spec.rows]
    declared = {part for rows in every if not isinstance(rows.read, tuple) for part in _with_parts(rows.read)}
    left_out = set(_models_of_parsers()) - declared
    assert not {f"{kind.__module__}.{kind.__name__}" for kind in left_out if kind.__name__ not in OF_ANSWERS}
