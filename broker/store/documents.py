"""Frozen dataclasses ↔ JSON documents, by their type annotations.

Decimals are strings, so they stay exact; times are ISO 8601; enums are their values; ``inf`` and ``nan`` are
strings. Reading skips unknown keys and uses defaults for missing fields, because other versions may have
written the document.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from broker.store.columns import storable

T = TypeVar("T")


def to_document(value: object) -> Any:
    """``value`` as data for ``to_json``. Raises TypeError for an unsupported type."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def from_document(kind: type[T], document: Any) -> T:
    """A ``kind`` from a document of ``to_document``, also of an older or newer version.

    Raises msgspec.ValidationError, a ValueError, if the document is of another kind.
    """
    return msgspec.convert(document, kind, strict=False)  # not strict: "inf" is a float


def to_json(document: object) -> str:
    """``document`` as JSON text that every database stores."""
    with suppress(ValueError):  # of an infinite number, or of a single surrogate
        text = json.dumps(document, allow_nan=False, ensure_ascii=False)
        if "\\u0000" not in text and text.encode():
            return text
    return json.dumps(_storable(document))


def _plain(value: object) -> object:
    """A value that the library does not know, as one that it does: a read-only mapping, a number of numpy."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"a document cannot carry {type(value).__name__}")


def _storable(part: Any) -> Any:
    if isinstance(part, dict):
        return {storable(key): _storable(item) for key, item in part.items()}
    if isinstance(part, list | tuple):
        return [_storable(item) for item in part]
    if isinstance(part, float) and not math.isfinite(part):
        return str(part)
    return storable(part) if isinstance(part, str) else part
