"""Other numbers of the planner for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr


@contextmanager
def tuned(room: Struct, **numbers: Any) -> Iterator[None]:
    """Sets numbers of a room of ``TUNING`` within the block."""
    before = {name: getattr(room, name) for name in numbers}
    try:
        for name, number in numbers.items():
            force_setattr(room, name, number)
        yield
    finally:
        for name, number in before.items():
            force_setattr(room, name, number)
