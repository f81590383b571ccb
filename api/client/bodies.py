"""What is sent with calls: workloads documents and orders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from api.schemas.base.document import Document
from api.schemas.base.times import format_time
from api.schemas.base.validation import validate
from api.schemas.holding.reservation import ReservationRequest

Workloads = str | Path | Mapping[str, object]
"""A workloads document: YAML or JSON text, a file that holds it, or its fields."""


def workloads_text(workloads: Workloads) -> str:
    """The text of a workloads document."""
    if isinstance(workloads, Path):
        return workloads.read_text(encoding="utf-8-sig")
    return workloads if isinstance(workloads, str) else json.dumps(workloads, default=_told)


def order_body(wish: Mapping[str, object]) -> dict[str, object]:
    """The body of an order. Raises InputError for a field of ``wish`` that it does not take."""
    request = validate(ReservationRequest, Document("order", wish))
    return request.model_dump(mode="json", exclude_defaults=True)


def _told(value: object) -> str:
    if isinstance(value, datetime):
        return format_time(value)
    raise TypeError(f"a workloads document has text, numbers, lists and times, found {value!r}")
