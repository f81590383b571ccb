"""The documentation, rendered: its pages by path, their order, and what a search finds in them.

The files are those of ``docs/``, which a wheel carries (``broker/data_folder.py``); ``mkdocs.yml`` says their
order. A link between two of them leads to the page of the other. A link out of ``docs/`` is shown as text, as
a reader of the pages has no clone. Code such as ``/docs/api`` is an address of this server, and a link.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePosixPath
from posixpath import normpath

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from api.reference_texts import REFERENCE_TEXTS
from broker.data_folder import data_folder
from broker.domain.basics.errors import NotFound

ADDRESS = "/docs"
GENERATED = "reference/"
FOLDER = data_folder("docs")
ORDER = data_folder("mkdocs.yml")
SCROLLED = '<div class="scroll" tabindex="0">'
MOST_FOUND = 20
SNIPPET_CHARACTERS = 180
_OWN_ADDRESS = re.compile(rf"{ADDRESS}/[a-z/-]+")
_WORD = re.compile(r"[\w.*/-]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """A page in the order of the site: its path (``guides/serve``) and its title."""

    path: str
    title: str

    @property
    def address(self) -> str:
        """Where a server shows it."""
        return f"{ADDRESS}/{self.path}"


@dataclass(frozen=True, slots=True)
class Chapter:
    """A heading of the order, and its pages; pages before the first heading have none."""

    title: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page as HTML, and its headings of the second level as (anchor, text)."""

    html: str
    headings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A page that has every word of a search, and the line that has the most of them."""

    entry: Entry
    snippet: str


class Documentation:
    """The pages of one server. ``generated``: the pages that are made from the code, by name."""

    def __init__(self, generated: Mapping[str, Callable[[], str]]) -> None:
        self._generated = {**REFERENCE_TEXTS, **generated}
        self._rendered: dict[str, Rendered] = {}
        self._texts: dict[str, str] = {}

    @property
    def chapters(self) -> tuple[Chapter, ...]:
        """The order of the pages that this server has."""
        listed = (
            Chapter(one.title, tuple(entry for entry in one.entries if self._has(entry.path)))
            for one in chapters()
        )
        return tuple(one for one in listed if one.entries)

    def render(self, path: str) -> Rendered:
        """The page at ``path``. Raises NotFound."""
        if path not in self._rendered:
            self._rendered[path] = render(self._text(path), path)
        return self._rendered[path]

    def search(self, asked: str) -> list[Found]:
        """The pages that have every word of ``asked``: words in titles first, then by their count."""
        words = [word.lower() for word in _WORD.findall(asked)]
        if not words:
            return []
        found = []
        for entry in (entry for chapter in self.chapters for entry in chapter.entries):
            text = self._text(entry.path)
            counts = [text.lower().count(word) for word in words]
            if all(counts):
                in_title = sum(word in entry.title.lower() for word in words)
                found.append(((-in_title, -sum(counts)), Found(entry, _snippet(text, words))))
        return [one for _, one in sorted(found, key=lambda pair: pair[0])][:MOST_FOUND]

    def _has(self, path: str) -> bool:
        if path.startswith(GENERATED):
            return path.removeprefix(GENERATED) in self._generated
        return (FOLDER / f"{path}.md").is_file()

    def _text(self, path: str) -> str:
        if path not in self._texts:
            if not self._has(path) or normpath(path) != path or path.startswith(("/", "..")):
                raise NotFound("page of the documentation", path)
            name = path.removeprefix(GENERATED)
            is_written = name == path
            text = (
                (FOLDER / f"{path}.md").read_text(encoding="utf-8") if is_written else self._generated[name]()
            )
            self._texts[path] = text
        return self._texts[path]


@cache
def chapters() -> tuple[Chapter, ...]:
    """The order of all pages, of ``mkdocs.yml``."""
    alone: list[Entry] = []
    found: list[Chapter] = []
    for item in yaml.safe_load(ORDER.read_text(encoding="utf-8"))["nav"]:
        ((title, inner),) = item.items()
        if isinstance(inner, str):
            alone.append(Entry(inner.removesuffix(".md"), title))
        else:
            pairs = (pair for one in inner for pair in one.items())
            found.append(Chapter(title, tuple(Entry(path.removesuffix(".md"), name) for name, path in pairs)))
    return (Chapter("", tuple(alone)), *found)


def render(text: str, path: str) -> Rendered:
    """Markdown as HTML; ``path`` is that of its page, from which its links lead."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    headings = list(_name_headings(tokens))
    folder = PurePosixPath(path).parent
    for token in tokens:
        token.children = list(_linked(token.children, folder)) if token.children else token.children
    html: str = parser.renderer.render(tokens, parser.options, {})
    wide = html.replace("<table>", f"{SCROLLED}<table>").replace("</table>", "</table></div>")
    return Rendered(wide, tuple(headings))


def _name_headings(tokens: Sequence[Token]) -> Iterator[tuple[str, str]]:
    """Gives each heading its anchor; yields those of the second level."""
    seen: set[str] = set()
    for token, inner in pairwise(tokens):
        if token.type != "heading_open":
            continue
        words = "".join(child.content for child in inner.children or ())
        plain = re.sub(r"[^\w\s-]", "", words.lower()).strip()
        anchor = name = re.sub(r"[-\s]+", "-", plain)
        number = 0
        while name in seen:
            number += 1
            name = f"{anchor}_{number}"
        seen.add(name)
        token.attrSet("id", name)
        if token.tag == "h2":
            yield name, words


def _linked(children: Sequence[Token], folder: PurePosixPath) -> Iterator[Token]:
    """The parts of a paragraph, its links turned to addresses of this server."""
    is_open = True
    for token in children:
        if token.type == "link_open":
            address = _address(str(token.attrGet("href") or ""), folder)
            is_open = address is not None
            if address is not None:
                token.attrSet("href", address)
        if token.type == "image":
            token.attrSet("src", _address(str(token.attrGet("src") or ""), folder) or "")
        if token.type in ("link_open", "link_close") and not is_open:
            continue
        if token.type == "code_inline" and _OWN_ADDRESS.fullmatch(token.content):
            yield Token("link_open", "a", 1, attrs={"href": token.content})
            yield token
            yield Token("link_close", "a", -1)
            continue
        yield token


def _address(link: str, folder: PurePosixPath) -> str | None:
    """Where a link leads on this server; None for one that leaves the documentation's folder."""
    if re.match(r"[a-z]+:|#|/", link):
        return link
    target, hash_, anchor = link.partition("#")
    path = normpath(str(folder / target))
    if path.startswith(".."):
        return None
    return f"{ADDRESS}/{path.removesuffix('.md')}{hash_}{anchor}"


def _snippet(text: str, words: Sequence[str]) -> str:
    """The line of ``text`` that has the most of ``words``, around the first of them."""
    lines = [line.strip("#|-* ").replace("`", "") for line in text.splitlines()]
    best = max(lines, key=lambda line: sum(word in line.lower() for word in words), default="")
    begin = max(0, best.lower().find(words[0]) - SNIPPET_CHARACTERS // 3)
    part = best[begin : begin + SNIPPET_CHARACTERS]
    return f"{'…' if begin else ''}{part}{'…' if begin + SNIPPET_CHARACTERS < len(best) else ''}"


def image(name: str) -> Path:
    """The file of an image of the documentation. Raises NotFound."""
    file = FOLDER / "images" / name
    if file.suffix != ".png" or "/" in name or not file.is_file():
        raise NotFound("image", name)
    return file
