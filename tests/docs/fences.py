"""The fenced blocks of the documentation: which files a reader writes, and which commands a reader runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')
_EXIT_CODE = re.compile(r"# exit code (\d+)")


@dataclass(frozen=True, slots=True)
class Fence:
    """One block: its language, the name of the file that it is (or empty), and its text."""

    language: str
    file: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Command:
    """One command with its continuation lines, and the exit code that the page says it ends with."""

    text: str
    exit_code: int


def pages() -> tuple[Path, ...]:
    """README, and every page of the site that is written by hand."""
    return (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))


def fences_of(page: Path) -> Iterator[Fence]:
    """The blocks of a page, in order."""
    text = page.read_text()
    for found in _FENCE.finditer(text):
        words, body = found.groups()
        title = _TITLE.search(words)
        language = words.split()[0] if words.split() else ""
        line = text.count("\n", 0, found.start()) + 1
        yield Fence(language, title.group(1) if title else "", body, line)


def commands_of(fence: Fence) -> Iterator[Command]:
    """The commands of a bash block."""
    for line in fence.text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            told = _EXIT_CODE.search(line)
            yield Command(line.strip(), int(told.group(1)) if told else 0)
