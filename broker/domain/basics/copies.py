"""A faster ``dataclasses.replace`` for frozen dataclasses with slots. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, cast

Value = TypeVar("Value")
Setter = Callable[[object, object], None]


def copy_with(value: Value, **changes: object) -> Value:
    """A copy of ``value`` with some fields changed. Raises KeyError for an unknown field.

    Neither ``__init__`` nor ``__post_init__`` runs, so the changed fields are not validated.
    """
    values_of, setters, setter_of = _parts(cast("Hashable", type(value)))
    copied = object.__new__(type(value))
    for set_field, item in zip(setters, values_of(value), strict=True):
        set_field(copied, item)
    for name, item in changes.items():
        setter_of[name](copied, item)
    return copied


@cache
def _parts(kind: Any) -> tuple[Callable[[object], tuple[object, ...]], tuple[Setter, ...], dict[str, Setter]]:
    """A getter of all fields of ``kind``, and their setters. ``kind`` needs slots and at least two fields."""
    names = [field.name for field in fields(kind)]
    setter_of: dict[str, Setter] = {name: getattr(kind, name).__set__ for name in names}
    return attrgetter(*names), tuple(setter_of.values()), setter_of
