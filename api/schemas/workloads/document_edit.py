"""Changes of a workloads document as its text: comments and style stay where only values change.

A change that cannot be made within the text, and one whose text would not mean what was asked, makes the
whole document be written anew.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from api.schemas.base.document import read_document
from api.schemas.workloads.form_fields import FIGURES, Entry, FormField, figure, shown, value_at
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
        before = shown(value_at(self._holder(workload), field.steps))
        written = " ".join(written.split())
        if written == before:
            return
        data = copy.deepcopy(self.data)
        steps: list[str | int] = [] if workload is None else ["workloads", workload]
        below = _written_steps(_at(data, steps), field.steps)
        _put(_at(data, steps), below, _value_of(field, written))
        self._become(data, _spliced(self.text, [*steps, *below], field, written))

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
        self._become(data, None if follows else _without(self.text, workload))

    def _holder(self, workload: int | None) -> Any:
        return self.data if workload is None else self.workloads[workload]

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
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    return figure(value) if isinstance(value, int | float) else _scalar(str(value), as_text=True)


def _read_numbers(plain: Any) -> Any:
    """Plain data as its own text would be read: ``1e6`` is a number."""
    if isinstance(plain, dict):
        return {name: _read_numbers(value) for name, value in plain.items()}
    return (
        read_document(f"v: {_scalar(plain, as_text=False)}", "value").data["v"]
        if isinstance(plain, str)
        else plain
    )


def _value_of(field: FormField, written: str) -> Any:
    if not written:
        return None
    return read_document(f"v: {_text_of(field, written)}", "value").data["v"]


def _text_of(field: FormField, written: str) -> str:
    """What is written into the document for what was written into a field."""
    if field.entry is Entry.LIST and "," in written:
        words = (word.strip() for word in written.split(","))
        return f"[{', '.join(_scalar(word, as_text=True) for word in words if word)}]"
    if field.entry is Entry.NUMBER:
        return _scalar(exact_amount(written, field.unit), as_text=False)
    return _scalar(written, as_text=field.path != "interruptible")


def _scalar(written: str, *, as_text: bool) -> str:
    """A text in YAML, plain where it may be; ``as_text``: quoted where it would be read as another type."""
    quoted = json.dumps(written, ensure_ascii=False)
    if not PLAIN.fullmatch(written):
        return quoted
    value = read_document(f"v: {written}", "value").data["v"]
    return quoted if as_text and not isinstance(value, str) else written


def _at(data: Any, steps: list[str | int]) -> Any:
    for step in steps:
        data = data[step]
    return data


def _written_steps(holder: Any, steps: tuple[str, ...]) -> tuple[str, ...]:
    """The way to a field; where a figure stands for its object, the way to that figure."""
    *outer, last = steps
    stands = value_at(holder, outer) if outer else None
    is_figure = stands is not None and not isinstance(stands, dict | list)
    return tuple(outer) if is_figure and FIGURES.get(outer[-1]) == last else steps


def _put(holder: Any, steps: tuple[str, ...], value: Any) -> None:
    """Sets a value below ``holder``; None takes it out, with objects that become empty."""
    first, *rest = steps
    if not rest:
        if value is None:
            holder.pop(first, None)
        else:
            holder[first] = value
        return
    inner = holder.get(first)
    if inner is not None and not isinstance(inner, dict):
        inner = {FIGURES[first]: inner} if first in FIGURES else {}
    inner = {} if inner is None else inner
    _put(inner, tuple(rest), value)
    if inner:
        holder[first] = inner
    else:
        holder.pop(first, None)


def _means(text: str, data: dict[str, Any]) -> bool:
    try:
        return bool(read_document(text, "text").data == data)
    except InputError:
        return False


def _spliced(text: str, steps: list[str | int], field: FormField, written: str) -> str | None:
    """The text with one value replaced or added at its place; None if that is not simple."""
    node: Any = yaml.compose(text, Loader=yaml.CSafeLoader)
    value = _text_of(field, written) if written else ""
    for index, step in enumerate(steps):
        inner = _child(node, step)
        if inner is None and not written:
            return None
        figure_of = FIGURES.get(str(steps[index - 1])) if index else None
        if inner is None and isinstance(node, yaml.ScalarNode) and figure_of is not None:
            begin, end = node.start_mark.index, node.end_mark.index
            return f"{text[:begin]}{{{figure_of}: {text[begin:end]}, {step}: {value}}}{text[end:]}"
        if inner is None:
            return _with_field(text, node, steps[index:], value)
        node = inner
    if not written:
        return _without_field(text, steps)
    one_line = node.start_mark.line == node.end_mark.line
    if not one_line or not isinstance(node, yaml.ScalarNode | yaml.SequenceNode):
        return None
    return f"{text[: node.start_mark.index]}{value}{text[node.end_mark.index :]}"


def _child(node: Any, step: str | int) -> Any:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        return node.value[step] if step < len(node.value) else None
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == str(step)), None)
    return None


def _with_field(text: str, node: Any, steps: list[str | int], value: str) -> str | None:
    """The text with a new field at the end of an object, or before the workloads."""
    if not isinstance(node, yaml.MappingNode) or not node.value:
        return None
    *outer, last = (str(step) for step in steps)
    written = f"{last}: {value}"
    for name in reversed(outer):
        written = f"{name}: {{{written}}}"
    keys = {key.value: key for key, _ in node.value}
    (first, _), (_, end) = node.value[0], node.value[-1]
    if node.flow_style:
        at = end.end_mark.index
        return f"{text[:at]}, {written}{text[at:]}"
    lines = text.splitlines(keepends=True)
    line = keys["workloads"].start_mark.line if "workloads" in keys else _line_after(text, end)
    if line == len(lines) and not text.endswith("\n"):
        lines[-1] += "\n"
    lines.insert(line, f"{' ' * first.start_mark.column}{written}\n")
    return "".join(lines)


def _without_field(text: str, steps: list[str | int]) -> str | None:
    """The text without one field, and without the objects around it that become empty."""
    node: Any = yaml.compose(text, Loader=yaml.CSafeLoader)
    holders: list[tuple[Any, str | int]] = []
    for step in steps:
        holders.append((node, step))
        node = _child(node, step)
    while len(holders) > 1 and len(holders[-1][0].value) == 1:
        holders.pop()
    holder, name = holders[-1]
    if not isinstance(holder, yaml.MappingNode):
        return None
    names = [key.value for key, _ in holder.value]
    at = names.index(str(name))
    key, value = holder.value[at]
    if holder.flow_style:
        begin = holder.value[at - 1][1].end_mark.index if at else key.start_mark.index
        end = value.end_mark.index if at else holder.value[1][0].start_mark.index
        return text[:begin] + text[end:]
    lines = text.splitlines(keepends=True)
    return "".join(lines[: key.start_mark.line] + lines[_line_after(text, value) :])


def _appended(text: str, item: str) -> str | None:
    """The text with a further item of a block list of workloads."""
    rows = _child(yaml.compose(text, Loader=yaml.CSafeLoader), "workloads")
    if not isinstance(rows, yaml.SequenceNode) or rows.flow_style or not rows.value:
        return None
    indent = " " * rows.start_mark.column
    lines = text.splitlines(keepends=True)
    lines[-1] = lines[-1].rstrip("\n") + "\n"
    written = "".join(f"{indent}{line[2:]}" for line in item.splitlines(keepends=True))
    lines.insert(_line_after(text, rows.value[-1]), written)
    return "".join(lines)


def _last_of(node: Any) -> int:
    """The place of the last scalar or bracket of a value."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        at: int = max(node.start_mark.index, node.end_mark.index - 1)
        return at
    last = node.value[-1]
    return _last_of(last[1] if isinstance(last, tuple) else last)


