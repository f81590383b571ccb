"""The links by which a table is sorted and paged on the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a view: its path and its parameters; empty ones are left out."""

    path: str
    query: Mapping[str, str]

    def url(self, **changed: str) -> str:
        """The address of the view with some parameters changed."""
        asked = {name: word for name, word in {**self.query, **changed}.items() if word}
        return f"{self.path}?{urlencode(asked)}" if asked else self.path


@dataclass(frozen=True, slots=True)
class Sorting:
    """The sorting column and direction. ``part`` is the id of the element that a click on a heading
    replaces."""

    by: str
    descending: bool
    address: Address
    part: str

    @property
    def word(self) -> str:
        """The parameter for this sorting."""
        return f"-{self.by}" if self.descending else self.by

    @property
    def direction(self) -> str:
        """The value of ``aria-sort``."""
        return "descending" if self.descending else "ascending"

    def url_of(self, name: str) -> str:
        """The address of the view sorted by column ``name``, in the other direction if it is already."""
        turned = name == self.by and not self.descending
        return self.address.url(sort=f"-{name}" if turned else name, page="")


def wished_sorting(wish: str, names: Sequence[str], address: Address, part: str) -> Sorting:
    """The sorting by ``name`` or ``-name``; by the first of ``names`` for anything else."""
    name = wish.removeprefix("-")
    if name not in names:
        return Sorting(names[0], False, address, part)
    return Sorting(name, wish.startswith("-"), address, part)


@dataclass(frozen=True, slots=True)
class Paging:
    """The page number, from 1, of how many, and the addresses of its neighbours."""

    page: int
    pages: int
    earlier_url: str | None
    later_url: str | None


def page_at(count: int, page: int, size: int, address: Address) -> tuple[int, Paging]:
    """The index (from 0) of the first of ``count`` items on a page, and the neighbouring pages."""
    pages = max(1, -(-count // size))
    at = min(max(page, 1), pages)
    earlier = address.url(page=str(at - 1)) if at > 1 else None
    later = address.url(page=str(at + 1)) if at < pages else None
    return (at - 1) * size, Paging(at, pages, earlier, later)
