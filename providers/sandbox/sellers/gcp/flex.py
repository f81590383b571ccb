"""When a flex-start request of the sandbox finds capacity: a wait drawn by seed and name.

A request waits as PENDING until capacity appears, at most its ``params.requestValidForDuration``; else it
lapses and costs nothing. It then runs for ``scheduling.maxRunDuration``, is deleted, and is billed from its
start. Field names: compute v1 discovery document (20261106); the bounds of both durations are Google's as far
as is known (unverified), and the waits are invented.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from providers.sandbox.market import draw
from providers.sandbox.protocol import Refusal, SandboxState
from providers.sandbox.sellers.gcp.operations import gcp_error, required

RUN_BOUNDS_S = (600, 7 * 86_400)
WAIT_BOUNDS_S = (90, 7_200)
MOST_WAIT_S = 8_000
"""The longest wait drawn: a tenth of the requests that ask for the longest time lapse."""


@dataclass(frozen=True, slots=True)
class FlexTerms:
    """``lapses_at``: capacity does not appear in time, else None."""

    begins_at: datetime
    ends_at: datetime | None
    lapses_at: datetime | None


def flex_terms(sandbox: SandboxState, body: Mapping[str, Any], name: str, loses_capacity: bool) -> FlexTerms:
    """When a request begins and ends; 400 for durations that are missing or out of bounds."""
    run = _duration(body, ("scheduling", "maxRunDuration"), RUN_BOUNDS_S)
    valid = _duration(body, ("params", "requestValidForDuration"), WAIT_BOUNDS_S)
    now = sandbox.clock.now()
    wait = timedelta(seconds=int(MOST_WAIT_S * draw(sandbox.seed, "flex-start", name)))
    if loses_capacity or wait > valid:
        return FlexTerms(now + valid, None, now + valid)
    return FlexTerms(now + wait, now + wait + run, None)


def _duration(body: Mapping[str, Any], path: tuple[str, ...], bounds: tuple[int, int]) -> timedelta:
    seconds = int(required(body, *path, "seconds"))
    if not bounds[0] <= seconds <= bounds[1]:
        field, (least, most) = ".".join(path), bounds
        message = f"Invalid value for field 'resource.{field}': '{seconds}s'. Must be {least}s to {most}s."
        raise Refusal(gcp_error(400, "invalid", message))
    return timedelta(seconds=seconds)
