"""Options that the makers of a row say they gave its engine, in its notes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MEMORY = re.compile(
    r"(?:mem[-_ ]fraction(?:[-_ ]static)?|gpu[-_ ]mem(?:ory)?[-_ ]util(?:ization)?)[ =:]+(0?\.\d+)"
)
A_RANK = re.compile(r"max[-_ ]num[-_ ]seqs[ =:]+(\d+)")
IN_ALL = re.compile(r"max[-_ ]running[-_ ]requests[ =:]+(\d+)")
BEAMS = re.compile(r"beams?(?:[-_ ](?:width|search))?[ =:]+(\d+)")


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Share of each card for weights and cache, sequences in flight on a rank at most; 0 where not told.
    ``beams``: sequences that search for the answer of a request side by side."""

    memory_share: float = 0.0
    sequences: float = 0.0
    beams: float = 1.0


NONE_TOLD = LaunchOptions()


def options_of(row: Mapping[str, str], ranks: int) -> LaunchOptions:
    """What the notes say: vLLM counts sequences by data-parallel rank, SGLang over all ``ranks``."""
    notes = (row.get("notes") or "").lower()
    sequences = _told(A_RANK, notes) or _told(IN_ALL, notes) / ranks
    return LaunchOptions(_told(MEMORY, notes), sequences, max(_told(BEAMS, notes), 1.0))


def _told(option: re.Pattern[str], notes: str) -> float:
    found = option.search(notes)
    return float(found.group(1)) if found else 0.0
