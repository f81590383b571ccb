"""Declares which rows of a seller's answers an adapter reads, and which of their words it knows."""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def _as_it_is(word: str) -> str:
    return word


@dataclass(frozen=True, slots=True)
class Words:
    """Marks a field (``Annotated``) whose possible words the adapter knows.

    ``known`` returns them; it is a function because tables are defined below the models. ``normal``: how
    the adapter normalizes a word before looking it up.
    """

    known: Callable[[], Collection[str]]
    normal: Callable[[str], str] = _as_it_is

    def has(self, word: str) -> bool:
        """Whether the adapter knows ``word``."""
        return self.normal(word) in self.known()


@dataclass(frozen=True, slots=True)
class Rows:
    """One kind of row that a seller publishes.

    ``call``: the call whose answer has it; ``at``: where rows stand in the answer, "" for XML
    (``data.*`` every value of an object, ``sizes[]`` every item of a list). ``read``: the adapter's
    model of a row, or names of the fields that are read; ``also_read``: names read beside the model.
    ``at_times``: names that whole answers may lack. ``held``: rows of what is held, which may lack every
    field for which the model has a default.
    """

    call: str
    at: str
    read: type[BaseModel] | tuple[str, ...]
    also_read: tuple[str, ...] = ()
    at_times: tuple[str, ...] = ()
    held: bool = False


def model_in(info: FieldInfo) -> type[BaseModel] | None:
    """The model in a field: itself, in a list, or as the values of an object."""
    return next(_models(info.annotation), None)


def is_keyed(annotation: Any) -> bool:
    """Whether an annotation allows an object whose keys are data."""
    origin = typing.get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return True
    return any(is_keyed(part) for part in typing.get_args(annotation))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models(part)
