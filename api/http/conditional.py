"""Answers with an ETag: a client that has the current version gets 304 instead of the body."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from broker.domain.holding.plan_holding import PlanHolding
from broker.lru_cache import LruCache
from broker.ports.planning import BusinessStatus, PlanRecord

FRESH = {"Cache-Control": "private, no-cache"}
"""It may be kept by who asked, and is asked for again each time."""
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "What the tag in If-None-Match is of"}}
MOST_BYTES = 64 * 1024 * 1024

Tagged = tuple[str, bytes]
"""An entity tag, and the body that it is of."""


def kept_answers() -> LruCache[Tagged]:
    """A cache of the bodies written last, of some tens of megabytes."""
    return LruCache(MOST_BYTES, lambda tagged: len(tagged[1]))


def plan_key(
    record: PlanRecord,
    standing: BusinessStatus | None,
    holding: PlanHolding | None = None,
    stale: Sequence[str] = (),
) -> tuple[object, ...]:
    """The cache key of a plan's answer: everything it depends on. A plan changes only with its record's
    version."""
    rest = (record.state, record.problem, record.needs_approval, record.approval_reason, record.supersedes)
    words = (record.intended_by, record.approved_by, record.approved_at, record.decisions)
    return (
        record.plan_id,
        record.version,
        record.plan is None,
        standing,
        holding,
        tuple(stale),
        *rest,
        *words,
    )


def tagged(document: Any, *, but_for: Mapping[str, Any] | None = None) -> Tagged:
    """The body of ``document`` and its ETag, which leaves out the fields ``but_for``: they only say when the
    answer was computed. The tag is weak, as the answer is sent compressed or not."""
    body = _json(document)
    tag = f'W/"{blake2b(body, digest_size=16).hexdigest()}"'
    return tag, body if but_for is None else _json({**document, **but_for})


def conditional(request: Request, answer: Tagged) -> Response:
    """``answer``, or 304 for a client that has it already."""
    tag, body = answer
    headers = {"ETag": tag, **FRESH}
    if _has(request.headers.getlist("If-None-Match"), tag):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def _has(given: list[str], tag: str) -> bool:
    """Whether a tag is among those given, by weak comparison."""
    tags = [word.strip().removeprefix("W/") for line in given for word in line.split(",")]
    return "*" in tags or tag.removeprefix("W/") in tags


def _json(document: Any) -> bytes:
    """JSON bytes, in the same form as the framework's."""
    words = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return words.encode()
