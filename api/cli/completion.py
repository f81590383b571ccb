"""Completion in a shell, without importing any command: names of commands, and values.

It answers in the formats of the scripts that ``broker --install-completion`` writes for bash, zsh and fish.
What it does not know, such as options, is left to Typer.
"""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping

from api.cli.commands import COMMANDS

ASKED_BY = "_BROKER_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
VALUES = "api.cli.completion_values"


def complete_word(environment: Mapping[str, str] = os.environ) -> str | None:
    """The answer to a shell that completes a command or a known value; None if it completes another part of
    the line.
    """
    shell, _, _ = environment.get(ASKED_BY, "").removeprefix("complete_").partition(" ")
    if shell not in SHELLS:
        return None
    words, begun = _line(environment, shell)
    if not words or begun.startswith("-"):
        return None
    if all(word.startswith("-") for word in words[1:]):
        return _told(shell, ((name, one.summary) for name, one in COMMANDS.items() if name.startswith(begun)))
    find = importlib.import_module(VALUES).values_of(words)
    if find is None:
        return None
    *before, last = begun.split(",")
    head = "".join(f"{word}," for word in before)
    return _told(shell, ((f"{head}{value}", "") for value in find(last) if value.startswith(last)))


def _line(environment: Mapping[str, str], shell: str) -> tuple[list[str], str]:
    """The words before the one that is completed, and what is typed of it."""
    if shell == "bash":
        words, at = _split(environment.get("COMP_WORDS", "")), int(environment.get("COMP_CWORD", "0"))
        begun = words[at] if at < len(words) else ""
        return words[:at], "" if begun == "=" else begun
    text = environment.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(text)
    if not words or text.endswith(" "):
        return words, ""
    option, is_assigned, begun = words[-1].partition("=")
    return (words[:-1], words[-1]) if not is_assigned else ([*words[:-1], option], begun)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote
        return text.split()


def _told(shell: str, found: Iterable[tuple[str, str]]) -> str:
    """Words with what they mean, if anything, as the script of the shell reads them."""
    if shell == "zsh":
        return f"_arguments '*: :(({' '.join(_of_zsh(found))}))'"
    return "\n".join(f"{word}\t{says}" if says and shell == "fish" else word for word, says in found)


def _of_zsh(found: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"{_quoted(word)}:{_quoted(says)}" if says else _quoted(word) for word, says in found)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace(":", "\\:").replace("'", "''")
    return f'"{escaped}"'
