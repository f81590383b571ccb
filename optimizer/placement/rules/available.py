"""No offer is held beyond the time until which its seller says it exists."""

from __future__ import annotations

from collections.abc import Iterator

from optimizer.placement.rules.case import Case, reserved


def violations(case: Case) -> Iterator[str]:
    """Placements that outlast their offer."""
    for where, placement, _, offer in case.with_recourses():
        until, end = offer.available_until, max(segment.end for segment in reserved(placement, offer))
        if until is not None and end > until:
            yield f"{where}: held until {end.isoformat()}, but the offer ends at {until.isoformat()}"
