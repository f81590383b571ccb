"""What becomes of each field that a seller publishes of what it sells: read, or not read and why.

Fields that are read follow from the private models of an adapter; the others are listed beside those models.
``docs/seller-fields.md`` is made of both, so that no field can be added without appearing there.
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
    """What becomes of a field."""

    READ = "read"
    UNREAD = "not read"
    UNKNOWN = "unknown"


def _as_it_is(word: str) -> str:
    return word


@dataclass(frozen=True, slots=True)
class Words:
    """Marks a field of a model (``Annotated``) whose words the adapter knows one by one.

    ``known``: gives them; it is a function because tables stand below the models that they are for.
    ``normal``: how the adapter brings a word into the form of the table before it looks there.
    """

    known: Callable[[], Collection[str]]
    normal: Callable[[str], str] = _as_it_is

    def has(self, word: str) -> bool:
        """Whether the adapter knows ``word``."""
        return self.normal(word) in self.known()


@dataclass(frozen=True, slots=True)
class Told:
    """One field of a row, with the reason why it is not read."""

    name: str
    fate: Fate
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rows:
    """One kind of row that a seller publishes.

    ``call``: which call answers with it; ``at``: where rows stand in the answer, "" for columns and for XML
    (``data.*`` every value of an object, ``sizes[]`` every item of a list). ``read``: the adapter's model of
    a row, or names of what is read; ``also_read``: names that the adapter reads beside its model.
    ``unread`` and ``unknown`` (what could not be looked up): dotted names with the reason; a name stands for
    all below it. ``at_times``: names that are read where they are sent, and that whole answers may lack;
    None: any but those that the model has no default for.
    """

    call: str
    at: str
    read: type[BaseModel] | tuple[str, ...]
    also_read: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict, hash=False)
    unknown: Mapping[str, str] = field(default_factory=dict, hash=False)
    at_times: tuple[str, ...] | None = ()

    def fields(self) -> tuple[Told, ...]:
        """Every field: those that are read in the order of the model, then the others."""
        read = self.read if isinstance(self.read, tuple) else tuple(names_of(self.read))
        return (
            *(Told(name, Fate.READ) for name in (*read, *self.also_read)),
            *(Told(name, Fate.UNREAD, reason) for name, reason in self.unread.items()),
            *(Told(name, Fate.UNKNOWN, reason) for name, reason in self.unknown.items()),
        )


@dataclass(frozen=True, slots=True)
class Schema:
    """All rows of one seller: of what is on sale, and ``held``: of what is held.

    ``held_against``: outside material, with its version or date, and its gaps.
    """

    rows: tuple[Rows, ...]
    held_against: str
    held: tuple[Rows, ...] = ()

    @property
    def every(self) -> tuple[Rows, ...]:
        """Those of what is on sale, then those of what is held."""
        return (*self.rows, *self.held)


def names_of(model: type[BaseModel]) -> Iterator[str]:
    """Dotted names of the fields of a model as they stand on the wire; of a nested model its leaves.

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
    """The model that a field holds: itself, in a list or as the values of an object."""
    return next(_models(info.annotation), None)


def is_keyed(annotation: Any) -> bool:
    """Whether an annotation allows an object whose keys are no fields."""
    origin = typing.get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return True
    return any(is_keyed(part) for part in typing.get_args(annotation))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models(part)
