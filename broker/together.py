"""Work that goes on at once and ends together: ``asyncio.gather`` leaves the rest behind when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def all_ended(works: Iterable[Awaitable[T]]) -> list[T]:
    """Results in order. The first error is raised once every work has ended, as none may go on unseen."""
    results: list[T] = []
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results
