"""Results that are kept for as long as what they were made of is the same, and then forgotten by size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """The results that were asked for last, of ``most`` in size together; the newest always stays.

    A key has to name all that its result depends on: versions of the store, never the time.
    """

    def __init__(self, most: int, size: Callable[[Value], int] = lambda _: 1) -> None:
        self._most = most
        self._size = size
        self._found: OrderedDict[Hashable, Value] = OrderedDict()
        self._sizes = 0

    def find(self, key: Hashable) -> Value | None:
        """What was kept under ``key``."""
        value = self._found.get(key)
        if value is not None:
            self._found.move_to_end(key)
        return value

    def keep(self, key: Hashable, value: Value) -> Value:
        """Keeps ``value``, and forgets what was asked for least lately where it is too much."""
        before = self._found.pop(key, None)
        self._sizes -= 0 if before is None else self._size(before)
        self._found[key] = value
        self._sizes += self._size(value)
        while len(self._found) > 1 and self._sizes > self._most:
            _, gone = self._found.popitem(last=False)
            self._sizes -= self._size(gone)
        return value

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The kept value, or the one that ``make`` makes now."""
        found = self.find(key)
        return self.keep(key, make()) if found is None else found

    def clear(self) -> None:
        """Forgets everything."""
        self._found.clear()
        self._sizes = 0
