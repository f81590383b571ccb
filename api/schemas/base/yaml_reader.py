"""YAML text → plain data with the position of every field, in one pass over libyaml's events, within limits.

An alias counts as many fields as it stands for, at the moment it is read: a text of a few hundred bytes that
would expand to billions of fields is refused after as many events as it has levels. The size and the number
of separators are checked before the first event. Scalars follow YAML 1.2's core schema (``document``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NoReturn

import yaml

from broker.domain.basics.errors import FieldProblem, InputError

MAX_CHARACTERS = 4_000_000
MAX_SEPARATORS = 600_000
"""Line breaks, commas, colons and opening brackets; every field begins after one of them."""
MAX_EVENTS = 1_500_000
MAX_DEPTH = 64
MAX_ANCHORS = 1_000
MAX_ALIASED_FIELDS = 100_000
"""The most fields that all aliases of one document may expand to, including nested aliases."""
MAX_SCALAR_CHARACTERS = 100_000
MAX_NUMBER_CHARACTERS = 64
MAX_DIRECTIVES = 16
"""A limit is needed because libyaml compares each ``%TAG`` with all earlier ones."""
MAX_REPORTED = 1_000
"""After so many problems, the rest of the document is not read."""
_BLOCK = 1 << 16
_SEPARATORS = "\n,:[{"
_SEPARATOR = re.compile(r"[\n,:\[{]")

_INT = re.compile(r"[-+]?\d[\d_]*", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_WORDS: Mapping[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_YAML = "tag:yaml.org,2002:"
_TEXT_TAGS = frozenset({"!", _YAML + "str", _YAML + "timestamp"})
_WORD_TAGS = frozenset(_YAML + name for name in ("int", "float", "bool", "null"))
_MAPPING_TAGS = frozenset({None, "!", _YAML + "map"})
_SEQUENCE_TAGS = frozenset({None, "!", _YAML + "seq"})
_MERGE = "<<"

Mark = tuple[int, int]
Children = dict[str, "Node"] | list["Node"] | None


@dataclass(slots=True)
class Node:
    """A value and its position.

    ``size`` is the number of fields including itself, ``height`` the number of levels below it, both with
    aliases expanded. ``children`` is None for a scalar, whose ``text`` is the text as written.
    """

    data: Any
    mark: Mark
    children: Children = None
    text: str = ""
    size: int = 1
    height: int = 0


@dataclass(slots=True)
class _Open:
    """A mapping or sequence whose end has not been read."""

    node: Node
    anchor: str | None
    key: Node | None = None
    merges: bool = False
    merged: dict[str, Any] = field(default_factory=dict)
    merged_children: dict[str, Node] = field(default_factory=dict)


def read_yaml(text: str, source: str) -> tuple[Node | None, list[FieldProblem]]:
    """The root of a text's only document (None: an empty text), and the problems of its fields.

    Raises InputError with line and column for malformed YAML and for a document beyond the limits.
    """
    require_small(text, source)
    return build(yaml.parse(text, yaml.CSafeLoader), source)


def build(events: Iterable[yaml.Event], source: str) -> tuple[Node | None, list[FieldProblem]]:
    """Like ``read_yaml``, but from parse events; it stops reading at the first limit that is exceeded."""
    builder = _Builder(source)
    try:
        for count, event in enumerate(events):
            if count >= MAX_EVENTS:
                refuse(source, f"more than {MAX_EVENTS:,} fields", "a smaller document", _mark(event))
            builder.take(event)
            if len(builder.problems) >= MAX_REPORTED:
                break
    except yaml.MarkedYAMLError as error:
        parts = ", ".join(part for part in (error.context, error.problem) if part)
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark is not None else None
        refuse(source, f"malformed YAML ({parts})", "YAML or JSON", place)
    except yaml.YAMLError as error:
        refuse(source, f"text that is not YAML ({error})", "YAML or JSON")
    return builder.root, builder.problems


def require_small(text: str, source: str) -> None:
    """Raises InputError for a text that is too long, or has too many separators or directives."""
    if len(text) > MAX_CHARACTERS:
        line = text.count("\n", 0, MAX_CHARACTERS) + 1
        found, expected = f"{len(text):,} characters", f"at most {MAX_CHARACTERS:,}"
        refuse(source, found, expected, (line, 1))
    separators = 0
    for start in range(0, len(text), _BLOCK):
        here = sum(text.count(character, start, start + _BLOCK) for character in _SEPARATORS)
        if separators + here > MAX_SEPARATORS:
            found = f"more than {MAX_SEPARATORS:,} line breaks, commas, colons and brackets"
            block = _SEPARATOR.finditer(text, start)
            last = next(islice(block, MAX_SEPARATORS - separators, None)).start()
            refuse(source, found, "a smaller document", (text.count("\n", 0, last) + 1, 1))
        separators += here
    if text.startswith("%") + text.count("\n%") > MAX_DIRECTIVES:
        refuse(source, f"more than {MAX_DIRECTIVES} directives", "a document without them", (1, 1))


def refuse(source: str, found: str, expected: str, place: Mark | None = None) -> NoReturn:
    """Raises InputError with one problem of the whole document."""
    raise InputError(source, (FieldProblem("", found, expected, *(place or (None, None))),))


def marks_of(root: Node) -> dict[str, Mark]:
    """The 1-based (line, column) of every field by JSON pointer: of a collection its name, of a scalar its
    value.
    """
    marks: dict[str, Mark] = {}
    waiting = [("", root.mark, root)]
    while waiting:
        pointer, mark, node = waiting.pop()
        marks[pointer] = mark
        if isinstance(node.children, dict):
            for name, child in node.children.items():
                waiting.append((f"{pointer}/{escaped(name)}", child.mark, child))
        elif node.children is not None:
            waiting.extend(
                (f"{pointer}/{index}", each.mark, each) for index, each in enumerate(node.children)
            )
    return marks


def escaped(name: str) -> str:
    """A name as a token of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


