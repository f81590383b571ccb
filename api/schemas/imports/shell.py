"""Shell text → the commands in it, with variables and defaults replaced. Nothing is run.

Assignments (``model=…``, ``export NAME=…``) count from their line on. What a command prints (``$(…)``) is
unknown and stays a variable.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

UNKNOWN = "$OUTPUT_OF_A_COMMAND"
_CONTINUED = re.compile(r"\\\r?\n")
_COMPUTED = re.compile(r"\$\(\(([^()]*)\)\)")
_SUM = re.compile(r"\s*\d{1,6}(\s*[*+]\s*\d{1,6}){0,9}\s*")
_NAME = re.compile(r"\$?\{?\b([A-Za-z_]\w*)\}?")
_SUBSTITUTED = re.compile(r"\$\([^()]*\)|`[^`]*`")
_VARIABLE = re.compile(r"'[^']*'|\$\{(\w+)(?::?[-=]([^{}]*))?\}|\$(\w+)")
_NEXT = re.compile(r"""'[^']*'|"[^"]*"|;|&&|\|\|""")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ENDS = frozenset(";&|()")
_DIRECTS = frozenset("<>")
_PREFIXES = frozenset({
    "export", "local", "declare", "env", "readonly", "then", "else", "do", "exec", "nohup", "sudo", "time",
})  # fmt: skip
_BEGINS, _CLOSES = frozenset({"if", "case"}), frozenset({"fi", "esac"})
MOST_EXPANSIONS = 8
MOST_REPLACED = 100_000
"""All text together that takes the place of variables and of what commands print."""


@dataclass(slots=True)
class Command:
    """The words of a command, and the environment that is set for it, by name."""

    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)


class Shell:
    """Commands of a text. ``variables``: set outside of it; ``used``: those that stand in it."""

    def __init__(self, text: str, variables: Mapping[str, str] | None = None) -> None:
        self._lines = _CONTINUED.sub(" ", text).splitlines()
        self._variables = dict(variables or {})
        self._room = MOST_REPLACED
        self._branches = 0
        self._in_branches: set[str] = set()
        self.used: set[str] = set()
        self.exported: dict[str, str] = {}

    @property
    def directives(self) -> bool:
        """Whether a scheduler's directives stand in it."""
        return any(line.lstrip().startswith("#SBATCH") for line in self._lines)

    def commands(self) -> Iterator[Command]:
        """The commands, line by line."""
        for part in (part for line in self._lines for part in _parts(line)):
            for words in _split(self._expanded(part)):
                command = self._command(words)
                if command.words:
                    first = command.words[0]
                    self._branches += (first in _BEGINS) - (first in _CLOSES)
                    yield command
                    continue
                self._assign(command.environment)

    def _assign(self, environment: Mapping[str, str]) -> None:
        """Sets variables. One that has another value by branch of an ``if`` has none."""
        for name, value in environment.items():
            if self._branches > 0 and name in self._in_branches and self._variables.get(name) != value:
                self._variables.pop(name, None)
                continue
            if self._branches > 0:
                self._in_branches.add(name)
            self._variables[name] = value

    def _command(self, words: Sequence[str]) -> Command:
        """The words after the assignments at the beginning of a command."""
        found, at, is_exported = Command([]), 0, False
        for word in words:
            assigned = _ASSIGNED.fullmatch(word)
            if assigned is not None:
                found.environment[assigned[1]] = assigned[2]
            elif word in _PREFIXES:
                is_exported = word == "export"
            else:
                break
            at += 1
        found.words = list(words[at:])
        if is_exported:
            self.exported |= found.environment
        return found

    def _expanded(self, line: str) -> str:
        line = _SUBSTITUTED.sub(self._printed, _COMPUTED.sub(self._computed, line))
        for _ in range(MOST_EXPANSIONS):
            replaced = _VARIABLE.sub(self._value, line)
            if replaced == line:
                break
            line = replaced
        return line

    def _computed(self, found: re.Match[str]) -> str:
        """The value of a sum of products of variables and whole numbers; else what a command would print."""
        text = _NAME.sub(lambda name: self._variables.get(name[1], name[0]), found[1])
        self.used |= {name[1] for name in _NAME.finditer(found[1])}
        if not _SUM.fullmatch(text):
            return self._printed(found)
        return str(sum(math.prod(map(int, part.split("*"))) for part in text.split("+")))

    def _printed(self, found: re.Match[str]) -> str:
        self._room -= len(UNKNOWN)
        return UNKNOWN if self._room > 0 else found[0]

    def _value(self, found: re.Match[str]) -> str:
        name = found[1] or found[3]
        if name is None:
            return found[0]
        self.used.add(name)
        value = self._variables.get(name) or found[2]
        if value is None or len(value) > self._room:
            return found[0]
        self._room -= len(value)
        return value.strip("\"'")


def _parts(line: str) -> Iterator[str]:
    """The parts of a line that are run one after another, since each may set variables for the next."""
    start = 0
    for found in _NEXT.finditer(line):
        if found[0] in (";", "&&", "||"):
            yield line[start : found.start()]
            start = found.end()
    yield line[start:]


def _split(line: str) -> Iterator[list[str]]:
    """The words of each command of a line; what is no shell text, such as an open quote, has none."""
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
        lexer.whitespace_split = True
        tokens = list(lexer)
    except ValueError:
        return
    words: list[str] = []
    skip = False
    for token in tokens:
        if set(token) & _DIRECTS and set(token) <= _ENDS | _DIRECTS:
            skip = True
            if words and words[-1] in ("1", "2"):
                words.pop()
        elif set(token) <= _ENDS:
            yield words
            words, skip = [], False
        elif skip:
            skip = False
        else:
            words.append(token)
    yield words


def pair_at(words: Sequence[str], index: int) -> tuple[str, str]:
    """The word at ``index`` without its folder, and the one after it; empty if there is none."""
    following = words[index + 1] if index + 1 < len(words) else ""
    return words[index].rpartition("/")[2], following


def options_of(
    words: Sequence[str], flags: frozenset[str], short: Mapping[str, str] | None = None
) -> tuple[dict[str, str], list[str]]:
    """Options by name with dashes, and all other words.

    ``flags`` take no value but true or false; ``short`` has full names.
    """
    options: dict[str, str] = {}
    rest: list[str] = []
    name: str | None = None
    for word in words:
        if word == "--":
            name = None
            continue
        is_option = word.startswith("-") and len(word) > 1 and not re.fullmatch(r"-[\d.]+(e-?\d+)?", word)
        if is_option:
            told, equals, value = word.lstrip("-").partition("=")
            told = told.replace("_", "-")
            told = (short or {}).get(told, told)
            options[told] = value
            name = None if equals else told
        elif name is not None and (name not in flags or word.lower() in ("true", "false")):
            options[name], name = word, None
        else:
            rest.append(word)
            name = None
    return options, rest
