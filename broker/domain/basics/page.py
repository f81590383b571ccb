"""Lists that are read part by part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list, and the cursor of the next part (None: the end)."""

    items: tuple[T, ...]
    next_cursor: str | None
