"""What was worked out before: answers of pure functions by their questions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

Made = TypeVar("Made")

MOST_KINDS = 4
UNKNOWN = object()


class MemoCache:
    """Keeps the last ``most`` answers, none where it is 0; of more the longest unused go first.

    A question has to hold all that its answer depends on: then an answer is never out of date.
    """

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._answers: OrderedDict[Hashable, object] = OrderedDict()
        self._newest: OrderedDict[Hashable, object] = OrderedDict()

    def copy(self) -> MemoCache:
        """One that knows the same, and learns for itself from here on."""
        found = MemoCache(self._most)
        found._answers.update(self._answers)
        found._newest.update(self._newest)
        return found

    def __len__(self) -> int:
        return len(self._answers)

    def keep(self, slot: Hashable, value: object) -> None:
        """Keeps the newest of a kind, in place of the one before; of a few kinds."""
        self._newest.pop(slot, None)
        self._newest[slot] = value
        while len(self._newest) > MOST_KINDS:
            self._newest.popitem(last=False)

    def kept(self, slot: Hashable, kind: type[Made]) -> Made | None:
        """The newest of a kind; None where there is none."""
        value = self._newest.get(slot)
        return value if isinstance(value, kind) else None

    def once(self, question: Hashable, make: Callable[[], Made]) -> Made:
        """The answer to ``question``, made by ``make`` where it is not known."""
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
