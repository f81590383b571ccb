"""The shortest planning time of a document; a document that cannot be planned in its limit is refused."""

from __future__ import annotations

import math

from broker.domain.basics.errors import FieldProblem, InputError

LEAST_S_A_WORKLOAD = 0.02
"""Time to load, place, explain and check one workload on one core of about 3 GHz."""
ALWAYS_PLANNED_WORKLOADS = 100
"""Documents with at most this many workloads are planned whatever their time limit is."""


def require_time(workloads: int, time_limit_s: float) -> None:
    """Raises InputError if a document with this many workloads cannot be planned within the limit."""
    needed_s = workloads * LEAST_S_A_WORKLOAD
    if workloads > ALWAYS_PLANNED_WORKLOADS and time_limit_s < needed_s:
        raise too_short(workloads, time_limit_s, needed_s)


def too_short(workloads: int, time_limit_s: float, needed_s: float) -> InputError:
    """The error of a time limit that is too short; it names a limit that is long enough."""
    found = f"{time_limit_s:g} s for {workloads:,} workloads"
    expected = f"at least {math.ceil(needed_s / 10) * 10} s, or a document with fewer workloads"
    return InputError("options", (FieldProblem("/time_limit_s", found, expected),))
