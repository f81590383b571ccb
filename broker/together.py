"""Concurrent tasks that end together; ``asyncio.gather`` leaves the others running if one fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


async def all_ended(works: Iterable[Awaitable[T]]) -> list[T]:
    """Results in order. The first error is raised after all have ended, so that none continues unobserved."""
    results: list[T] = []
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


async def all_or_none(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first error cancels the others, because only all results together are useful."""
    async with one_error() as group:
        tasks = [group.create_task(work) for work in works]
    return [task.result() for task in tasks]


@asynccontextmanager
async def one_error() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises the first error itself, once the other tasks have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        first: BaseException = errors.exceptions[0]
        raise first from first.__cause__
