"""Pages of long lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list, and the cursor of the next page; None on the last page."""

    items: tuple[T, ...]
    next_cursor: str | None
