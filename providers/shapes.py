"""Compares answers with what their adapter reads: missing fields, rows that it rejects, unknown words.

Pure functions. A field is reported once per call, however many rows have it. Findings contain no values,
except words of enumerations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.probing import Finding, FindingKind
from providers.payload import decode_json
from providers.schema import Rows, Words, is_keyed, model_in

MOST_NAMED = 60
"""How many characters of a seller's name or word are shown."""


@dataclass(slots=True)
class Differences:
    """The findings from one call's answers so far; each field is reported once per kind of finding."""

    call: str
    _found: dict[tuple[FindingKind, str, str], Finding] = field(default_factory=dict)

    def note(self, kind: FindingKind, name: str, says: str, word: str = "") -> None:
        """Adds a finding unless it is known."""
        self._found.setdefault((kind, name, word), Finding(kind, self.call, name[: 2 * MOST_NAMED], says))

    def findings(self) -> tuple[Finding, ...]:
        """All of them, in the order in which they were found."""
        return tuple(self._found.values())


def rows_at(value: Any, at: str) -> Iterator[Any]:
    """The rows of a decoded answer at a place in the form of ``Rows.at``; none where the path ends early."""
    if not at:
        yield value
        return
    head, _, rest = at.partition(".")
    for each in _step(value, head):
        yield from rows_at(each, rest)


def _step(value: Any, head: str) -> list[Any]:
    name, found = head.removesuffix("[]"), [value]
    if name == "*":
        found = list(value.values()) if isinstance(value, dict) else []
    elif name:
        found = [value[name]] if isinstance(value, dict) and name in value else []
    if head.endswith("[]"):
        found = [item for items in found if isinstance(items, list) for item in items]
    return found


def compare_rows(declared: Rows, rows: Sequence[Any], differences: Differences) -> None:
    """Compares the rows of one place with what is read of them."""
    objects = [row for row in rows if isinstance(row, dict)]
    names = declared.also_read
    if isinstance(declared.read, tuple):
        names = (*declared.read, *names)
    else:
        at_times = None if declared.held else declared.at_times
        compare_model(declared.read, objects, differences, at_times=at_times)
        _validate(declared.read, rows, differences)
    for name in names:
        if objects and name not in declared.at_times and not any(name in row for row in objects):
            differences.note(FindingKind.VANISHED, name, "is read, and no row has it")


def _validate(model: type[BaseModel], rows: Sequence[Any], differences: Differences) -> None:
    """Notes fields for which the model rejects a row; a missing field is noted only where no row has it."""
    for row in rows:
        try:
            model.model_validate(row)
        except ValidationError as error:
            for problem in error.errors(include_input=False, include_url=False):
                if problem["type"] != "missing":
                    place = ".".join(part for part in problem["loc"] if isinstance(part, str)) or "row"
                    differences.note(FindingKind.OTHER_TYPE, place, problem["msg"])


def compare_model(
    model: type[BaseModel],
    objects: Sequence[Mapping[str, Any]],
    differences: Differences,
    before: str = "",
    at_times: Sequence[str] | None = None,
) -> None:
    """Compares objects with their model: missing fields, unknown words.

    ``at_times``: fields that whole answers may lack; None: those with a default in the model.
    """
    for name, info in model.model_fields.items():
        wire = info.alias or name
        path = f"{before}.{wire}" if before else wire
        held = [each[wire] for each in objects if wire in each]
        if held:
            _compare_words(info, held, path, differences)
        elif objects and not _may_lack(info, path, at_times):
            differences.note(FindingKind.VANISHED, path, "is read, and no row has it")
        inner = model_in(info)
        if inner is not None and held:
            nested, step = below(held, info)
            compare_model(inner, nested, differences, f"{path}{step}", at_times)


def _compare_words(info: FieldInfo, held: Sequence[Any], path: str, differences: Differences) -> None:
    for words in (one for one in info.metadata if isinstance(one, Words)):
        for word in dict.fromkeys(value for value in held if isinstance(value, str) and value):
            if not words.has(word):
                says = f"{word[:MOST_NAMED]!r} is no word that the adapter knows"
                differences.note(FindingKind.UNKNOWN_WORD, path, says, word)


def _may_lack(info: FieldInfo, path: str, at_times: Sequence[str] | None) -> bool:
    if info.validation_alias is not None and not isinstance(info.validation_alias, str):
        return True  # it is read under several names, of which one is enough
    return not info.is_required() if at_times is None else any(is_within(path, name) for name in at_times)


def below(held: Sequence[Any], info: FieldInfo) -> tuple[list[Mapping[str, Any]], str]:
    """The objects in a field that holds a model, and the placeholder for the keys above them."""
    if is_keyed(info.annotation):
        held = [inner for value in held if isinstance(value, dict) for inner in value.values()]
    flat = [item for value in held for item in (value if isinstance(value, list) else [value])]
    return [item for item in flat if isinstance(item, dict)], ".*" if is_keyed(info.annotation) else ""


def is_within(path: str, name: str) -> bool:
    """Whether ``path`` is ``name`` or below it; ``*`` in a name is any key."""
    parts, wanted = path.split("."), name.split(".")
    return len(parts) >= len(wanted) and all(w in {"*", p} for p, w in zip(parts, wanted, strict=False))


def decoded(provider: str, body: bytes) -> Any:
    """An answer as data: JSON as it is, XML as a list of items. PayloadUnreadable for anything else.

    Readers of tables refuse a file that lacks a column, so that tables need no comparison.
    """
    return _items(provider, body) if body.lstrip()[:1] == b"<" else decode_json(provider, body)


def _items(provider: str, body: bytes) -> list[dict[str, Any]]:
    """The outermost items of an XML answer."""
    try:
        root = fromstring(body)
    except (ParseError, DefusedXmlException, ValueError) as error:
        raise PayloadUnreadable(provider, f"not XML: {type(error).__name__}") from None
    return list(_outermost(root))


def _outermost(element: Element) -> Iterator[dict[str, Any]]:
    for child in element:
        if _local(child) == "item":
            yield {_local(part): _content(part) for part in child}
        else:
            yield from _outermost(child)


def _content(element: Element) -> Any:
    parts = list(element)
    if not parts:
        return (element.text or "").strip()
    if all(_local(part) == "item" for part in parts):
        return [_content(part) for part in parts]
    return {_local(part): _content(part) for part in parts}


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]
