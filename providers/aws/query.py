"""The EC2 query protocol's request side: flat, numbered parameters in a form body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from urllib.parse import urlencode

VERSION = "2016-11-15"
TAG_KEY = "broker-key"
CONTENT_TYPE = "application/x-www-form-urlencoded; charset=utf-8"

Params = Mapping[str, str]


def form_body(action: str, params: Params) -> bytes:
    """The encoded body of one call."""
    return urlencode({"Action": action, "Version": VERSION, **params}).encode()


def listed(name: str, values: Iterable[str]) -> dict[str, str]:
    """``Name.1``, ``Name.2`` …"""
    return {f"{name}.{number}": value for number, value in enumerate(values, start=1)}


def tagged(resource_type: str, tag: str, name: str = "TagSpecification") -> dict[str, str]:
    """The resource tag by which the broker finds its own purchases.

    ``name``: the parameter's name; CreateCapacityReservation uses the plural.
    """
    return {
        f"{name}.1.ResourceType": resource_type,
        f"{name}.1.Tag.1.Key": TAG_KEY,
        f"{name}.1.Tag.1.Value": tag,
    }


def time_text(at: datetime) -> str:
    """ISO 8601 in UTC to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
