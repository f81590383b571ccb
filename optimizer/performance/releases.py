"""Which releases of a serving engine behave otherwise than the newest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

RELEASE = re.compile(r"(\d+)[.-](\d+)(?:\.(\d+))?")
FIRST_YEAR = 2000


@dataclass(frozen=True, slots=True)
class Before:
    """Releases before ``version`` (major.minor, or with a patch) or before ``month`` (year-month)."""

    version: str
    month: str
    source: str

    def holds(self, release: str) -> bool:
        """Whether ``release`` is one of them; blank or unreadable ones are not."""
        told = _release(release)
        if told is None:
            return False
        limit = _release(self.month if told[0] >= FIRST_YEAR else self.version)
        return limit is not None and told < limit


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderEngine(Before):
    """Releases that are the class ``engine``, of engines whose name has one of ``words``; ``apart``: rows of
    it have intervals of their own; not in the regimes ``never``, in which other code of theirs ran."""

    engine: str
    words: Sequence[str]
    apart: bool
    never: Sequence[str] = ()

    def is_one(self, name: str, release: str, regime: str) -> bool:
        """Whether the engine of that name and release is one of them in ``regime``."""
        named = any(word in name.lower() for word in self.words)
        return named and regime not in self.never and self.holds(release)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyReleases(Before):
    """The first releases with a kind of model: prompts take ``prompts`` times as long, and a layer of a
    decode step ``layer_s`` more, since its kernels are launched one by one."""

    prompts: float
    layer_s: float


def _release(text: str) -> tuple[int, int, int] | None:
    """Major, minor and patch of a version, or year and month; None where there is neither."""
    found = RELEASE.search(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))
