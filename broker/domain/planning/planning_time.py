"""How long a document takes to plan at least; what cannot be planned in its limit is refused."""

from __future__ import annotations

import math

from broker.domain.basics.errors import FieldProblem, InputError

LEAST_S_A_WORKLOAD = 0.02
"""To load a workload, place it once, and tell and check that, on one core of about 3 GHz."""
ALWAYS_PLANNED_WORKLOADS = 100
"""Documents of so few workloads are planned whatever their limit is."""


def require_time(workloads: int, time_limit_s: float) -> None:
    """Raises InputError where a document of so many workloads has no plan within the limit."""
    needed_s = workloads * LEAST_S_A_WORKLOAD
    if workloads > ALWAYS_PLANNED_WORKLOADS and time_limit_s < needed_s:
        raise too_short(workloads, time_limit_s, needed_s)


def too_short(workloads: int, time_limit_s: float, needed_s: float) -> InputError:
    """The error of a limit in which a document has no plan, which names one that has room for it."""
    found = f"{time_limit_s:g} s for {workloads:,} workloads"
    expected = f"at least {math.ceil(needed_s / 10) * 10} s, or a document of fewer workloads"
    return InputError("options", (FieldProblem("/time_limit_s", found, expected),))
