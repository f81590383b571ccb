"""Where a command writes: data to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from broker import logs
from broker.domain.basics.errors import FieldProblem, InputError
from broker.unseen import ESCAPES, shown

LARGEST_FILE_BYTES = 512 * 1024 * 1024

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


class SafeConsole(Console):
    """A console that prints data literally. Control characters are escaped, and brackets and colons are no
    markup or emoji. Only ``Text`` and table columns carry styles."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Segments of ``renderable``, before styles become escape codes."""
        for segment in super().render(renderable, options):
            if segment.control is None:
                yield Segment(_LAYOUT.sub("", shown(segment.text)), segment.style)
            else:
                yield segment


_LAYOUT = re.compile(r"[\t\r]")
_JSON_ESCAPES = {code: json.dumps(chr(code))[1:-1] for code in ESCAPES if code > 0x7F}
_JSON_ESCAPES[0x7F] = "\\u007f"


def stdout() -> Console:
    """A new console on stdout, for data. It is made anew so that it follows redirected streams."""
    return SafeConsole(file=sys.stdout)


def stderr() -> Console:
    """A new console on stderr, for progress, logs and errors."""
    return SafeConsole(file=sys.stderr)


def say(text: str | Text) -> None:
    """A line on stderr: progress, a warning, or what was done."""
    stderr().print(text, soft_wrap=True)


def reveal(text: str) -> None:
    """Prints a secret for whoever started the command: on stderr, or on stdout if stderr is a JSON log."""
    console = stdout() if logs.is_json() else stderr()
    console.print(text, soft_wrap=True)


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(to_json(document))


def print_items(items: Iterable[Any]) -> None:
    """A whole list as the API answers a page of it."""
    print_json({"items": list(items), "next_cursor": None})


def to_json(document: Any) -> str:
    """JSON text for files, with invisible characters escaped. Refuses NaN and infinity."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.translate(_JSON_ESCAPES)


def read_text(path: Path) -> str:
    """The text of a file, or of standard input for ``-``. Raises InputError if it cannot be read."""
    if str(path) == "-":
        return sys.stdin.read()
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise _file_error(path, "more than 512 MiB", "a smaller file")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise _file_error(path, "no such file", "the path of a file") from None
    except UnicodeDecodeError as error:
        raise _file_error(path, f"bytes that are not UTF-8 (at {error.start})", "UTF-8 text") from None
    except OSError as error:
        raise _file_error(path, str(error.strerror), "a file that can be read") from None


def read_bytes(path: Path) -> bytes:
    """The bytes of a file. Raises InputError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _file_error(path, str(error.strerror), "a file that can be read") from None


def write_text(path: Path, text: str) -> None:
    """Writes a file atomically. Raises InputError if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _file_error(path, str(error.strerror), "a path that can be written") from None


def require_writable(path: Path) -> None:
    """Raises InputError if ``write_text`` would fail. Call it before the work whose result would be lost."""
    folder = path.parent
    if not folder.is_dir():
        raise _file_error(path, f"no folder {folder}", "a path that can be written")
    if path.is_dir():
        raise _file_error(path, "a folder", "a path that can be written")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise _file_error(path, "no right to write there", "a path that can be written")


def _file_error(path: Path, found: str, expected: str) -> InputError:
    return InputError(str(path), (FieldProblem("", found, expected),))
