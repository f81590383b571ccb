"""A cache with a limited size that evicts the least recently used results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """A cache of total size ``most``, which always keeps the newest result.

    A key must contain everything on which its result depends, such as versions of the store, but never the
    time.
    """

    def __init__(self, most: int, size: Callable[[Value], int] = lambda _: 1) -> None:
        self._most = most
        self._size = size
        self._found: OrderedDict[Hashable, Value] = OrderedDict()
        self._sizes = 0

    def find(self, key: Hashable) -> Value | None:
        """The cached value of ``key``; None if there is none."""
        value = self._found.get(key)
        if value is not None:
            self._found.move_to_end(key)
        return value

    def keep(self, key: Hashable, value: Value) -> Value:
        """Caches and returns ``value``, and evicts the least recently used values above the limit."""
        before = self._found.pop(key, None)
        self._sizes -= 0 if before is None else self._size(before)
        self._found[key] = value
        self._sizes += self._size(value)
        while len(self._found) > 1 and self._sizes > self._most:
            _, gone = self._found.popitem(last=False)
            self._sizes -= self._size(gone)
        return value

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The cached value, or else the result of ``make``, which is then cached."""
        found = self.find(key)
        return self.keep(key, make()) if found is None else found

    def clear(self) -> None:
        """Evicts everything."""
        self._found.clear()
        self._sizes = 0
