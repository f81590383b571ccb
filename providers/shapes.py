"""Compares answers with what their adapter reads: missing fields, fields of another type, unknown words.

Pure functions. A field is reported once per call, however many rows have it. Findings contain no values,
except words of enumerations.
"""

from __future__ import annotations

import csv
import io
import types
import typing
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from broker.domain.basics.errors import PayloadUnreadable
from broker.domain.market.probing import Finding, FindingKind
from providers.payload import READ_AS_INSTANT, decode_json
from providers.schema import Rows, Words, is_keyed, model_in

MOST_NAMED = 60
"""How many characters of a seller's name or word are shown."""
PEEK_BYTES = 256 * 1024
"""How many bytes of each file in an archive are read."""
LEAST_COLUMNS = 5
"""A line of a table with fewer cells is a remark above its header."""
_KINDS: tuple[tuple[type, frozenset[str]], ...] = (
    (bool, frozenset({"boolean"})),
    (int, frozenset({"number", "text"})),
    (float, frozenset({"number", "text"})),
    (Decimal, frozenset({"number", "text"})),
    (str, frozenset({"text"})),
    (datetime, frozenset({"text", "number"})),
    (date, frozenset({"text"})),
    (BaseModel, frozenset({"object"})),
)
"""JSON kinds from which a type can be read: sellers write numbers as text, too, and adapters read both."""


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


def blocked_at(value: Any, at: str) -> tuple[FindingKind, str, str] | None:
    """Where the path to an answer's rows is blocked by anything but an empty list; None: nowhere."""
    reached, walked = [value], ""
    for head in at.split(".") if at else ():
        name = head.removesuffix("[]")
        walked = f"{walked}.{head}" if walked else head
        held = reached
        if name and name != "*":
            if reached and not any(isinstance(each, dict) and name in each for each in reached):
                return FindingKind.VANISHED, walked, "no answer has it, and rows stand in it"
            held = [each[name] for each in reached if isinstance(each, dict) and name in each]
        wanted = list if head.endswith("[]") else dict
        if held and not any(isinstance(each, wanted) or each is None for each in held):
            kind = "list" if wanted is list else "object"
            return FindingKind.OTHER_TYPE, walked, f"{kind_of(held[0])}, expected {kind}"
        reached = [found for each in reached for found in _step(each, head)]
    return None


def compare_rows(declared: Rows, rows: Sequence[Any], differences: Differences) -> None:
    """Compares the rows of one place with what is read of them."""
    objects = [row for row in rows if isinstance(row, dict)]
    if len(objects) < len(rows):
        differences.note(FindingKind.OTHER_TYPE, declared.at or "row", "a row is no object")
    names = declared.also_read
    if isinstance(declared.read, tuple):
        names = (*declared.read, *names)
    else:
        at_times = None if declared.held else declared.at_times
        compare_model(declared.read, objects, differences, at_times=at_times)
    for name in names:
        if objects and name not in declared.at_times and not any(name in row for row in objects):
            differences.note(FindingKind.VANISHED, name, "is read, and no row has it")


def compare_model(
    model: type[BaseModel],
    objects: Sequence[Mapping[str, Any]],
    differences: Differences,
    before: str = "",
    at_times: Sequence[str] | None = None,
) -> None:
    """Compares objects with their model: missing fields, other types, unknown words.

    ``at_times``: fields that whole answers may lack; None: those with a default in the model.
    """
    for name, info in model.model_fields.items():
        wire = info.alias or name
        path = f"{before}.{wire}" if before else wire
        held = [each[wire] for each in objects if wire in each]
        if held:
            _compare_values(info, held, path, differences)
        elif objects and not _may_lack(info, path, at_times):
            differences.note(FindingKind.VANISHED, path, "is read, and no row has it")
        inner = model_in(info)
        if inner is not None and held:
            nested, step = below(held, info)
            compare_model(inner, nested, differences, f"{path}{step}", at_times)


def _compare_values(info: FieldInfo, held: Sequence[Any], path: str, differences: Differences) -> None:
    expected = kinds_of(info.annotation, info.metadata)
    for kind in dict.fromkeys(kind_of(value) for value in held):
        if expected is not None and kind not in expected:
            says = f"{kind}, expected {' or '.join(sorted(expected - {'null'}))}"
            differences.note(FindingKind.OTHER_TYPE, path, says)
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


def kind_of(value: Any) -> str:
    """The kind of a decoded value in JSON's words."""
    for types_, name in _NAMES:
        if isinstance(value, types_):
            return name
    return "null"


_NAMES: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool,), "boolean"),
    ((int, float, Decimal), "number"),
    ((str,), "text"),
    ((list,), "list"),
    ((dict,), "object"),
)


def kinds_of(annotation: Any, metadata: Sequence[Any] = ()) -> frozenset[str] | None:
    """The kinds from which a field can be read; None where a validator of its own reads it."""
    if any(isinstance(one, BeforeValidator) for one in metadata):
        return frozenset({"text", "null"}) if READ_AS_INSTANT in metadata else None
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return kinds_of(parts[0], parts[1:])
    if origin in {typing.Union, types.UnionType}:
        found = [kinds_of(part) for part in parts]
        return None if None in found else frozenset().union(*(kinds for kinds in found if kinds))
    if annotation is types.NoneType:
        return frozenset({"null"})
    if origin is typing.Literal:
        return frozenset(kind_of(part) for part in parts)
    kind = origin or annotation
    if not isinstance(kind, type):
        return None
    if issubclass(kind, Mapping):
        return frozenset({"object"})
    if issubclass(kind, Sequence | set | frozenset) and not issubclass(kind, str):
        return frozenset({"list"})
    return next((kinds for one, kinds in _KINDS if issubclass(kind, one)), None)


def is_within(path: str, name: str) -> bool:
    """Whether ``path`` is ``name`` or below it; ``*`` in a name is any key."""
    parts, wanted = path.split("."), name.split(".")
    return len(parts) >= len(wanted) and all(w in {"*", p} for p, w in zip(parts, wanted, strict=False))


def decoded(provider: str, body: bytes) -> Any:
    """An answer as data: JSON as it is; XML and tables as a list of rows of texts.

    PayloadUnreadable for anything else.
    """
    start = body.lstrip(b"\xef\xbb\xbf \t\r\n")[:2]
    if start == b"PK":
        return [row for text in _unpacked(provider, body) for row in _table(text)]
    if start[:1] == b"<":
        return _items(provider, body)
    if start[:1] in {b"{", b"["}:
        return decode_json(provider, body)
    return _table(body.decode("utf-8-sig", "replace"))


def _unpacked(provider: str, body: bytes) -> Iterator[str]:
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            for name in archive.namelist():
                if name.endswith(".csv"):
                    with archive.open(name) as file:
                        text = file.read(PEEK_BYTES).decode("utf-8-sig", "replace")
                        yield text if len(text) < PEEK_BYTES else text[: text.rfind("\n")]
    except (zipfile.BadZipFile, OSError, RuntimeError, zlib.error) as error:
        raise PayloadUnreadable(provider, f"no archive: {type(error).__name__}") from None


def _table(text: str) -> list[dict[str, str]]:
    """Rows of a table by column, without remarks above the header."""
    try:
        lines = [cells for cells in csv.reader(io.StringIO(text, newline="")) if len(cells) >= LEAST_COLUMNS]
    except csv.Error:
        return []
    return [dict(zip(lines[0], cells, strict=False)) for cells in lines[1:]]


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
