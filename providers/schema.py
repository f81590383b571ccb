"""What happens to each field that a seller publishes: it is read, or it is not read for a stated reason.

The fields that are read follow from an adapter's private models; all others are listed beside those models.
``docs/seller-fields.md`` is generated from both, so every new field appears there.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

FOR_PEOPLE = "for people: a name, a text or a link"
OWN_ID = "the seller's own id; nothing is ordered by it"
SAME_AS = "says the same as {}"
OF_THE_HOST = "a fact of the host that no plan weighs"
OF_THE_MACHINE = "how the machine is set up; the broker looks at whose it is, its state, size and price"
OF_THE_ACCOUNT = "the same of all that the account holds"
PER_MONTH = "a price by the month; what is sold here is charged by the hour"
NOT_OF_A_PRICE = "bears on no price, tier, place, count, time or link"


class Fate(StrEnum):
    """What happens to a field."""

    READ = "read"
    UNREAD = "not read"
    UNKNOWN = "unknown"


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
class Told:
    """One field of a row, with the reason if it is not read."""

    name: str
    fate: Fate
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """One kind of row that a seller publishes.

    ``call``: the call whose answer has it; ``at``: where rows stand in the answer, "" for columns and for
    XML (``data.*`` every value of an object, ``sizes[]`` every item of a list). ``read``: the adapter's
    model of a row, or names of the fields that are read; ``also_read``: names read beside the model.
    ``unread`` and ``unknown`` (fields that could not be looked up): dotted names with the reason; a name
    includes everything below it. ``at_times``: names that whole answers may lack; None: those for which the
    model has a default.
    """

    call: str
    at: str
    read: type[BaseModel] | tuple[str, ...]
    also_read: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict, hash=False)
    unknown: Mapping[str, str] = field(default_factory=dict, hash=False)
    at_times: tuple[str, ...] | None = ()

    def fields(self) -> tuple[Told, ...]:
        """Every field: those that are read, in the order of the model, then the others."""
        read = self.read if isinstance(self.read, tuple) else tuple(names_of(self.read))
        return (
            *(Told(name, Fate.READ) for name in (*read, *self.also_read)),
            *(Told(name, Fate.UNREAD, reason) for name, reason in self.unread.items()),
            *(Told(name, Fate.UNKNOWN, reason) for name, reason in self.unknown.items()),
        )


@dataclass(frozen=True, slots=True)
class Schema:
    """All kinds of rows of one seller: on sale, and ``held``.

    ``held_against``: the external material, with version or date, that the schema was compared with, and
    its gaps.
    """

    rows: tuple[Rows, ...]
    held_against: str
    held: tuple[Rows, ...] = ()

    @property
    def every(self) -> tuple[Rows, ...]:
        """Rows on sale, then rows held."""
        return (*self.rows, *self.held)


def names_of(model: type[BaseModel]) -> Iterator[str]:
    """Dotted wire names of a model's fields; of a nested model, the names of its leaves.

    ``*`` stands for the keys of an object whose values are rows (``location_cost.*.hourly_cost``).
    """
    for name, info in model.model_fields.items():
        wire = info.alias or name
        inner = model_in(info)
        if inner is None:
            yield wire
        else:
            at = f"{wire}.*" if is_keyed(info.annotation) else wire
            yield from (f"{at}.{below}" for below in names_of(inner))


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