class _Builder:
    """Builds the tree of one document from its events."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.root: Node | None = None
        self.problems: list[FieldProblem] = []
        self._open: list[_Open] = []
        self._anchors: dict[str, Node | None] = {}
        """Anchored nodes by name; None while the anchored collection is still open."""
        self._anchored = 0
        self._aliased = 0
        self._documents = 0
        self._steps: Mapping[type[yaml.Event], Callable[[Any], None]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.AliasEvent: self._alias,
            yaml.MappingStartEvent: self._mapping,
            yaml.SequenceStartEvent: self._sequence,
            yaml.MappingEndEvent: self._close,
            yaml.SequenceEndEvent: self._close,
            yaml.DocumentStartEvent: self._document,
        }

    def take(self, event: yaml.Event) -> None:
        """Adds one event. Raises InputError if a limit is exceeded."""
        step = self._steps.get(type(event))
        if step is not None:
            step(event)

    def _document(self, event: yaml.DocumentStartEvent) -> None:
        self._documents += 1
        if self._documents > 1:
            refuse(self.source, "a second document", "one document", _mark(event))

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        text, tag, mark = event.value, event.tag, _mark(event)
        if len(text) > MAX_SCALAR_CHARACTERS:
            found = f"a value of {len(text):,} characters"
            refuse(self.source, found, f"at most {MAX_SCALAR_CHARACTERS:,}", mark)
        if tag is None:
            data = text if event.style else _plain(text)
        elif tag in _TEXT_TAGS:
            data = text
        elif tag in _WORD_TAGS:
            data = _plain(text)
        else:
            data = None
            self._report(mark, f"a value tagged {tag}", "a plain value")
        node = Node(data, mark, text=text)
        self._remember(event.anchor, node, mark)
        self._add(node, merges=text == _MERGE and tag is None and not event.style)

    def _alias(self, event: yaml.AliasEvent) -> None:
        mark = _mark(event)
        if event.anchor not in self._anchors:
            refuse(
                self.source, f"malformed YAML (found undefined alias {event.anchor!r})", "YAML or JSON", mark
            )
        node = self._anchors[event.anchor]
        if node is None:
            refuse(
                self.source, f"an alias of {event.anchor!r} within it", "an alias of a complete value", mark
            )
        self._aliased += node.size
        if self._aliased > MAX_ALIASED_FIELDS:
            found = f"aliases that stand for more than {MAX_ALIASED_FIELDS:,} fields"
            refuse(self.source, found, "aliases that repeat fewer fields", mark)
        if len(self._open) + node.height > MAX_DEPTH:
            self._too_deep(mark)
        self._add(node)

    def _mapping(self, event: yaml.MappingStartEvent) -> None:
        self._begin(event, Node({}, _mark(event), {}), _MAPPING_TAGS)

    def _sequence(self, event: yaml.SequenceStartEvent) -> None:
        self._begin(event, Node([], _mark(event), []), _SEQUENCE_TAGS)

    def _begin(self, event: yaml.CollectionStartEvent, node: Node, tags: frozenset[str | None]) -> None:
        if len(self._open) >= MAX_DEPTH:
            self._too_deep(node.mark)
        if event.tag not in tags:
            self._report(node.mark, f"a value tagged {event.tag}", "a plain value")
        if event.anchor is not None:
            self._remember(event.anchor, None, node.mark)
        self._open.append(_Open(node, event.anchor))

    def _too_deep(self, mark: Mark) -> NoReturn:
        refuse(self.source, f"more than {MAX_DEPTH} levels", "a document less deep", mark)

    def _close(self, _: yaml.Event) -> None:
        done = self._open.pop()
        node = done.node
        if done.merged:
            node.data = done.merged | node.data
            assert isinstance(node.children, dict)
            node.children = done.merged_children | node.children
        if done.anchor is not None:
            self._anchors[done.anchor] = node
        self._add(node)

    def _remember(self, anchor: str | None, node: Node | None, mark: Mark) -> None:
        if anchor is None:
            return
        self._anchored += 1
        if self._anchored > MAX_ANCHORS:
            refuse(self.source, f"more than {MAX_ANCHORS:,} anchors", "fewer anchors", mark)
        self._anchors[anchor] = node

    def _add(self, node: Node, *, merges: bool = False) -> None:
        """Attaches a complete value: as the root, as an item, as a name or as the value of a name."""
        if not self._open:
            self.root = node
            return
        around = self._open[-1]
        parent = around.node
        parent.size += node.size
        parent.height = max(parent.height, node.height + 1)
        if isinstance(parent.children, list):
            parent.data.append(node.data)
            parent.children.append(node)
        elif around.key is None:
            if node.children is not None:
                self._report(node.mark, "a name that is a list or mapping", "text as a name")
            around.key, around.merges = node, merges
        elif around.merges:
            around.key = None
            self._merge(around, node)
        else:
            self._set(around, around.key, node)
            around.key = None

    def _set(self, around: _Open, key: Node, node: Node) -> None:
        children, name = around.node.children, key.text
        assert isinstance(children, dict)
        if name in children:
            self._report(key.mark, f"a second {name!r}", "each field once", name)
        if node.children is not None:
            node = Node(node.data, key.mark, node.children, size=node.size, height=node.height)
        around.node.data[name] = node.data
        children[name] = node

    def _merge(self, around: _Open, value: Node) -> None:
        """Applies ``<<``: the mapping's own fields win over merged ones, and earlier merged mappings over
        later ones.
        """
        sources = value.children if isinstance(value.children, list) else [value]
        for source in reversed(sources):
            if isinstance(source.children, dict):
                around.merged |= source.data
                around.merged_children |= source.children
            else:
                self._report(source.mark, "a merge of a value that is not a mapping", "a mapping after <<:")

    def _report(self, mark: Mark, found: str, expected: str, *further: str) -> None:
        tokens = [token for one in self._open for token in _token(one)]
        if further and self._open and self._open[-1].key is not None:
            tokens.pop()
        pointer = "".join("/" + escaped(token) for token in (*tokens, *further))
        self.problems.append(FieldProblem(pointer, found, expected, *mark))


def _token(one: _Open) -> Iterator[str]:
    """The JSON pointer token of the child of an open collection that is being read."""
    if isinstance(one.node.children, list):
        yield str(len(one.node.children))
    elif one.key is not None and not one.merges:
        yield one.key.text


def _mark(event: yaml.Event) -> Mark:
    start = event.start_mark
    assert start is not None
    return start.line + 1, start.column + 1


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
