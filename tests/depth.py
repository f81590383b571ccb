"""How many examples a property test draws: what it says with every run, ten times as many at night."""

from __future__ import annotations

import os

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "repeatable")
TIMES = {"repeatable": 1, "thorough": 10}


def examples(with_every_run: int) -> int:
    """The number to draw now; ``HYPOTHESIS_PROFILE=thorough`` makes it night."""
    return with_every_run * TIMES[PROFILE]
