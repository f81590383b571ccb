"""The known words nearest to a word that somebody mistyped. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def near_words(word: str, known: Collection[str], count: int = 3) -> tuple[str, ...]:
    """At most ``count`` of ``known``, nearest first: words that begin like ``word``, then similar ones.

    Case is ignored.
    """
    asked = word.strip().casefold()
    if not asked:
        return ()
    folded = {name.casefold(): name for name in sorted(known)}
    begins = [key for key in folded if key.startswith(asked) or asked.startswith(key)]
    close = difflib.get_close_matches(asked, folded, n=count, cutoff=0.4)
    return tuple(folded[key] for key in dict.fromkeys([*begins, *close]))[:count]


SLIP = 0.75
"""Two names that agree to this share differ by a slip, such as a missing letter."""


def similar_words(word: str, known: Collection[str]) -> tuple[str, ...]:
    """Those of ``known`` that ``word`` differs from by a slip, nearest first. Case is ignored."""
    folded = {name.casefold(): name for name in sorted(known)}
    close = difflib.get_close_matches(word.strip().casefold(), folded, cutoff=SLIP)
    return tuple(folded[key] for key in close)


def with_nearest(expected: str, word: str, known: Collection[str]) -> str:
    """``expected``, followed by the words nearest to ``word``, if any is near."""
    near = near_words(word, known)
    return f"{expected} (nearest: {', '.join(near)})" if near else expected
