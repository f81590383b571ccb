"""A cache of results of pure functions, by their arguments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

Made = TypeVar("Made")

MOST_KINDS = 4
UNKNOWN = object()


class MemoCache:
    """A least-recently-used cache of ``most`` answers (0: none).

    A key must contain everything that its answer depends on, so that an answer never becomes stale.
    """

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._answers: OrderedDict[Hashable, object] = OrderedDict()
        self._newest: OrderedDict[Hashable, object] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def keep(self, slot: Hashable, value: object) -> None:
        """Stores the latest value of ``slot``; only the last few slots are kept."""
        self._newest.pop(slot, None)
        self._newest[slot] = value
        while len(self._newest) > MOST_KINDS:
            self._newest.popitem(last=False)

    def kept(self, slot: Hashable, kind: type[Made]) -> Made | None:
        """The latest value of ``slot`` if it is a ``kind``, else None."""
        value = self._newest.get(slot)
        return value if isinstance(value, kind) else None

    def once(self, question: Hashable, make: Callable[[], Made]) -> Made:
        """The cached answer to ``question``; ``make`` computes it if it is not known."""
        if not self._most:
            return make()
        known = self._answers.get(question, UNKNOWN)
        if known is not UNKNOWN:
            self._answers.move_to_end(question)
            return cast("Made", known)
        found = make()
        self._answers[question] = found
        while len(self._answers) > self._most:
            self._answers.popitem(last=False)
        return found