def _without(text: str, workload: int) -> str | None:
    """The text without the lines of one workload of a block list."""
    rows = _child(yaml.compose(text, Loader=yaml.CSafeLoader), "workloads")
    if not isinstance(rows, yaml.SequenceNode) or rows.flow_style or len(rows.value) < 2:
        return None
    lines = text.splitlines(keepends=True)
    starts = [row.start_mark.line for row in rows.value]
    end = starts[workload + 1] if workload + 1 < len(starts) else _line_after(text, rows.value[workload])
    return "".join(lines[: starts[workload]] + lines[end:])


def _line_after(text: str, node: Any) -> int:
    return text.count("\n", 0, _last_of(node)) + 1


def field_of(pointer: str, fields: list[tuple[str, FormField]]) -> str | None:
    """The pointer of the field that a problem at ``pointer`` belongs to; None if no field shows it."""
    found = [at for at, _ in fields if pointer == at or pointer.startswith(f"{at}/")]
    if found:
        return max(found, key=len)
    short = [at for at, one in fields if len(one.steps) > 1 and FIGURES.get(one.steps[-2]) == one.steps[-1]]
    return next((at for at in short if at.rpartition("/")[0] == pointer), None)


def empty_document(team: str) -> str:
    """A document without workloads, which ``add`` fills."""
    written = _scalar(team, as_text=True)
    return f"team: {written}\nhorizon: {{start: tomorrow, days: 14}}\nworkloads: []\n"
