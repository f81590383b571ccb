"""Tables that are sorted and paged on the server: what their headings and page links say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a view is shown: its path and what is asked of it; empty words are left out."""

    path: str
    query: Mapping[str, str]

    def url(self, **changed: str) -> str:
        """The same view with some words changed."""
        asked = {name: word for name, word in {**self.query, **changed}.items() if word}
        return f"{self.path}?{urlencode(asked)}" if asked else self.path


@dataclass(frozen=True, slots=True)
class Sorting:
    """By which column, and which way; ``part`` is the id of what a heading's click replaces."""

    by: str
    descending: bool
    address: Address
    part: str

    @property
    def word(self) -> str:
        """The wish that makes it so."""
        return f"-{self.by}" if self.descending else self.by

    @property
    def direction(self) -> str:
        """The word of ``aria-sort``."""
        return "descending" if self.descending else "ascending"

    def url_of(self, name: str) -> str:
        """The view by column ``name``; the other way round where it is by that already."""
        turned = name == self.by and not self.descending
        return self.address.url(sort=f"-{name}" if turned else name, page="")


def wished_sorting(wish: str, names: Sequence[str], address: Address, part: str) -> Sorting:
    """``name`` or ``-name`` of a heading; the first of ``names`` for anything else."""
    name = wish.removeprefix("-")
    if name not in names:
        return Sorting(names[0], False, address, part)
    return Sorting(name, wish.startswith("-"), address, part)


@dataclass(frozen=True, slots=True)
class Paging:
    """Which page of how many, 1-based, and where the ones beside it are."""

    page: int
    pages: int
    earlier_url: str | None
    later_url: str | None


def paged(items: Sequence[Item], page: int, size: int, address: Address) -> tuple[Sequence[Item], Paging]:
    """The items of a page; one beyond the ends is the nearest that there is."""
    first, paging = page_at(len(items), page, size, address)
    return items[first : first + size], paging


def page_at(count: int, page: int, size: int, address: Address) -> tuple[int, Paging]:
    """Number (from 0) of the first of ``count`` items on a page, and the pages beside it."""
    pages = max(1, -(-count // size))
    at = min(max(page, 1), pages)
    earlier = address.url(page=str(at - 1)) if at > 1 else None
    later = address.url(page=str(at + 1)) if at < pages else None
    return (at - 1) * size, Paging(at, pages, earlier, later)
