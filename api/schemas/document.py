"""Text → plain data, with the place of every field, so that a message can point at it.

Scalars follow YAML 1.2's core schema, not PyYAML's 1.1: ``2e11`` is a number, ``NO`` is a country,
``11:30`` is text, times stay text. Only plain tags are read; a document can name no class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import yaml

from broker.domain.errors import FieldProblem, InputError

MAX_NODES = 2_000_000
"""Fields of one document, aliases expanded; a few hundred bytes of YAML could ask for billions."""
MAX_DEPTH = 64
MAX_MARKED_CHARACTERS = 4_000_000
MAX_NUMBER_CHARACTERS = 64
MAX_SHOWN = 20
SAFE_OPENERS = 1000
"""A text with fewer beginnings of a collection than this cannot nest too deep to be composed."""
_OPENERS = ("[", "{", "- ", "-\t", "? ", "?\t")

_INT = re.compile(r"[-+]?\d[\d_]*")
_FLOAT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WORDS: Mapping[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp")
)
_MERGE = "tag:yaml.org,2002:merge"

Mark = tuple[int, int]


@dataclass(frozen=True)
class Document:
    """Plain data, and the means to find its fields in the text: only a problem asks where it is."""

    source: str
    data: Any
    find_marks: Callable[[], Mapping[str, Mark]] = dict

    @cached_property
    def marks(self) -> Mapping[str, Mark]:
        """The 1-based (line, column) of every field by JSON pointer."""
        return self.find_marks()

    def problem(self, pointer: str, found: str, expected: str) -> FieldProblem:
        """A problem at ``pointer``, placed at it or at the nearest field around it."""
        around = pointer
        while around and around not in self.marks:
            around = around.rpartition("/")[0]
        line, column = self.marks.get(around, (None, None))
        return FieldProblem(pointer, found, expected, line, column)

    def value_at(self, pointer: str) -> Any:
        """What stands at ``pointer``; None when nothing does."""
        value = self.data
        for token in pointer.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and name.isdigit() and int(name) < len(value):
                value = value[int(name)]
            elif isinstance(value, dict):
                value = value.get(name)
            else:
                return None
        return value


def pointer_of(*tokens: str | int) -> str:
    """The JSON pointer (RFC 6901) of a path of names and indices."""
    return "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in tokens)


def describe(value: object) -> str:
    """A value as a message shows it: short, and never a whole tree."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return f"an object with {_listed(list(value))}" if value else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "…"


def _listed(names: list[object]) -> str:
    shown = ", ".join(str(name) for name in names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def input_error(source: str, problems: list[FieldProblem]) -> InputError:
    """An InputError of the first MAX_SHOWN problems, and a line that counts the rest."""
    shown = problems[:MAX_SHOWN]
    if len(problems) > MAX_SHOWN:
        rest = len(problems) - MAX_SHOWN
        shown.append(FieldProblem("", f"{rest} more problems", "the ones above mended first"))
    return InputError(source, tuple(shown))


def read_json(text: str, source: str) -> Any:
    """Plain data of a JSON text; InputError with line and column for anything else."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        found = f"malformed JSON ({error.msg})"
        problem = FieldProblem("", found, "one JSON document", error.lineno, error.colno)
        raise InputError(source, (problem,)) from None
    except (ValueError, RecursionError) as error:
        problem = FieldProblem("", f"JSON that cannot be read ({error})", "numbers and depth in bounds")
        raise InputError(source, (problem,)) from None


def read_document(text: str, source: str) -> Document:
    """Plain data of a YAML or JSON text with the places of its fields.

    Raises InputError with line and column for text that is neither, for two fields of one name, and
    for documents too deep or too large.
    """
    try:
        _require_shallow(text, source)
        root = yaml.CSafeLoader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _malformed(source, error) from None
    except (yaml.YAMLError, RecursionError) as error:
        problem = FieldProblem("", f"text that is not YAML ({error})", "YAML or JSON")
        raise InputError(source, (problem,)) from None
    walk = _Walk(source)
    data = walk.read(root, "", 0) if root is not None else None
    if walk.problems:
        raise input_error(source, walk.problems)
    return Document(source, data, lambda: walk.marks)


def read_json_document(text: str, source: str) -> Document:
    """Like ``read_document`` for JSON alone, and fast; very large texts have no places."""
    return Document(source, read_json(text, source), partial(_json_marks, text, source))


def _json_marks(text: str, source: str) -> Mapping[str, Mark]:
    if len(text) > MAX_MARKED_CHARACTERS:
        return {}
    try:
        return read_document(text, source).marks
    except InputError:
        return {}


def _malformed(source: str, error: yaml.MarkedYAMLError) -> InputError:
    mark = error.problem_mark or error.context_mark
    found = "malformed YAML (" + ", ".join(part for part in (error.context, error.problem) if part) + ")"
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
    return InputError(source, (FieldProblem("", found, "YAML or JSON", line, column),))


def _require_shallow(text: str, source: str) -> None:
    """InputError for nesting beyond MAX_DEPTH: composing nodes recurses in C, where too deep is a crash."""
    if sum(text.count(opener) for opener in _OPENERS) <= SAFE_OPENERS:
        return
    depth = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            mark = event.start_mark
            place = (mark.line + 1, mark.column + 1) if mark is not None else ()
            found = f"more than {MAX_DEPTH} levels"
            raise InputError(source, (FieldProblem("", found, "a document less deep", *place),))


class _Walk:
    """One pass over a composed YAML tree."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.marks: dict[str, Mark] = {}
        self.problems: list[FieldProblem] = []
        self._left = MAX_NODES

    def read(self, node: yaml.Node, pointer: str, depth: int) -> Any:
        """Plain data of ``node``."""
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            mark = _mark(node)
            problem = FieldProblem("", "aliases that nest or repeat too much", "a smaller document", *mark)
            raise InputError(self.source, (problem,))
        self.marks.setdefault(pointer, _mark(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, pointer, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, f"{pointer}/{index}", depth + 1) for index, item in enumerate(node.value)]
        return self._scalar(node, pointer)

    def _mapping(self, node: yaml.MappingNode, pointer: str, depth: int) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                merged |= self._merged(value, pointer, depth)
                continue
            name = str(key.value)
            inner = pointer + pointer_of(name)
            if name in own:
                self._report(key, inner, f"a second {name!r}", "each field once")
            self.marks[inner] = _mark(value) if isinstance(value, yaml.ScalarNode) else _mark(key)
            own[name] = self.read(value, inner, depth + 1)
        return merged | own

    def _merged(self, value: yaml.Node, pointer: str, depth: int) -> dict[str, Any]:
        sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
        found: dict[str, Any] = {}
        for source in reversed(sources):
            if isinstance(source, yaml.MappingNode):
                found |= self._mapping(source, pointer, depth + 1)
            else:
                self._report(source, pointer, "a merge of something else", "<<: of a mapping")
        return found

    def _scalar(self, node: yaml.Node, pointer: str) -> Any:
        text = str(node.value)
        if node.tag not in _PLAIN_TAGS:
            self._report(node, pointer, f"a value tagged {node.tag}", "a plain value")
            return None
        if getattr(node, "style", None):
            return text
        return _plain(text)

    def _report(self, node: yaml.Node, pointer: str, found: str, expected: str) -> None:
        self.problems.append(FieldProblem(pointer, found, expected, *_mark(node)))


def _mark(node: yaml.Node) -> Mark:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _plain(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > MAX_NUMBER_CHARACTERS:
        return text
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text
