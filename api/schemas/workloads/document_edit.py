"""Changes of a workloads document as its text: comments and style stay where only values change.

A change that cannot be made within the text, and one whose text would not mean what was asked, makes the
whole document be written anew.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from api.schemas.base.document import read_document
from api.schemas.workloads.form_fields import Entry, FormField, short_field, shown, value_at
from api.schemas.workloads.written_values import exact_amount
from broker.domain.basics.errors import InputError

PLAIN = re.compile(r"[A-Za-z0-9_+.*][A-Za-z0-9_+.*/ -]*[A-Za-z0-9_+.*]|[A-Za-z0-9_+.*]")
"""Text that YAML reads as it stands, without quotes."""


class EditedDocument:
    """The text of a document and its plain data, which ``put`` and the other methods change together."""

    def __init__(self, text: str, source: str) -> None:
        """Raises InputError for text that is no document of fields with a list of workloads."""
        self.text = text.replace("\r\n", "\n")
        self._source = source
        document = read_document(self.text, source)
        workloads = document.data.get("workloads", []) if isinstance(document.data, dict) else None
        if not isinstance(workloads, list):
            problem = document.problem("/workloads", "no list", "a list of workloads")
            raise InputError(source, (problem,))
        self.data: dict[str, Any] = document.data
        self.data.setdefault("workloads", [])

    @property
    def workloads(self) -> list[Any]:
        """The workloads, as plain data."""
        found: list[Any] = self.data["workloads"]
        return found

    def put(self, field: FormField, workload: int | None, written: str) -> None:
        """Sets a field to what was written, or takes it out where nothing was; unchanged text stays."""
        data = copy.deepcopy(self.data)
        holder = data if workload is None else data["workloads"][workload]
        written = " ".join(written.split())
        if written == shown(value_at(holder, field.steps)):
            return
        value = _text_of(field, written) if written else ""
        _put(holder, field.steps, _read(value) if value else None)
        around: list[str | int] = [] if workload is None else ["workloads", workload]
        self._become(data, _spliced(self.text, [*around, *field.steps], value))

    def add(self, workload: Mapping[str, Any]) -> None:
        """Appends a workload, with a name that no other has."""
        names = {one.get("name") for one in self.workloads if isinstance(one, dict)}
        name, number = str(workload["name"]), 2
        while name in names:
            name, number = f"{workload['name']}-{number}", number + 1
        data = copy.deepcopy(self.data)
        plain: dict[str, Any] = json.loads(json.dumps({**workload, "name": name}))
        data["workloads"].append(_read_numbers(plain))
        self._become(data, _appended(self.text, as_item(data["workloads"][-1])))

    def remove(self, workload: int) -> None:
        """Takes a workload out. A service that starts after it starts with the horizon."""
        data = copy.deepcopy(self.data)
        gone = data["workloads"].pop(workload)
        name = gone.get("name") if isinstance(gone, dict) else None
        follows = [w for w in data["workloads"] if name and value_at(w, ("starts", "after")) == name]
        for one in follows:
            del one["starts"]
        self._become(data, None if follows else _spliced(self.text, ["workloads", workload], ""))

    def _become(self, data: dict[str, Any], text: str | None) -> None:
        self.data = data
        if text is None or not _means(text, data):
            text = as_short_yaml(data)
        self.text = text


def as_short_yaml(document: Mapping[str, Any]) -> str:
    """A document as YAML with a line for each field of a workload, and inner objects in one line."""
    head = [f"{name}: {_flow(value)}\n" for name, value in document.items() if name != "workloads"]
    workloads = document.get("workloads", [])
    rows = "".join(as_item(one) for one in workloads)
    return f"{''.join(head)}workloads:{f'{chr(10)}{rows}' if workloads else ' []' + chr(10)}"


def as_item(workload: Any) -> str:
    """A workload as an item of a block list."""
    if not isinstance(workload, dict) or not workload:
        return f"  - {_flow(workload)}\n"
    lines = (f"{name}: {_flow(value)}\n" for name, value in workload.items())
    return f"  - {'    '.join(lines)}"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_scalar(str(name), as_text=True)}: {_flow(one)}" for name, one in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_flow(one) for one in value)}]"
    return _scalar(value, as_text=True) if isinstance(value, str) else shown(value) or "null"


def _read(text: str) -> Any:
    return read_document(f"v: {text}", "value").data["v"]


def _read_numbers(plain: Any) -> Any:
    """Plain data as its own text would be read: ``1e6`` is a number."""
    if isinstance(plain, dict):
        return {name: _read_numbers(value) for name, value in plain.items()}
    return _read(_scalar(plain, as_text=False)) if isinstance(plain, str) else plain


def _text_of(field: FormField, written: str) -> str:
    """What is written into the document for what was written into a field."""
    if field.entry is Entry.LIST and "," in written:
        words = (word.strip() for word in written.split(","))
        return f"[{', '.join(_scalar(word, as_text=True) for word in words if word)}]"
    if field.entry is Entry.NUMBER:
        return _scalar(exact_amount(written, field.unit), as_text=False)
    return _scalar(written, as_text=set(field.choices) != {"true", "false"})


def _scalar(written: str, *, as_text: bool) -> str:
    """A text in YAML, plain where it may be; ``as_text``: quoted where it would be read as another type."""
    quoted = json.dumps(written, ensure_ascii=False)
    if not PLAIN.fullmatch(written):
        return quoted
    return quoted if as_text and not isinstance(_read(written), str) else written


def _put(holder: Any, steps: Sequence[str], value: Any, around: str = "") -> None:
    """Sets a value below ``holder``, the object ``around``; None takes it out, with objects that become
    empty. The way ends early at a value that stands for its object.
    """
    first, *rest = steps
    inner, short = holder.get(first), short_field((around, first))
    is_short = inner is not None and not isinstance(inner, dict)
    if rest and not (is_short and rest == [short]):
        if not isinstance(inner, dict):
            inner = {short: inner} if is_short and short is not None else {}
        _put(inner, rest, value, first)
        value = inner or None
    if value is None:
        holder.pop(first, None)
    else:
        holder[first] = value


def _means(text: str, data: dict[str, Any]) -> bool:
    try:
        return bool(read_document(text, "text").data == data)
    except InputError:
        return False


def _spliced(text: str, steps: Sequence[str | int], value: str) -> str | None:
    """The text with one value replaced, added or, where it is empty, taken out; None if it is not simple."""
    node: Any = yaml.compose(text, Loader=yaml.CSafeLoader)
    holders: list[tuple[Any, str | int]] = []
    for index, step in enumerate(steps):
        if not isinstance(node, yaml.MappingNode) and short_field(steps[:index]) == step:
            break
        if step not in _parts(node):
            return _with_field(text, node, steps[:index], steps[index:], value) if value else None
        holders.append((node, step))
        node = _parts(node)[step][1]
    if not value:
        return _without(text, holders)
    one_line = node.start_mark.line == node.end_mark.line
    if not one_line or not isinstance(node, yaml.ScalarNode | yaml.SequenceNode):
        return None
    return f"{text[: node.start_mark.index]}{value}{text[node.end_mark.index :]}"


def _parts(node: Any) -> dict[str | int, tuple[Any, Any]]:
    """The fields of an object or the items of a list: the node that each begins with, and its value."""
    if isinstance(node, yaml.SequenceNode):
        return {index: (item, item) for index, item in enumerate(node.value)}
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return {key.value: (key, value) for key, value in pairs}


def _with_field(
    text: str, node: Any, way: Sequence[str | int], steps: Sequence[str | int], value: str
) -> str | None:
    """The text with a new field at the end of the object at the end of ``way``, or before the workloads; a
    value that stands for the object becomes one of its fields.
    """
    *outer, last = (str(step) for step in steps)
    short = short_field(way)
    is_one_line = node.start_mark.line == node.end_mark.line
    if not isinstance(node, yaml.MappingNode) and short is not None and is_one_line:
        begin, end = node.start_mark.index, node.end_mark.index
        return f"{text[:begin]}{{{short}: {text[begin:end]}, {last}: {value}}}{text[end:]}"
    if not isinstance(node, yaml.MappingNode) or not node.value:
        return None
    written = f"{last}: {value}"
    for name in reversed(outer):
        written = f"{name}: {{{written}}}"
    (first, _), (_, end) = node.value[0], node.value[-1]
    if node.flow_style:
        at = end.end_mark.index
        return f"{text[:at]}, {written}{text[at:]}"
    workloads = _parts(node).get("workloads")
    line = _line_after(text, end) if workloads is None else workloads[0].start_mark.line
    return _with_lines(text, line, f"{' ' * first.start_mark.column}{written}\n")


def _appended(text: str, item: str) -> str | None:
    """The text with a further item of a block list of workloads."""
    _, rows = _parts(yaml.compose(text, Loader=yaml.CSafeLoader)).get("workloads", (None, None))
    if not isinstance(rows, yaml.SequenceNode) or rows.flow_style or not rows.value:
        return None
    indent = " " * rows.start_mark.column
    written = "".join(f"{indent}{line[2:]}" for line in item.splitlines(keepends=True))
    return _with_lines(text, _line_after(text, rows.value[-1]), written)


def _with_lines(text: str, at: int, written: str) -> str:
    lines = f"{text.removesuffix(chr(10))}\n".splitlines(keepends=True)
    return "".join([*lines[:at], written, *lines[at:]])


def _without(text: str, holders: list[tuple[Any, str | int]]) -> str | None:
    """The text without one field or item, and without the objects around it that become empty."""
    while len(holders) > 1 and len(holders[-1][0].value) == 1:
        holders.pop()
    holder, name = holders[-1]
    at = list(_parts(holder)).index(name)
    parts = list(_parts(holder).values())
    first, value = parts[at]
    if not holder.flow_style:
        lines = text.splitlines(keepends=True)
        return "".join(lines[: first.start_mark.line] + lines[_line_after(text, value) :])
    if len(parts) == 1:
        return None
    begin = parts[at - 1][1].end_mark.index if at else first.start_mark.index
    end = value.end_mark.index if at else parts[1][0].start_mark.index
    return text[:begin] + text[end:]


def _line_after(text: str, node: Any) -> int:
    return text.count("\n", 0, _last_of(node)) + 1


def _last_of(node: Any) -> int:
    """The place of the last scalar or bracket of a value."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        at: int = max(node.start_mark.index, node.end_mark.index - 1)
        return at
    return _last_of([*_parts(node).values()][-1][1])


def field_of(pointer: str, fields: list[tuple[str, FormField]]) -> str | None:
    """The pointer of the field that a problem at ``pointer`` belongs to; None if no field shows it."""
    found = [at for at, _ in fields if pointer == at or pointer.startswith(f"{at}/")]
    if found:
        return max(found, key=len)
    short = [at for at, one in fields if short_field(one.steps[:-1]) == one.steps[-1]]
    around = (pointer, pointer.rpartition("/")[0])  # of a list too
    return next((at for at in short if at.rpartition("/")[0] in around), None)


def empty_document(team: str) -> str:
    """A document without workloads, which ``add`` fills."""
    written = _scalar(team, as_text=True)
    return f"team: {written}\nhorizon: {{start: tomorrow, days: 14}}\nworkloads: []\n"
