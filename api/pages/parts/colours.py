"""Colours of groups in charts: each name has its own, on every page and at every load. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

COLOURS, HATCHES = 7, 4
"""Colours ``s0`` … ``s6`` of the style sheet, and hatches over them; 0 is none."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a group is drawn: its colour, and the hatch over it."""

    colour: int
    hatch: int = 0


OTHERS = Look(7)
"""Of all groups that are drawn together: grey."""


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """A look for each of ``names``, which stand in the order in which they appeared.

    The name says which colour it has, or the next one if an earlier name has that; once all colours are
    taken, one with a hatch. So a name keeps its look when others come, the first 7 differ in colour, and the
    first 28 in their look.
    """
    found: dict[str, Look] = {}
    for name in dict.fromkeys(names):
        base = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % COLOURS
        wanted = (Look((base + step) % COLOURS, hatch) for hatch in range(HATCHES) for step in range(COLOURS))
        taken = set(found.values())
        found[name] = next((one for one in wanted if one not in taken), Look(base))
    return found
