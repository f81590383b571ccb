"""Plain data of a document → the same data for the dataclasses of workloads.

Each text that names something (``Told``) is replaced by what it names, each short form by the long one. A
field that no dataclass has is a problem, and so is a text that names nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from api.schemas.base.document import describe, pointer_of
from api.schemas.base.validation import NEAR_ENOUGH
from api.schemas.workloads.policy_words import Report, Unknown
from broker.domain.planning.workload import Batch, Serving, Training, WorkloadBase
from broker.domain.workloads.document_fields import ByProvider, NullMeans, OneOrList, OrObject, Told

MOST_UNKNOWN = 100
KINDS: Mapping[str, type] = {"training": Training, "serving": Serving, "batch": Batch}
OTHER_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("lora", "peft"), "adapter: {kind: lora, rank: 16}"),
    "dora": "adapter: {kind: dora, rank: 16}",
    **dict.fromkeys(("qlora", "load_in_4bit", "quantization"), "adapter: {kind: lora, rank: 16, base: int4}"),
    **dict.fromkeys(("offload", "cpu_offload"), "optimizer: {name: adamw, offload: optimizer}"),
    **dict.fromkeys(("optim", "optimizer_name"), "optimizer: {name: adamw8bit}"),
    "packing": "packed: false, with mean_tokens",
}
"""Words of trainers' options, and what a document has in their place."""
Resolve = Callable[[Told, Any], Any]
"""The value that a text names. Raises Unknown."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the type of a field says of its value in a document. ``part`` has the fields of an object."""

    is_needed: bool = False
    part: type | None = None
    item: Shape | None = None
    told: Told | None = None
    short: OrObject | None = None
    one_or_list: bool = False
    null: NullMeans | None = None
    by_provider: ByProvider | None = None


@cache
def shapes_of(cls: Any) -> Mapping[str, Shape]:
    """The shape of each field of a dataclass or form."""
    if issubclass(cls, BaseModel):
        needed = {name for name, one in cls.model_fields.items() if one.is_required()}
        hints = get_type_hints(cls, include_extras=True)
        return {name: _shape(hints[name], name in needed) for name in cls.model_fields}
    hints = get_type_hints(cls, include_extras=True)
    return {
        one.name: _shape(hints[one.name], one.default is MISSING and one.default_factory is MISSING)
        for one in fields(cls)
    }


def _shape(hint: Any, is_needed: bool) -> Shape:
    marks: list[Any] = []
    while get_origin(hint) in (Annotated, Union, UnionType):
        if get_origin(hint) is Annotated:
            marks += hint.__metadata__
            hint = hint.__origin__
        else:
            rest = [one for one in get_args(hint) if one is not NoneType]
            hint = rest[0] if len(rest) == 1 else WorkloadBase
    is_list = get_origin(hint) in (list, tuple)
    is_part = isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, BaseModel))
    return Shape(
        is_needed,
        part=hint if is_part else None,
        item=_shape(get_args(hint)[0], is_needed=True) if is_list else None,
        told=_first(marks, Told),
        short=_first(marks, OrObject),
        one_or_list=_first(marks, OneOrList) is not None,
        null=_first(marks, NullMeans),
        by_provider=_first(marks, ByProvider),
    )


def _first(marks: list[Any], kind: type) -> Any:
    return next((one for one in marks if isinstance(one, kind)), None)


class Walk:
    """A walk over a document. ``resolve`` says what texts name; ``report`` is told of problems."""

    def __init__(self, resolve: Resolve, report: Report) -> None:
        self._resolve = resolve
        self._report = report

    def part(self, cls: type, data: Any, at: str) -> Any:
        """The data of an object, whose fields are those of ``cls``, at the pointer ``at``."""
        if not isinstance(data, dict):
            return data
        if cls is WorkloadBase:
            cls = KINDS.get(str(data.get("kind")), cls)
        shapes = shapes_of(cls)
        is_open = cls is WorkloadBase
        if len(data) > len(shapes) + MOST_UNKNOWN:
            self._report(at, f"at most the {len(shapes)} fields {', '.join(shapes)}", describe(data))
            is_open = True
        found = {}
        for name, value in data.items():
            shape, here = shapes.get(name), at + pointer_of(name)
            if shape is not None and value is not None:
                found[name] = self._value(shape, value, here)
            elif shape is not None and shape.null is not None:
                found[name] = shape.null.value
            elif shape is not None and shape.is_needed:
                found[name] = None
            elif shape is None and not is_open:
                self._report(here, _nearest(str(name), shapes), f"unknown field {str(name)!r}")
        return found

    def _value(self, shape: Shape, value: Any, at: str) -> Any:
        if shape.short is not None and shape.short.whole(value) is not value:
            assert shape.part is not None
            inner = shapes_of(shape.part)[shape.short.name]
            return {shape.short.name: self._value(inner, value, at)}
        if shape.by_provider is not None:
            return self._quotas(shape.by_provider, value, at)
        if shape.told is not None:
            return self._told(shape.told, value, at)
        if shape.part is not None:
            return self.part(shape.part, value, at)
        if shape.one_or_list and isinstance(value, str):
            value = [value]
        item = shape.item
        if item is None or not isinstance(value, list) or (item.told is None and item.part is None):
            return value
        return [self._value(item, one, f"{at}/{index}") for index, one in enumerate(value)]

    def _told(self, told: Told, value: Any, at: str) -> Any:
        try:
            return self._resolve(told, value)
        except Unknown as unknown:
            for expected, found in unknown.problems:
                self._report(at, expected, describe(value) if found is None else found)
            return unknown.stand_in

    def _quotas(self, quotas: ByProvider, value: Any, at: str) -> Any:
        """Quotas by provider's key, each with a limit."""
        if not isinstance(value, dict):
            return value
        found: dict[Any, Any] = {}
        for name, row in value.items():
            here = f"{at}{pointer_of(str(name))}"
            key = self._told(Told.PROVIDER, name, here)
            if key in found:
                self._report(here, f"each provider once, but {key} already has a quota", repr(name))
            found[key] = self.part(quotas.row, row, here)
            if isinstance(row, dict) and all(most is None for most in row.values()):
                self._report(here, "gpus or nodes, the most that may be held at once", describe(row))
        return found


def _nearest(name: str, known: Mapping[str, Shape]) -> str:
    told = OTHER_WORDS.get(name.lower(), "")
    if told.partition(":")[0] in known:
        return told
    near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR_ENOUGH)
    return f"the field {near[0]!r}" if near else f"one of {', '.join(known)}"
